"""The fields that the router retains of a peer's `open`, `begin` and `attach`, and the memory that they take.

A peer may send thousands of these frames, each as large as the largest frame. The router retains only the fields that
it needs later: names, addresses, the outcomes that a sender's source permits, and the desired capabilities that the
router knows. Long fields count on the account of the peer's connection. The router refuses them if that would exceed
the limit of the account or of the memory (`is_too_much`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from sys import getsizeof
from typing import TYPE_CHECKING, Final, TypeVar

from amqpmesh.router.amqp.codec.composite import Composite, declaration, encode_composite
from amqpmesh.router.amqp.codec.types import Extension, Symbol
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import OUTCOMES, Accepted, Modified, Outcome, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import LifetimePolicy, Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Open
from amqpmesh.router.endpoint_setup import LARGE, REDIRECT, TENANT, WHOLE
from amqpmesh.router.memory.holders import SHARES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.policies.access import Peer
    from amqpmesh.router.amqp.alike_attaches import AlikeAttaches
    from amqpmesh.router.memory.holders import Memory
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

LIFETIME_POLICY: Final = Symbol("lifetime-policy")
"""The property of a dynamic node that sets its lifetime (§3.5.9)."""

_declared = declaration(Open)
assert isinstance(_declared, Composite)
_OPEN: Final = _declared.list

T = TypeVar("T")

FREE: Final = 512
"""Octets of the names of a link or a connection that are free: the link or connection itself takes more memory."""


def of_open(opened: Open) -> Open:
    """Return a peer's `open` with only the fields that are needed later."""
    kept = _kept_of_open(
        opened.max_frame_size,
        opened.channel_max,
        opened.idle_time_out,
        _known(opened.desired_capabilities, REDIRECT),
    )
    short: Open = _OPEN.like(kept, (opened.container_id,))
    return short


@lru_cache(maxsize=256)
def _kept_of_open(frame: int, channel: int, idle: int | None, capabilities: tuple[Symbol, ...]) -> Open:
    return Open(
        container_id="",
        max_frame_size=frame,
        channel_max=channel,
        idle_time_out=idle,
        desired_capabilities=capabilities,
    )


def of_begin(begun: Begin) -> Begin:
    """Return a peer's `begin` with only the fields that are needed later."""
    if begun.properties is None and not (begun.offered_capabilities or begun.desired_capabilities):
        return begun  # all others are numbers
    return Begin(
        next_outgoing_id=begun.next_outgoing_id,
        incoming_window=begun.incoming_window,
        outgoing_window=begun.outgoing_window,
        handle_max=begun.handle_max,
        offered_capabilities=_known(begun.offered_capabilities, WHOLE, LARGE),
        desired_capabilities=_known(begun.desired_capabilities, WHOLE, LARGE),
    )


def of_attach(attach: Attach, *, own: bool = False) -> Attach:
    """Return a peer's `attach` with only the fields that are needed later. Nearly all links share one such object.

    Args: own: the peer is the router itself, which names the tenant of its link's addresses.
    """
    if own and attach.properties:
        return replace(of_attach(attach), properties={TENANT: attach.properties.get(TENANT)})
    source, target = attach.source, attach.target
    dynamic = isinstance(source, Source) and source.dynamic, isinstance(target, Target) and target.dynamic
    outcomes: tuple[Symbol, ...] = ()
    default: Outcome | None = None
    if isinstance(source, Source) and source.outcomes and attach.role is Role.SENDER:
        # The outcomes that a sender's source permits, and the default outcome (§3.5.3).
        outcomes, default = source.outcomes, source.default_outcome
        if len(outcomes) > len(OUTCOMES):
            outcomes = tuple(dict.fromkeys(outcomes))
    redirects = REDIRECT in attach.desired_capabilities
    if default is not None and not _is_plain(default):
        return _made(*dynamic, redirects, outcomes, Extension(encode_composite(default)))
    made = _alike if OUTCOMES.issuperset(outcomes) else _made
    return made(*dynamic, redirects, outcomes, default)


def of_claim(attach: Attach) -> Attach:
    """Return an `attach` that is answered later, without the fields that the answer does not need."""
    return replace(
        attach,
        source=_named(attach.source),
        target=_named(attach.target),
        properties=None,
        offered_capabilities=(),
        desired_capabilities=_known(attach.desired_capabilities, REDIRECT),
    )


