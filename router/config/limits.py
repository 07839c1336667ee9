"""Limits of one connection, in either direction."""

from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.config.tables import Effect, Table, declared, setting, table

MAX_WORKERS = 64
"""Workers of a router: each is connected to each other one."""

MAX_AHEAD = 32
"""Deliveries that wait at one address ahead of its receivers' credit, beyond one of each sender."""

USHORT_MAX = 2**16 - 1
UINT_MAX = 2**32 - 1
ULONG_MAX = 2**64 - 1


@table
class Limits(Table):
    """The limits of one connection. A listener or connector without its own has those of the router."""

    EFFECT = Effect.NEW_CONNECTIONS

    idle_time_out: float = setting(default=16.0, low=0.0, high=UINT_MAX / 1000)
    max_frame_size: int = setting(default=32 * 2**10, low=512, high=UINT_MAX)
    max_message_size: int = setting(default=0, low=0, high=ULONG_MAX)
    channel_max: int = setting(default=63, low=0, high=USHORT_MAX)
    handle_max: int = setting(default=1023, low=0, high=UINT_MAX)
    session_window: int = setting(default=128, low=1, high=2**31 - 1)
    small_window: int = setting(default=512, low=1, high=2**31 - 1)
    narrow_window: int = setting(default=4, low=1, high=2**31 - 1)
    anonymous_window: int = setting(default=64, low=1, high=2**31 - 1)
    max_owed: int = setting(default=5000, low=1, high=2**31 - 1)
    output_backlog: int = setting(default=256 * 2**10, low=1)
    max_values: int = setting(default=FEW_VALUES, low=64)
    head_max: int = setting(default=64 * 2**10, low=1)
    open_time_out: float = setting(default=10.0, low=0.0, high=3600.0)
    close_time_out: float = setting(default=5.0, low=0.0, high=3600.0)
    minimum_idle_time_out: float = setting(default=0.1, low=0.0, high=3600.0)
    links: int = setting(default=4096, low=1)
    connection_window: int = setting(default=512, low=1)

    def limits(self) -> dict[str, int | float]:
        """Return the limits by name, as keywords for another table with limits."""
        return {item.name: getattr(self, item.name) for item in declared(Limits)}
