"""What the ttl leaves: how long a message may still live after its time here."""


def remaining_ttl(ttl_ms: int, elapsed_seconds: float) -> int | None:
    """The ttl that a message leaves with (§3.2.1).

    Args: ttl_ms: as it came, milliseconds.
        elapsed_seconds: since its first frame came.
    Returns: milliseconds, 1..ttl_ms; None when the message has expired, as one with a ttl of 0 has on arrival.
    """
    # A clock read twice within its grain may say "before"; that gives nothing back.
    elapsed_ms = max(0.0, elapsed_seconds * 1000)
    if elapsed_ms >= ttl_ms:
        return None
    return ttl_ms - int(elapsed_ms)  # rounded up: a message that is still alive never leaves with 0
