"""`ReceiverOptions`: the fields of a receiver's `attach`, and a check of the peer's answer (§2.7.3, §3.5.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.endpoint_setup import WHOLE_MAP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.kept_deliveries import KeptDeliveries

BUFFER: Final = 2 * 2**20
"""The default of `buffer`, in octets: 128 frames of 16 KiB."""

MAX_MESSAGE_SIZE: Final = 16 * 2**20
"""The default of the largest message, in octets."""

MAX_ULONG: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """Options of `LinkFactory.receiver` for its `attach`. Raises: CommandError: the size is invalid."""

    snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED
    rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST
    max_message_size: int = MAX_MESSAGE_SIZE
    source: Source | None = None
    filter: Mapping[Symbol, Value] | None = None
    desired_capabilities: Sequence[Symbol] = ()
    properties: Mapping[Symbol, Value] | None = None

    def __post_init__(self) -> None:
        whole("max_message_size", self.max_message_size, MAX_ULONG)

    def source_for(self, address: str | None) -> Source:
        """Return the source to ask for. Args: address: used unless `source` is given; None: a dynamic node."""
        if self.source is not None:
            return self.source
        filters = None if self.filter is None else dict(self.filter)
        return Source(address=address, dynamic=address is None, filter=filters)

    def attach(self, session: Session, name: str, source: Source, kept: KeptDeliveries | None = None) -> Link:
        """Send the `attach`. Args: kept: of a link that is to be resumed; None: it has no history."""
        named = None if kept is None else kept.next_map(session.connection.remote_max_frame_size)
        unsettled = {} if kept is None else kept.unsettled()
        link = session.attach(
            Terminus(name, Role.RECEIVER, {**unsettled}),
            source=source,
            unsettled=named,
            incomplete_unsettled=kept is not None and kept.leaves_out,
            offered_capabilities=() if kept is None else (WHOLE_MAP,),
            target=Target(),
            snd_settle_mode=self.snd_settle_mode,
            rcv_settle_mode=self.rcv_settle_mode,
            max_message_size=self.max_message_size or None,
            desired_capabilities=self.desired_capabilities,
            properties=self.properties,
        )
        for each in unsettled.values():
            each.link = link.flow_state
        return link

    def missing_from(self, attach: Attach, asked: Source) -> str | None:
        """Return a description of what the peer's source lacks (§3.5.3), for people; None: nothing.

        A dynamic node must have an address, or no sender could reach it. A filter must be applied, or other messages
        would arrive.
        """
        assert isinstance(attach.source, Source)
        if asked.dynamic and attach.source.address is None:
            return "the peer gives no address of a dynamic node"
        in_place = attach.source.filter or {}
        missing = [name for name, value in (self.filter or {}).items() if value is not None and name not in in_place]
        return f"the peer does not apply the filter {', '.join(missing)}" if missing else None
