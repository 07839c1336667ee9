"""What `amqpmesh demo` tells, line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

STORY: Final = (
    r"five routers start, each a process; A-B-D-E is a way, A-C-D-E another",
    r"[\d,]+ messages go from A to E, each to be accepted by the receiver",
    r"they go by B: its \$management says that it has relayed [\d,]+",
    r"B is killed \(SIGKILL, process \d+\) with [\d,]+ messages on their way",
    r"they go by C, after a pause of \d+\.\d+ m?s; [\d,]+ are sent again",
    r"B is started again, with the same id",
)
AND_THEN: Final = (  # each or not: routers may be slow to start, and nothing need be in doubt
    r"they go by B again",
    r"[\d,]+ were in doubt, and sent again: [\d,]+ of them came twice",
    r"[\d,]+ were not accepted, and sent again",
)
SUMMARY: Final = r"sent ([\d,]+) accepted \1 lost 0 twice ([\d,]+) longest pause \d+\.\d+ m?s"


def check(lines: Sequence[str]) -> None:
    """They tell of a run in which nothing was lost."""
    *told, last = lines
    assert re.fullmatch(SUMMARY, last), last
    said = []
    for line in told:
        found = re.fullmatch(r" *\d+\.\d s  (\S.*)", line)
        assert found, line
        said.append(found[1])
    assert len(said) >= len(STORY)
    for pattern, line in zip(STORY, said, strict=False):
        assert re.fullmatch(pattern, line), line
    for line in said[len(STORY) :]:
        assert any(re.fullmatch(pattern, line) for pattern in AND_THEN), line
