"""The contents of a page: blocks of code, commands with their output, and log lines."""

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "examples" / "configurations"

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<unrun>[^\n]*) -->\n)?^```(?P<language>\w+|{[\w-]+})(?: [^\n]*)?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

# Texts that differ from run to run, or between a page and a test, which may use no fixed port.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r'(?<=INFO started ).*|(?<="started", ).*'), "KERNEL"),
    (re.compile(r"(?<=://)[\w.]+(:\d+)?"), "HOST"),
    (re.compile(r"(?<=\bconnection=)\d+"), "N"),
    (re.compile(r"(?<=\bup )\d+\.\d+(?= s$)"), "N"),
    (re.compile(r"(?<=_ssl\.c:)\d+"), "N"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"), "DATE"),
    (re.compile(r"\b[0-9a-f]{30,40}\b"), "SERIAL"),
)


class Block(NamedTuple):
    """A block of code, with the heading above it."""

    heading: str
    language: str
    text: str
    unrun: str | None = None
    """The reason why tests do not run the block: a comment before it, which readers do not see."""


class Command(NamedTuple):
    """A command line, and its output."""

    line: str
    output: list[str]


def blocks(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page of `docs`, in order. Args: page: its file. languages: of the blocks; none: all."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    headings = [(found.start(), found[1]) for found in _HEADING.finditer(_BLOCK.sub(lambda b: " " * len(b[0]), text))]
    return [
        Block(
            max((each for each in headings if each[0] < found.start()), default=(0, ""))[1],
            found["language"],
            found["text"],
            found["unrun"],
        )
        for found in _BLOCK.finditer(text)
        if not languages or found["language"] in languages
    ]


def pieces(page: str) -> list[tuple[Block, str]]:
    """Return each Python block of a page with the output that the page shows below it."""
    row = [*blocks(page, "python", "text"), Block("", "", "")]
    return [(a, b.text if b.language == "text" else "") for a, b in pairwise(row) if a.language == "python"]


def is_whole(text: str) -> bool:
    """Return whether a block is a whole program or test."""
    return re.search(r"^(trio|asyncio)\.run\(", text, re.MULTILINE) is not None or "async def test_" in text


def fences(page: str) -> int:
    """Return the number of blocks of all kinds in a page of `docs`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)) // 2


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a `console` block: each begins with a dollar sign."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *output = part.rstrip("\n").split("\n")
        yield Command(line, output)


def on_loopback(folder: Path) -> Path:
    """Copy the example configurations, with listeners on loopback and at free ports. Returns: the folder."""
    copy = shutil.copytree(CONFIGURATIONS, folder)
    for file in copy.glob("*.toml"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r'(?<=//)[\d.]+:\d+(?=")', "127.0.0.1:0", text), encoding="utf-8")
    return copy


def log_lines(page: str) -> set[str]:
    """Return the log lines in a page's `text` blocks, without their variable parts."""
    return {steady(line) for block in blocks(page, "text") for line in block.text.splitlines()}


def steady(line: str) -> str:
    """Return a line of output without its variable parts."""
    for pattern, word in _VARIES:
        line = pattern.sub(word, line)
    return line
