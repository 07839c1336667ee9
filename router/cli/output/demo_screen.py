"""The output of `amqpmesh demo`: lines and, on a terminal, a moving picture of the mesh below them."""

import os
import shutil
import time
from dataclasses import dataclass
from typing import Final, TextIO

from amqpmesh.router.cli.output.terminal import printable

WIDTH: Final = 72
"""Columns of the picture."""

_ENOUGH_LINES: Final = 12

_STYLES: Final = {"": "", "good": "\x1b[32m", "bad": "\x1b[31m", "faint": "\x1b[2m", "strong": "\x1b[1m"}
_PLAIN: Final = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class MiddleRouter:
    """The state of one of the two routers in the middle."""

    router: str
    state: str = ""
    """Shown instead of the rate: `killed`, `starts`."""
    relayed: int = 0
    """Deliveries, as last reported."""
    rate: float = 0.0
    """Deliveries a second."""

    @property
    def words(self) -> str:
        """The text beside the router."""
        now = self.state or (f"{self.rate:,.0f}/s" if self.rate >= 1 else "")
        return f"{self.relayed:>9,} relayed  {now}".rstrip()

    @property
    def style(self) -> str:
        """The style of the router."""
        return "bad" if self.state == "killed" else "good" if self.rate >= 1 else "faint"


@dataclass(frozen=True, slots=True)
class View:
    """The state of the demo."""

    upper: MiddleRouter
    lower: MiddleRouter
    done: int
    total: int


class DemoScreen:
    """Lines on a stream, each with the seconds since the start. On a terminal the picture moves below them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._drawn: list[str] = []
        size = shutil.get_terminal_size()
        self.is_live = (
            stream.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
            and (stream.encoding or "").lower().startswith("utf")
            and size.columns > WIDTH
            and size.lines >= _ENOUGH_LINES
        )
        self._coloured = self.is_live and not os.environ.get("NO_COLOR")

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the picture."""
        line = f"{time.monotonic() - self._began:5.1f} s  {printable(text)}"
        drawn = self._drawn
        self._write([self._styled(line, style)], [])
        if drawn:
            self._write([], drawn)

    def conclude(self, text: str, *, good: bool) -> None:
        """Print the last line, below the picture."""
        self._drawn = []
        self._write([self._styled(printable(text), "good" if good else "bad")], [])

    def draw(self, view: View) -> None:
        """Show the current state; without a terminal do nothing."""
        if self.is_live:
            self._write([], [self._styled(text, style) for text, style in picture(view)])

    def clear(self) -> None:
        """Remove the picture."""
        self._write([], [])

    def _write(self, lines: list[str], drawn: list[str]) -> None:
        """Replace the picture by lines, with another picture below them."""
        up = f"\x1b[{len(self._drawn)}A\r\x1b[J" if self._drawn else ""
        self._drawn = drawn
        self._stream.write(up + "".join(f"{line}\n" for line in [*lines, *drawn]))
        self._stream.flush()

    def _styled(self, text: str, style: str) -> str:
        return f"{_STYLES[style]}{text}{_PLAIN}" if style and self._coloured else text


def picture(view: View) -> list[tuple[str, str]]:
    """Return the picture's lines, each with its style."""
    upper, lower = view.upper, view.lower
    return [
        ("", ""),
        (f"               ╭── {upper.router} ──╮          {upper.words}", upper.style),
        ("   sender ─ A ─┤       ├─ D ─ E ─ receiver", ""),
        (f"               ╰── {lower.router} ──╯          {lower.words}", lower.style),
        ("", ""),
        (f"   {bar(view)}", ""),
        ("", ""),
    ]


def bar(view: View) -> str:
    """Return the progress bar."""
    from tqdm import tqdm  # imported here: runs without a terminal do not need it

    # No rate: sending waits for events of the story, so a mean says nothing about the routers.
    text: str = tqdm.format_meter(
        view.done,
        view.total,
        0.0,
        ncols=WIDTH - 3,
        prefix="accepted",
        bar_format=f"{{l_bar}}{{bar}}| {view.done:,} of {view.total:,}",
    )
    return text
