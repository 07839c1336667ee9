"""A picture of `amqpmesh demo`: `python -m docs.capture` runs it on a terminal, and writes `docs/files/demo.svg`."""

import io
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "files" / "demo.svg"
COMMAND = "amqpmesh demo"
COLUMNS, LINES = 80, 30

THEME = TerminalTheme(
    (20, 24, 29),
    (214, 221, 228),
    [(20, 24, 29), (255, 123, 130), (120, 200, 120), (240, 163, 94), (108, 178, 255), (200, 150, 255), (90, 200, 200),
     (214, 221, 228)],
)  # fmt: skip

# Like rich's own picture, but with fonts of the reader's system: a picture on a page must not fetch fonts.
PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img">
<title>The output of amqpmesh demo on a terminal</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the demo, and draw its last screen."""
    screen = screen_of(run())
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="standard")
    console.print(Text(f"$ {COMMAND}"))
    for line in screen:
        console.print(Text.from_ansi(line))
    svg = console.export_svg(title=COMMAND, theme=THEME, code_format=PICTURE, unique_id="demo")
    FILE.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")


def run() -> str:
    """Run the demo on a terminal. Returns: all its output."""
    read, write = os.openpty()
    termios.tcsetwinsize(write, (LINES, COLUMNS))
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, "-m", *COMMAND.split()], cwd=ROOT, env=environment, stdout=write, stderr=write
    )
    os.close(write)
    shown = b"".join(iter(lambda: _read(read), b""))
    if process.wait() != 0:
        raise SystemExit(shown.decode())
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the demo has ended
        return b""


def screen_of(shown: str) -> list[str]:
    """Return the lines of the last screen. Of terminals' commands it knows only those that the demo uses: go up some
    lines, and clear the screen below.
    """
    lines: list[str] = []
    for up, text in _parts(shown.replace("\r\n", "\n")):
        if up:
            del lines[-up:]
        lines.extend(text.splitlines())
    return lines


def _parts(shown: str) -> Iterator[tuple[int, str]]:
    first, *rest = re.split(r"\x1b\[(\d+)A\r\x1b\[J", shown)
    yield 0, first
    for up, text in zip(rest[::2], rest[1::2], strict=True):
        yield int(up), text


if __name__ == "__main__":
    main()
