"""What may be written to a terminal: peers choose much of it, and no peer may control the terminal."""

ENDS_AND_TABS = "\n\t"


def printable(text: str, besides: str = "") -> str:
    """The text, with what cannot be printed escaped, but for characters `besides`."""
    return "".join(each if each.isprintable() or each in besides else f"\\u{ord(each):04x}" for each in text)
