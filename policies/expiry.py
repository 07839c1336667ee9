"""The remaining lifetime of a message, by its ttl and by its absolute-expiry-time."""

from math import inf


def remaining_ttl(ttl_ms: int, elapsed_seconds: float) -> int | None:
    """Return the ttl that a message leaves with (§3.2.1).

    Args: ttl_ms: the ttl that the message arrived with, milliseconds. Not 0: callers take a ttl of 0 for none.
        elapsed_seconds: since its first frame arrived.
    Returns: milliseconds, 1..ttl_ms; None if the message has expired.
    """
    # A clock that is read twice within its resolution can go backwards; that does not extend the ttl.
    elapsed_ms = max(0.0, elapsed_seconds * 1000)
    if elapsed_ms >= ttl_ms:
        return None
    return ttl_ms - int(elapsed_ms)  # rounded up: a message that is still alive never leaves with 0


def seconds_left(expiry_ms: int, wall_clock: float) -> float:
    """Return the time that a message has left by its absolute-expiry-time (§3.2.4); not above 0: it has expired.

    Args: expiry_ms: milliseconds since 1970. 0 means no expiry: clients write it for that.
        wall_clock: seconds since 1970.
    """
    return inf if expiry_ms == 0 else expiry_ms / 1000 - wall_clock
