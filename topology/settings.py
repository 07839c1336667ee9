"""Settings of the link-state protocol: times in seconds, sizes in octets."""

from dataclasses import dataclass

from amqpmesh.topology.throttling import TokenBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings. The defaults suit meshes of up to some thousand routers on networks with a latency of
    up to 100 ms."""

    area: str = ""
    """The area of this router; adjacencies are within one area."""

    hello: float = 1.0
    """The longest time between two HELLOs on an adjacency. Each is up to a quarter earlier, so that they spread."""
    hold: float = 3.0
    """The silence after which neighbours take this router for dead: three HELLOs."""

    max_age: float = 300.0
    """The age at which a link state that was not renewed is forgotten, with the addresses of its origin."""
    delta_time: float = 0.02
    """The time for which changes of addresses gather; the first one after an idle time is sent at once."""
    link_time: float = 0.05
    """The time between two link states of this router; the first one after an idle time is sent at once. It grows: see
    `pace_time`."""
    flood_time: float = 0.01
    """The time for which records for a neighbour gather; the first one after an idle time is sent at once."""
    path_time: float = 0.01
    """The time between two computations of the paths; the first one after an idle time runs at once. It grows: see
    `pace_time`."""
    pace_time: float = 0.0005
    """While changes go on, each wait of `link_time` or `path_time` is twice the one before, up to this time for each
    router of the mesh: half a second for a thousand routers."""
    acknowledge_time: float = 0.05
    """The time for which acknowledgements wait for records that go the same way."""
    retransmit_time: float = 1.0
    """The time after which unacknowledged records are sent again. It doubles each time, up to eight times
    its length."""
    introduce_time: float = 0.25
    """The time for which a summary waits for the database of another neighbour; otherwise both would send the same
    records."""
    load_time: float = 5.0
    """The longest time for which a new adjacency waits for the neighbour's database before it is advertised."""
    gap_time: float = 0.25
    """The time for which a missing delta can be late before the full state is requested."""

    part: int = 512
    """Addresses that are updated in one go. Larger changes, as when a router with a million addresses appears, are
    updated in parts."""
    part_time: float = 0.005
    """The time between two such parts, for other work."""

    link_rate: float = 5.0
    """Newer link states of one origin that are accepted in a second. Of more, the last one is accepted when it is sent
    again."""
    link_burst: int = 40
    """Newer link states that are accepted at once. A router sends at most a quarter of that, so that it can restart
    again and again, and at most four fifths of `link_rate`."""
    address_rate: int = 1024 * 1024
    """Octets of newer addresses of one origin that are accepted in a second; each record counts at least
    `address_least`."""
    address_burst: int = 16 * 1024 * 1024
    """Octets that are accepted at once: a whole full state. A router sends at most three quarters of that, and at most
    four fifths of `address_rate`."""
    address_least: int = 4096
    """The octets that a short delta counts: one in each `delta_time` takes a fifth of `address_rate`."""

    penalty: float = 1.0
    """The penalty for the loss of an adjacency; it decays by half in each `penalty_half_life`."""
    penalty_half_life: float = 10.0
    """The time in which a penalty decays by half."""
    penalty_suppress: float = 2.5
    """An adjacency that comes up with this penalty or more is not advertised..."""
    penalty_reuse: float = 1.0
    """... until the penalty has decayed to this."""
    penalty_most: float = 8.0
    """The highest penalty: a stable neighbour is advertised after three half-lives at most."""

    window: int = 256 * 1024
    """Octets of records sent to one neighbour and not yet acknowledged."""
    max_origins: int = 100_000
    """Routers whose records are kept; records of others are dropped, counted as `full`."""
    max_origin_octets: int = 16 * 1024 * 1024
    """Octets of the full state of an origin's addresses. Its deltas can take as much, and so can the next
    full state."""
    max_octets: int = 256 * 1024 * 1024
    """Octets of all records. Beyond that, only link states of known routers and this router's own records
    are accepted."""
    max_waiting: int = 256
    """Records that wait for the certificate that they name."""
    compact: int = 16 * 1024
    """A full state replaces the deltas once they are larger than it, and larger than this."""

    @property
    def links(self) -> TokenBucket:
        """The limit for newer link states, by number."""
        return TokenBucket(self.link_rate, self.link_burst)

    @property
    def addresses(self) -> TokenBucket:
        """The limit for newer addresses, by octets."""
        return TokenBucket(self.address_rate, self.address_burst)

    def __post_init__(self) -> None:
        """Check the settings that pace timers: without them, timers would fire without a pause.

        Raises: ValueError: a time, a rate or a count that is not above 0.
        """
        for name in (
            "hello",
            "hold",
            "max_age",
            "retransmit_time",
            "load_time",
            "gap_time",
            "part",
            "part_time",
            "link_rate",
            "link_burst",
            "address_rate",
            "address_burst",
            "penalty_half_life",
            "penalty_reuse",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")
