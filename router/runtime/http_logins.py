"""Logins of HTTP's clients: the same users, tokens and certificates as of other listeners, and the same policy."""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from amqpmesh.policies.access import Peer
from amqpmesh.router.access.rights import NOT_PERMITTED
from amqpmesh.router.access.tokens import with_token
from amqpmesh.router.amqp.sasl.mechanisms import MECHANISMS, BusyError, MechanismError, ServerSide, Success, Work
from amqpmesh.router.endpoint_setup import NOBODY
from amqpmesh.router.http.requests import BAD_REQUEST, FORBIDDEN, UNAUTHORIZED, UNAVAILABLE, HttpError
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.tokens.identity import TokenIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.http_connections import Client
    from amqpmesh.router.runtime.passwords import Passwords

REMEMBERED: Final = 100
"""Logins that are remembered: a client shows its password with each request, and each check takes long."""

REMEMBERED_TIME: Final = 60.0
"""Seconds for which a login is remembered; less for a token that expires earlier, or if the users are read again."""

SCHEMES: Final[Mapping[str, str]] = {"basic": "PLAIN", "bearer": "OAUTHBEARER"}
"""The mechanisms of SASL behind the schemes of HTTP (RFC 7617, RFC 6750)."""


class _Known(NamedTuple):
    """A login that is remembered."""

    users: object
    """The users, or the judge of tokens, that have let it in."""
    until: float
    success: Success


