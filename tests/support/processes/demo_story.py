"""The lines of `amqpmesh demo`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# By B, which costs less; but where that is slow to start, they go by C when it has.
STORY: Final = (
    r"five routers start, each in a process; paths: A-B-D-E and A-C-D-E",
    r"[\d,]+ messages go from A to E, each to be accepted by the receiver",
    r"they go through (?P<victim>[BC]): its \$management counts [\d,]+ relayed messages",
    r"{victim} is killed \(SIGKILL, process \d+\) with [\d,]+ messages in flight",
    r"they go through {other}; [\d,]+ are sent again",
    r"{victim} is started again, with the same id",
)
AND_THEN: Final = (  # each or not: routers may be slow to start, and nothing need be in doubt
    r"they go through {victim} again",
    r"[\d,]+ in doubt were sent again; [\d,]+ arrived twice, dropped by message-id",
    r"[\d,]+ were not accepted, and were sent again",
)
SUMMARY: Final = r"sent ([\d,]+) accepted \1 lost 0 twice 0 longest pause \d+\.\d+ m?s"


def check(lines: Sequence[str]) -> None:
    """Assert that they tell of a run without losses."""
    *told, last = lines
    assert re.fullmatch(SUMMARY, last), last
    said = []
    for line in told:
        found = re.fullmatch(r" *\d+\.\d s  (\S.*)", line)
        assert found, line
        said.append(found[1])
    assert len(said) >= len(STORY)
    victim = other = ""
    for pattern, line in zip(STORY, said, strict=False):
        found = re.fullmatch(pattern.replace("{victim}", victim).replace("{other}", other), line)
        assert found, line
        if "victim" in found.groupdict():
            victim = found["victim"]
            other = "C" if victim == "B" else "B"
    for line in said[len(STORY) :]:
        assert any(re.fullmatch(pattern.replace("{victim}", victim), line) for pattern in AND_THEN), line
