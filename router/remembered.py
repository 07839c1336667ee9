"""What stays of a peer's `open`, `begin` and `attach`, and what that takes of the router's memory.

A peer may send thousands of them, each as large as a frame. What is asked for later is kept, and nothing else: names,
addresses, the outcomes that a sender's source permits, and which capabilities of ours are desired. Long ones count
against the peer and the router's memory, and are refused where that is used up.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import Role
from amqpmesh.router.amqp.messaging import Source, Target
from amqpmesh.router.amqp.performatives import Attach, Begin, Open
from amqpmesh.router.amqp.types import Extension, Symbol
from amqpmesh.router.memory import SHARES
from amqpmesh.router.neighbours import LARGE, WHOLE
from amqpmesh.router.opening import REDIRECT
from amqpmesh.router.sayings import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.connections import ConnectionRecord
    from amqpmesh.router.core import Core
    from amqpmesh.router.links import IncomingLink, OutgoingLink

FREE: Final = 512
"""Octets of what a link or a connection is called that do not count: it takes more itself."""


def of_open(opened: Open) -> Open:
    """What is asked for later of a peer's `open`."""
    return Open(
        container_id=opened.container_id,
        max_frame_size=opened.max_frame_size,
        channel_max=opened.channel_max,
        idle_time_out=opened.idle_time_out,
        desired_capabilities=_known(opened.desired_capabilities, REDIRECT),
    )


def of_begin(begun: Begin) -> Begin:
    """What is asked for later of a peer's `begin`."""
    return Begin(
        next_outgoing_id=begun.next_outgoing_id,
        incoming_window=begun.incoming_window,
        outgoing_window=begun.outgoing_window,
        handle_max=begun.handle_max,
        offered_capabilities=_known(begun.offered_capabilities, WHOLE, LARGE),
        desired_capabilities=_known(begun.desired_capabilities, WHOLE, LARGE),
    )


def of_attach(attach: Attach) -> Attach:
    """What is asked for later of a peer's `attach`: most of them are the same for all links."""
    source, target = attach.source, attach.target
    makes_source = isinstance(source, Source) and source.dynamic
    makes_target = isinstance(target, Target) and target.dynamic
    redirects = REDIRECT in attach.desired_capabilities
    outcomes, default = _outcomes(attach)
    if len(default) <= _PLAIN and OUTCOMES.issuperset(outcomes):
        return _alike(makes_source, makes_target, redirects, outcomes, default)
    return _made(makes_source, makes_target, redirects, outcomes, default)


#: Octets of a default outcome that says nothing beside what it is, at most.
_PLAIN: Final = 8


def _outcomes(attach: Attach) -> tuple[tuple[Symbol, ...], bytes]:
    """Which outcomes a sender's source permits, and the encoded one that stands for others (§3.5.3)."""
    source = attach.source
    if attach.role is Role.RECEIVER or not isinstance(source, Source) or not source.outcomes:
        return (), b""
    return source.outcomes, b"" if source.default_outcome is None else encode_composite(source.default_outcome)


def _made(
    makes_source: bool, makes_target: bool, redirects: bool, outcomes: tuple[Symbol, ...], default: bytes
) -> Attach:
    return Attach(
        name="",
        handle=0,
        role=Role.SENDER,
        source=Source(dynamic=makes_source, outcomes=outcomes, default_outcome=Extension(default) if default else None),
        target=Target(dynamic=makes_target),
        desired_capabilities=(REDIRECT,) if redirects else (),
    )


_alike = lru_cache(maxsize=256)(_made)


def _known(capabilities: Iterable[Symbol], *known: Symbol) -> tuple[Symbol, ...]:
    """Those of the capabilities that mean something here; our own objects, as there are many of the peers'."""
    return tuple(each for each in known if each in capabilities)


def size_of_open(opened: Open) -> int:
    """Octets that the names of a container take, as far as they count."""
    return _counted(opened.container_id, opened.hostname)


def size_of_attach(attach: Attach) -> int:
    """Octets that stay of an `attach`, as far as they count."""
    termini = (attach.source, attach.target)
    addresses = [each.address for each in termini if isinstance(each, Source | Target)]
    outcomes, default = _outcomes(attach)
    if attach.role is Role.RECEIVER and isinstance(attach.source, Source) and attach.source.default_outcome is not None:
        default = encode_composite(attach.source.default_outcome)
    return _counted(attach.name, *addresses, *outcomes, default)


def _counted(*kept: str | bytes | None) -> int:
    return max(0, sum(sys.getsizeof(each) for each in kept if each) - FREE)


def remember(core: Core, record: ConnectionRecord, octets: int) -> bool:
    """So many octets more stay of what a peer has said, for as long as its connection; whether they may."""
    if is_too_much(core, record, octets):
        return False
    record.remembered += octets
    record.account.add(octets)
    return True


def forget(record: ConnectionRecord, taken: IncomingLink | OutgoingLink | ConnectionRecord) -> None:
    """Nothing stays of a link, or of the connection itself."""
    record.account.add(-taken.remembered)
    taken.remembered = 0


def is_too_much(core: Core, record: ConnectionRecord, octets: int) -> bool:
    """Whether a peer may not have so many octets more."""
    budget, would_hold = core.budget, record.account.used + octets
    if not octets or would_hold <= core.memory.share:
        return False
    return would_hold > budget.limit // SHARES or budget.used + octets > budget.limit
