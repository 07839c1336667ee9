"""How soon something may be done again that gathers what it does by waiting."""


class Pace:
    """Done at once after a quiet time; while it goes on, each wait is twice as long as the one before.

    So a single change has its effect at once, and a mesh that starts, or falls apart, does not cost each of its routers
    as much for each change as for all of them.
    """

    __slots__ = ("_done_at", "_least", "_wait")

    def __init__(self, least: float) -> None:
        """Args: least: the first wait, seconds."""
        self._least = least
        self._wait = least
        self._done_at = float("-inf")

    def next(self, now: float) -> float:
        """When it may be done."""
        return max(now, self._done_at + self._wait)

    def done(self, now: float, most: float) -> None:
        """It is done now. Args: most: the longest wait that may follow, seconds; the first one may always."""
        is_quiet = now > self._done_at + 2 * self._wait
        self._wait = self._least if is_quiet else max(self._least, min(2 * self._wait, most))
        self._done_at = now
