"""Tokens of peers: the identity that they give a connection, and its end when they expire.

A peer shows a token at its login, or puts it later by the node `$cbs`. A peer without a user that comes to a listener
with `cbs` may do nothing else before it has put one. A token that is put replaces the one before it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.access import caps
from amqpmesh.router.access.change import judge_links
from amqpmesh.router.access.rights import admit, is_judged, refuse_connection
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.config.user_checks import UserIdentity
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.memory.retained import remember
from amqpmesh.router.model.peer_token import PeerToken
from amqpmesh.router.tokens.identity import TokenError, TokenIdentity

if TYPE_CHECKING:
    from amqpmesh.policies.access import Peer
    from amqpmesh.router.amqp.sasl.mechanisms import Token
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.tokens.judge import Tokens

EXPIRED: Final = "the token has expired"
NOT_TAKEN: Final = "tokens of its issuer are not taken any more"


def begin(context: Context, record: ConnectionRecord, token: Token | None) -> bool:
    """Note the token of a peer that has opened its connection, and its expiry, or wait for one.

    Args: token: that it has shown at its login; its identity is the peer's already (`with_token`).
    Returns: whether the policy can judge the peer now; False: it has to put a token first, or it is refused.
    """
    identity = token if isinstance(token, TokenIdentity) else None
    listener = record.listener
    if listener is None or record.inside or (identity is None and not listener.cbs):
        return True
    if identity is not None and context.tokens is not None and not context.tokens.takes(identity):
        # A peer may wait with its `open` for a while after its login.
        refuse_connection(context, record, NOT_TAKEN)
        return False
    is_awaited = identity is None and record.peer.user is None
    record.token = PeerToken(identity, is_awaited=is_awaited, allowed=context.config.tokens.burst, now=context.now)
    if is_awaited:
        _arm(context, record, context.now + listener.open_time_out, partial(_refuse_late, context, record))
        return False
    if identity is not None:
        if not _remember(context, record, identity):
            refuse_connection(context, record, "the claims of its token are too long")
            return False
        _audit(context, record, identity, is_renewed=False)
        _await_expiry(context, record)
    return True


def put(context: Context, record: ConnectionRecord, identity: TokenIdentity) -> None:
    """Put a token in force for a connection, in place of the one before it.

    The policy judges the peer again: rights may grow or shrink at once, also those of links. The user and the tenant
    stay: links, and what is counted for them, are theirs.
    Raises: TokenError: the token is of another user or tenant than the connection, of no tenant at all, or too long.
    """
    token = record.token
    assert token is not None, "it has a link to put tokens by"
    peer, rights = with_token(record.peer, identity), record.rights
    if is_judged(context, record):
        assert context.policy is not None
        admitted = context.policy.admit(peer)
        if admitted is None:
            context.denied += 1
            raise TokenError("the peer is in no tenant")
        peer, rights = admitted
    is_first, before = token.is_awaited, token.identity
    if not is_first and (peer.user, peer.tenant) != (record.peer.user, record.peer.tenant):
        raise TokenError("the token is of another user or tenant than the connection")
    if not _remember(context, record, identity):
        raise TokenError("the claims of the token are too long")
    token.identity, token.is_awaited = identity, False
    record.peer = peer
    if is_first and not admit(context, record):  # as a peer that has just opened its connection
        return
    if not is_first and rights is not None and rights is not record.rights:
        record.rights = rights
        caps.renew(context, record, rights)
        judge_links(context, record, rights)
    _await_expiry(context, record)
    context.log.info(
        "token accepted",
        connection=record.number,
        peer=record.host,
        user=peer.user,
        issuer=identity.issuer,
        seconds=round(identity.expires - context.wall_clock()),
    )
    _audit(context, record, identity, is_renewed=before is not None)


def _audit(context: Context, record: ConnectionRecord, identity: TokenIdentity, *, is_renewed: bool) -> None:
    if context.audit is not None:
        seconds = round(identity.expires - context.wall_clock())
        context.audit.of("token accepted", record, issuer=identity.issuer, seconds=seconds, renewed=is_renewed)


def end(context: Context, record: ConnectionRecord) -> None:
    """Forget the timers of a connection that has ended, and its links to `$cbs`."""
    if record.token is not None:
        _disarm(context, record.token)
        if record.token.refill is not None:
            context.cancel(record.token.refill)
        for endpoint in (*record.token.requests, *record.token.answers):
            endpoint.context = None
        record.token.requests.clear()
        record.token.answers.clear()


def with_token(peer: Peer, identity: Token | None) -> Peer:
    """Return a peer with the identity of its token, or the one that the program gives it.

    Args: identity: None: it has shown none at its login, and the program has given none.
    """
    if isinstance(identity, UserIdentity):
        return replace(peer, groups=identity.groups, token_tenant=identity.tenant)
    if not isinstance(identity, TokenIdentity):
        return peer
    return replace(
        peer,
        user=identity.user,
        claims=identity.claims,
        groups=identity.groups,
        token_tenant=identity.tenant,
        scopes=identity.scopes,
    )


def _remember(context: Context, record: ConnectionRecord, identity: TokenIdentity) -> bool:
    """Count the octets of a token's claims on the account of its connection, in place of those of the one before it.

    Returns: False: the account has no room; nothing has changed.
    """
    token = record.token
    assert token is not None
    octets = 4 * (identity.claims.size + sum(map(len, identity.scopes)))
    if not remember(context.memory, record, max(0, octets - token.remembered)):
        return False
    fewer = max(0, token.remembered - octets)
    record.remembered -= fewer
    record.account.add(-fewer)
    token.remembered = octets
    return True


# ---------------------------------------------------------------------------------------------------------------- time


def _await_expiry(context: Context, record: ConnectionRecord) -> None:
    assert record.token is not None
    assert record.token.identity is not None
    left = record.token.identity.expires - context.wall_clock()
    _arm(context, record, context.now + max(0.0, left), partial(_check_expiry, context, record))


def _check_expiry(context: Context, record: ConnectionRecord) -> None:
    """End a connection whose token has expired. The wall clock may have been set back since the timer was."""
    token = record.token
    if record.lost or token is None or token.identity is None:
        return
    if token.identity.expires > context.wall_clock():
        _await_expiry(context, record)
        return
    context.log.warning(
        "token expired", connection=record.number, peer=record.host, user=record.peer.user, issuer=token.identity.issuer
    )
    if context.audit is not None:
        context.audit.of("token expired", record, issuer=token.identity.issuer)
    _end_connection(context, record, EXPIRED)


def end_tokens(context: Context, tokens: Tokens) -> None:
    """Close all connections that have come by tokens which are not taken any more, in small steps."""
    if context.connections:
        context.chores.put_off(_end_tokens(context, tokens))


def _end_tokens(context: Context, tokens: Tokens) -> Steps[None]:
    for record in list(context.connections):
        identity = None if record.token is None else record.token.identity
        if not record.lost and identity is not None and not tokens.takes(identity):
            refuse_connection(context, record, NOT_TAKEN)
        yield


def _refuse_late(context: Context, record: ConnectionRecord) -> None:
    """End a connection whose peer has put no token in time."""
    if record.lost or record.token is None or not record.token.is_awaited:
        return
    context.denied += 1
    context.log.warning(
        "peer refused", connection=record.number, peer=record.host, reason="it has put no token in time"
    )
    if context.audit is not None:
        context.audit.of("peer refused", record, reason="it has put no token in time")
    _end_connection(context, record, "no token was put in time")


def _end_connection(context: Context, record: ConnectionRecord, reason: str) -> None:
    close_connection(context, record, Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description=reason))
    context.on_output(record)


def _arm(context: Context, record: ConnectionRecord, at: float, action: partial[None]) -> None:
    """Set the one timer of a connection's token."""
    assert record.token is not None
    _disarm(context, record.token)
    record.token.errand = context.schedule(at, action)


def _disarm(context: Context, token: PeerToken) -> None:
    if token.errand is not None:
        context.cancel(token.errand)
        token.errand = None
