"""Containers outside the mesh that a router goes to by itself, for who asks for what is there."""

from collections.abc import Sequence

from amqpmesh.policies.redirect import pattern_refusal
from amqpmesh.router.config.tables import Table, setting, table


def _hosts_refusal(patterns: Sequence[str]) -> str | None:
    return pattern_refusal(patterns) or ("names one twice" if len(set(patterns)) < len(patterns) else None)


@table
class ElsewhereConfig(Table):
    """Where the router goes on demand, and how much of it there may be: its clients choose what it connects to."""

    domains: tuple[str, ...] = setting(default=(), check=_hosts_refusal)
    redirects: tuple[str, ...] = setting(default=(), check=_hosts_refusal)
    places: int = setting(default=64, low=1, high=10_000)
    nodes: int = setting(default=256, low=1, high=30_000)
    idle: float = setting(default=30.0, low=0.0, high=3600.0)
