"""What the protocol can be told: times in seconds, sizes in octets."""

from dataclasses import dataclass

from amqpmesh.topology.throttling import TokenBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The defaults suit meshes of up to some thousand routers on networks of up to 100 ms."""

    area: str = ""
    """The area of this router; adjacencies are within one area."""

    hello: float = 1.0
    """Between two HELLOs on an adjacency, at most; they come up to a quarter earlier, so that they spread."""
    hold: float = 3.0
    """The silence after which neighbours are to take this router as gone: three HELLOs."""

    max_age: float = 300.0
    """A link state that has not been renewed for so long is forgotten, and its origin's addresses with it."""
    delta_time: float = 0.02
    """Changes of addresses gather for so long; the first after a quiet time does not wait."""
    link_time: float = 0.05
    """Between two link states of this router; the first after a quiet time does not wait. It grows: `pace_time`."""
    flood_time: float = 0.01
    """Records for a neighbour gather for so long; the first after a quiet time does not wait."""
    path_time: float = 0.01
    """Between two computations of the paths; the first after a quiet time does not wait. It grows: `pace_time`."""
    pace_time: float = 0.0005
    """While changes go on, each wait of `link_time` or `path_time` is twice the one before, up to so much for each
    router of the mesh: half a second where there are a thousand."""
    acknowledge_time: float = 0.05
    """Acknowledgements wait so long for records that go the same way."""
    retransmit_time: float = 1.0
    """Records that are not acknowledged are sent again after so long, then after twice that, up to eight times."""
    introduce_time: float = 0.25
    """A summary waits so long for the database that another neighbour is sending, or both would send the same."""
    load_time: float = 5.0
    """How long a new adjacency waits for the neighbour's database before it is advertised all the same."""
    gap_time: float = 0.25
    """How long a delta that is missing may be late before the full state is asked for."""

    part: int = 512
    """Addresses that change in one go: of more at a time, as when a router with a million comes or goes, the others
    follow in parts."""
    part_time: float = 0.005
    """Between two such parts, for what else is to be done."""

    link_rate: float = 5.0
    """Newer link states of one origin that are taken in a second; of more, the last one is taken when it is resent."""
    link_burst: int = 40
    """So many may come at once. A router keeps itself to a quarter of that, so that it can start again and again, and
    to four fifths of `link_rate`."""
    address_rate: int = 1024 * 1024
    """Octets of newer addresses of one origin that are taken in a second; none counts less than `address_least`."""
    address_burst: int = 16 * 1024 * 1024
    """So many may come at once: a whole full state. A router keeps itself to three quarters of that, and to four fifths
    of `address_rate`."""
    address_least: int = 4096
    """What a short delta counts: one in each `delta_time` takes a fifth of `address_rate`."""

    penalty: float = 1.0
    """What a loss of an adjacency counts, in losses; it decays by half in each `penalty_half_life`."""
    penalty_half_life: float = 10.0
    """How long it takes for a penalty to be half of what it was."""
    penalty_suppress: float = 2.5
    """An adjacency that comes up while its neighbour has so much or more is not advertised..."""
    penalty_reuse: float = 1.0
    """... until it has no more than this."""
    penalty_most: float = 8.0
    """It never has more: a neighbour that stays is advertised after three half-lives at most."""

    window: int = 256 * 1024
    """Octets of records sent to one neighbour and not yet acknowledged."""
    max_origins: int = 100_000
    """Routers whose records are kept; others are dropped, counted as `full`."""
    max_origin_octets: int = 16 * 1024 * 1024
    """What the full state of an origin's addresses may take; deltas may take as much, and the next full state."""
    max_octets: int = 256 * 1024 * 1024
    """What all records may take together; of more, link states of known routers are taken, and this router's own."""
    max_waiting: int = 256
    """Records that wait for the certificate that they name."""
    compact: int = 16 * 1024
    """Deltas give way to a full state when they have grown beyond that state, and beyond this."""

    @property
    def links(self) -> TokenBucket:
        """Of newer link states, by number."""
        return TokenBucket(self.link_rate, self.link_burst)

    @property
    def addresses(self) -> TokenBucket:
        """Of newer addresses, by octets."""
        return TokenBucket(self.address_rate, self.address_burst)

    def __post_init__(self) -> None:
        """Check what would let timers never rest.

        Raises: ValueError: a time of 0 or less that has to pass, or a rate of nothing.
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
