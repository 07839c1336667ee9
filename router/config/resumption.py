"""Links whose termini outlive them, so that peers may resume them (§2.6.13): the limits of what is kept for peers."""

from amqpmesh.router.config.tables import Effect, Table, setting, table


@table
class ResumptionConfig(Table):
    """The termini that are kept for peers which ask for it in their attach, and their deliveries."""

    EFFECT = Effect.NEW_LINKS

    #: The longest time that a terminus is kept without its link, seconds; 0: none is kept, and attaches say so.
    timeout: float = setting(default=60.0, low=0.0, high=86_400.0)
    #: The links whose termini would be kept, of all peers; and of one user, or host without a user.
    links: int = setting(default=10_000, low=0)
    links_per_user: int = setting(default=1_000, low=0)
    #: The unsettled deliveries of termini that are kept without a link.
    unsettled: int = setting(default=100_000, low=0)
    #: Octets of messages that are kept for receivers which may come back without all of them; of one message at most.
    keep: int = setting(default=2**24, low=0)
    keep_max: int = setting(default=2**16, low=0)
    #: Keep termini also for peers that have shown no user, from other hosts: a container-id proves nothing.
    anonymous: bool = setting(default=False)
