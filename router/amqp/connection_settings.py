"""Settings of a connection endpoint: its name, its limits and its time-outs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.standard.performatives import Open, encode_performative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Value

#: The property of our `open` that names this software (§2.7.1).
PRODUCT: Final = Symbol("product")
OURS: Final = "amqpmesh"

#: The longest time that an `open` can name, in milliseconds.
_MAX_MILLISECONDS: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectionSettings:
    """Settings of a connection endpoint. Connections of one listener share an object, which equals only itself."""

    container_id: str
    #: Octets of a frame that we take; 512 at least.
    max_frame_size: int = 16_384
    #: The highest channel, and the highest handle on each session, that the peer may use.
    channel_max: int = 255
    handle_max: int = 4_095
    #: Transfer frames of one session that may be unreleased.
    window: int = 256
    #: The same for the first session, while its frames are small and leave at once, if that is more than its window.
    small_window: int = 0
    #: Transfer frames of all sessions together that may be unreleased. `small_window` and the least window of each
    #: session may exceed it.
    connection_window: int = 1024
    #: Seconds without a frame after which we close the connection; None: never. `open` announces half of it (§2.4.5).
    idle_time_out: float | None = 16.0
    #: Seconds; a peer that demands a shorter idle time-out is refused.
    minimum_idle_time_out: float = 0.1
    #: Seconds that the peer has to answer our `close`.
    close_time_out: float = 5.0
    #: Seconds that the peer has to send its `open`.
    open_time_out: float = 10.0
    #: Values that a performative of the peer may hold, its own fields included.
    max_values: int = FEW_VALUES
    properties: Mapping[Symbol, Value] | None = None
    offered_capabilities: Sequence[Symbol] = ()
    #: Capabilities that we use where the peer offers them, and no others (§2.7.1).
    desired_capabilities: Sequence[Symbol] = ()
    #: The first transfer-id and the first delivery-id of each session.
    initial_outgoing_id: int = 0
    initial_delivery_id: int = 0

    @property
    def announced_ms(self) -> int | None:
        """The idle time-out to announce, milliseconds: half of ours, to allow for late frames (§2.4.5)."""
        if self.idle_time_out is None:
            return None
        return min(max(1, int(self.idle_time_out * 500)), _MAX_MILLISECONDS)


def encoded_open(settings: ConnectionSettings, hostname: str | None, *, compact: bool) -> bytes:
    """Return our `open` (§2.7.1). Args: hostname: the peer's. compact: as of `encode_performative`."""
    encode = _encoded_once if settings.properties is None else _encoded_open
    return encode(settings, hostname, compact)


def _encoded_open(settings: ConnectionSettings, hostname: str | None, compact: bool) -> bytes:
    opened = Open(
        container_id=settings.container_id,
        hostname=hostname,
        max_frame_size=settings.max_frame_size,
        channel_max=settings.channel_max,
        idle_time_out=settings.announced_ms,
        offered_capabilities=tuple(settings.offered_capabilities),
        desired_capabilities=tuple(settings.desired_capabilities),
        properties={PRODUCT: OURS, **(settings.properties or {})},
    )
    return encode_performative(opened, compact=compact)


#: All connections of a listener say the same. Properties, which only a client has, cannot be compared in a cache.
_encoded_once = lru_cache(maxsize=256)(_encoded_open)
