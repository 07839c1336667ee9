"""Text that is safe for a terminal: peers choose much of it, and must not control the terminal."""

ENDS_AND_TABS = "\n\t"


def printable(text: str, besides: str = "") -> str:
    """Escape characters that cannot be printed, but for those in `besides`."""
    return "".join(each if each.isprintable() or each in besides else f"\\u{ord(each):04x}" for each in text)
