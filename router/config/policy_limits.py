"""The table `limits` of a tenant, and of a group, in a policy file."""

from __future__ import annotations

from amqpmesh.policies.limits import UNLIMITED, Allowance
from amqpmesh.router.config.limits import UINT_MAX
from amqpmesh.router.config.quantities import Memory, OctetRate, Octets, Rate
from amqpmesh.router.config.tables import Effect, Table, declared, setting, table


def _nothing(rate: float) -> str | None:
    return None if rate > 0 else "must be more than 0"


@table
class UserLimitsConfig(Table):
    """The limits of each user of a group."""

    EFFECT = Effect.AT_ONCE

    connections: int | None = setting(default=None, low=1)
    sessions: int | None = setting(default=None, low=1)
    links: int | None = setting(default=None, low=0)
    senders: int | None = setting(default=None, low=0)
    receivers: int | None = setting(default=None, low=0)
    dynamic: int | None = setting(default=None, low=0)
    unsettled: int | None = setting(default=None, low=1)
    message: Octets | None = setting(default=None, low=1)
    frame: Octets | None = setting(default=None, low=512, high=UINT_MAX)
    session_window: int | None = setting(default=None, low=1, high=2**31 - 1)
    waiting: Octets | None = setting(default=None, low=1)
    messages: Rate | None = setting(default=None, check=_nothing)
    octets: OctetRate | None = setting(default=None, check=_nothing)
    new_connections: Rate | None = setting(default=None, check=_nothing)
    attaches: Rate | None = setting(default=None, check=_nothing)
    messages_per_link: Rate | None = setting(default=None, check=_nothing)
    octets_per_link: OctetRate | None = setting(default=None, check=_nothing)
    burst: float | None = setting(default=None, low=0.01, high=3600.0)

    @property
    def allowance(self) -> Allowance:
        """The limits."""
        allowance = Allowance(**{item.name: getattr(self, item.name) for item in declared(type(self))})
        return UNLIMITED if allowance == UNLIMITED else allowance


@table
class TenantLimitsConfig(UserLimitsConfig):
    """The limits of a tenant."""

    connections_per_host: int | None = setting(default=None, low=1)
    memory: Memory | None = setting(default=None)
    messages_per_address: Rate | None = setting(default=None, check=_nothing)
    octets_per_address: OctetRate | None = setting(default=None, check=_nothing)