class HttpLogins:
    """The logins at the listeners for HTTP of a router; used in its loop."""

    def __init__(self, core: Core, passwords: Passwords) -> None:
        self._core = core
        self._passwords = passwords
        self._key = secrets.token_bytes(32)
        #: By a digest of what a client has shown: no secret stays in memory for that.
        self._known: dict[bytes, _Known] = {}

    async def judge(
        self, listener: ListenerConfig, credentials: Credentials, client: Client, host: str, shown: str | None
    ) -> Visitor:
        """Return the client of a request.

        Args: credentials: of the listener now. host: that the request asks for. shown: its field `authorization`.
        Raises: HttpError: 401: it has to log in. 403: the policy does not admit it. 503: too many wait for an answer.
        """
        identity = client.identity
        if identity.certificate is not None and credentials.has_revoked(identity.certificate):
            raise self._refused(listener, client, None, "the certificate is revoked", None)
        peer = Peer(
            container_id="",
            certificate_subject=identity.subject,
            listener=listener.name,
            hostname=host,
            host=client.host,
        )
        offered = listener.mechanisms(secured=client.secured)
        if shown is not None:
            peer = await self._logged_in(peer, listener, credentials, client, shown, offered)
        elif "EXTERNAL" in offered and identity.user is not None:
            peer = replace(peer, user=identity.user, mechanism="EXTERNAL")
        elif "ANONYMOUS" in offered:
            peer = replace(peer, mechanism="ANONYMOUS")
        else:
            raise HttpError(UNAUTHORIZED, "a login is needed", *_challenges(offered))
        return self._admitted(peer, listener)

    def _admitted(self, peer: Peer, listener: ListenerConfig) -> Visitor:
        policy = self._core.context.policy
        if policy is None:
            return _visitor(peer, None, listener)
        admitted = policy.admit(peer)
        if admitted is None:
            self._core.context.count_denied("")
            self._audit("peer refused", peer, "the peer is in no tenant")
            raise HttpError(FORBIDDEN, NOT_PERMITTED)
        return _visitor(admitted.peer, admitted.rights, listener)

    async def _logged_in(
        self,
        peer: Peer,
        listener: ListenerConfig,
        credentials: Credentials,
        client: Client,
        shown: str,
        offered: tuple[str, ...],
    ) -> Peer:
        """Return the peer with the user that it has proved. Raises: HttpError: as `judge`."""
        scheme, _, given = shown.partition(" ")
        mechanism = SCHEMES.get(scheme.lower(), "")
        if mechanism not in offered:
            raise HttpError(UNAUTHORIZED, "the scheme is not offered", *_challenges(offered))
        tokens, users = self._core.context.tokens, credentials.users_for(client.host)
        if mechanism == "OAUTHBEARER" and tokens is not None and len(given) > tokens.size:
            raise HttpError(UNAUTHORIZED, "the token is too long", *_challenges(offered))
        judges: object = credentials.users or credentials.asked
        if mechanism == "OAUTHBEARER":
            judges = None if tokens is None else tokens.version
        # The tenant that guesses count for depends on the host.
        digest = hmac.digest(self._key, f"{listener.name}\0{peer.host}\0{peer.hostname}\0{shown}".encode(), "sha256")
        success = self._remembered(digest, judges)
        if success is None:
            try:
                side = ServerSide(users or NOBODY, tokens=tokens)
                success = await self._prove(mechanism, _response(mechanism, given.strip()), side, peer)
            except BusyError as error:
                raise HttpError(UNAVAILABLE, "the login cannot be checked now", ("Retry-After", "5")) from error
            except MechanismError as error:
                raise self._refused(listener, client, error.user, str(error), mechanism) from None
            self._remember(digest, judges, success)
            self._core.logins.accepted_at(listener.name, client.host, success.user, mechanism)
        named = replace(peer, user=success.user, mechanism=mechanism)
        if isinstance(success.token, TokenIdentity) or success.token is not None:
            return with_token(named, success.token)
        known = credentials.users
        return named if known is None or success.user is None else replace(named, groups=known.groups_of(success.user))

    async def _prove(self, mechanism: str, response: bytes, side: ServerSide, peer: Peer) -> Success:
        """Hold the conversation of a mechanism. Raises: MechanismError."""
        conversation = MECHANISMS[mechanism].server(mechanism, side)
        next(conversation)
        answer: Any = response
        try:
            while True:
                said = conversation.send(answer)
                if isinstance(said, Work):
                    await self._passwords.check(peer, said)
                answer = b""
        except StopIteration as end:
            success: Success = end.value
            return success

    def _remembered(self, digest: bytes, judges: object) -> Success | None:
        known = self._known.get(digest)
        if known is None:
            return None
        if known.users is not judges or trio.current_time() >= known.until:
            del self._known[digest]
            return None
        return known.success

    def _remember(self, digest: bytes, judges: object, success: Success) -> None:
        seconds = REMEMBERED_TIME
        if isinstance(success.token, TokenIdentity):
            seconds = min(seconds, success.token.expires - self._core.context.wall_clock())
        self._known[digest] = _Known(judges, trio.current_time() + seconds, success)
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def _refused(
        self, listener: ListenerConfig, client: Client, user: str | None, reason: str, mechanism: str | None
    ) -> HttpError:
        """Log that a login is refused, and return the error to answer with."""
        self._core.logins.refused_at(listener.name, client.host, user, mechanism, reason)
        offered = listener.mechanisms(secured=client.secured)
        return HttpError(UNAUTHORIZED, "the login is refused", *_challenges(offered))

    def _audit(self, event: str, peer: Peer, reason: str) -> None:
        audit = self._core.context.audit
        if audit is not None:
            audit.of_host(event, peer.host, user=peer.user, reason=reason, listener=peer.listener)


def _visitor(peer: Peer, rights: Rights | None, listener: ListenerConfig) -> Visitor:
    groups = None if rights is None else rights.groups
    certificate, tenant = peer.certificate_subject, peer.tenant or None
    named = {"peer": peer.host, "user": peer.user, "mechanism": peer.mechanism, "certificate": certificate}
    fields = {**named, "listener": peer.listener, "tenant": tenant, "groups": groups}
    return Visitor.of(peer.tenant, rights, fields, may_write=listener.manage)


def _challenges(offered: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the header fields that name the ways to log in; by a certificate alone, there is none."""
    basic = (("WWW-Authenticate", 'Basic realm="amqpmesh", charset="UTF-8"'),) if "PLAIN" in offered else ()
    bearer = (("WWW-Authenticate", 'Bearer realm="amqpmesh"'),) if "OAUTHBEARER" in offered else ()
    return (*basic, *bearer)


def _response(mechanism: str, given: str) -> bytes:
    """Return the client's message of a mechanism. Raises: HttpError: it is malformed."""
    if mechanism == "OAUTHBEARER":
        return f"n,,\x01auth=Bearer {given}\x01\x01".encode()
    try:
        user, colon, password = b64decode(given, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        colon = b""
    if not colon:
        raise HttpError(BAD_REQUEST, "the field authorization is malformed")
    return b"\0" + user + b"\0" + password