def _named(terminus: T) -> T:
    """Return a source or target without filters, capabilities, and properties of its node other than the lifetime."""
    if isinstance(terminus, Source):
        terminus = replace(terminus, filter=None)
    if isinstance(terminus, Source | Target):
        lifetime = (terminus.dynamic_node_properties or {}).get(LIFETIME_POLICY)
        properties = {LIFETIME_POLICY: lifetime} if isinstance(lifetime, LifetimePolicy) else None
        terminus = replace(terminus, capabilities=(), dynamic_node_properties=properties)
    return terminus


def _is_plain(outcome: Outcome) -> bool:
    """Return whether an outcome has no error and no annotations."""
    if isinstance(outcome, Modified):
        return outcome.message_annotations is None
    if isinstance(outcome, Rejected):
        return outcome.error is None
    return isinstance(outcome, Accepted | Released)


def _made(
    makes_source: bool, makes_target: bool, redirects: bool, outcomes: tuple[Symbol, ...], default: Outcome | None
) -> Attach:
    return Attach(
        name="",
        handle=0,
        role=Role.SENDER,
        source=Source(dynamic=makes_source, outcomes=outcomes, default_outcome=default),
        target=Target(dynamic=makes_target),
        desired_capabilities=(REDIRECT,) if redirects else (),
    )


_alike = lru_cache(maxsize=256)(_made)


def _known(capabilities: Sequence[Symbol], *known: Symbol) -> tuple[Symbol, ...]:
    """Return the capabilities that this router knows, as its own objects: those of all peers share their memory."""
    return tuple([each for each in known if each in capabilities]) if capabilities else ()


def size_of_open(opened: Open) -> int:
    """Return the octets of a container's names beyond `FREE`."""
    return max(0, getsizeof(opened.container_id) + getsizeof(opened.hostname) - FREE)


def size_of_attach(attach: Attach, alike: AlikeAttaches | None = None) -> int:
    """Return the retained octets of an `attach` beyond `FREE`. Args: alike: those that it is like."""
    if alike is None:
        octets = _size_of_termini(attach)
    else:
        if alike.octets is None:
            alike.octets = _size_of_termini(attach)
        octets = alike.octets
    octets += getsizeof(attach.name)
    return octets - FREE if octets > FREE else 0


def _size_of_termini(attach: Attach) -> int:
    source, target = attach.source, attach.target
    octets = 0
    if isinstance(target, Target):
        octets += getsizeof(target.address)
    if isinstance(source, Source):
        octets += getsizeof(source.address)
        if source.default_outcome is not None and not _is_plain(source.default_outcome):
            octets += len(encode_composite(source.default_outcome))
        if source.outcomes and not OUTCOMES.issuperset(source.outcomes):
            octets += sum(map(getsizeof, source.outcomes))
    return octets


def size_of_peer(peer: Peer) -> int:
    """Return the octets of a peer's names beyond `FREE`."""
    return max(0, getsizeof(peer.container_id) + getsizeof(peer.hostname) - FREE)


def size_of_grant(name: str, grant: Grant, attach: Attach | None) -> int:
    """Return the octets beyond `FREE` that are kept of a link without its connection.

    Args: name: of the link. grant: of its terminus. attach: what is retained of the peer's `attach`.
    """
    octets = getsizeof(name) + getsizeof(grant.address) + getsizeof(grant.default_outcome)
    return max(0, octets + (0 if attach is None else _size_of_termini(attach)) - FREE)


def remember(memory: Memory, record: ConnectionRecord, octets: int) -> bool:
    """Count retained octets on the account of a peer's connection. Returns: False: it is too much, and not counted."""
    if is_too_much(memory, record, octets):
        return False
    record.remembered += octets
    record.account.add(octets)
    return True


def forget(record: ConnectionRecord, link: IncomingLink | OutgoingLink | ConnectionRecord) -> None:
    """Remove the retained octets of a link, or of the connection itself, from the connection's account."""
    if link.remembered:
        record.account.add(-link.remembered)
        link.remembered = 0


def is_too_much(memory: Memory, record: ConnectionRecord, octets: int) -> bool:
    """Return whether further retained octets would exceed the limit of a peer, or of the router's memory.

    Up to its share a connection may always retain more.
    """
    if not octets:
        return False
    budget, would_hold = memory.budget, record.account.used + octets
    if would_hold <= memory.share:
        return False
    return would_hold > budget.limit // SHARES or budget.used + octets > budget.limit
