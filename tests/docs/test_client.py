"""The page on the client, compared with the table of endings."""

import re
from pathlib import Path

from amqpmesh.router.client.links.endings import AFTER, ENDINGS, Ending, Stage

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "client.md").read_text(encoding="utf-8")
STAGES = [stage for stage in Stage if stage is not Stage.OVER]


def test_the_table_of_endings_is_the_one_of_the_code() -> None:
    head, rows = PAGE.split("| ending | ")[1].split("\n|---|---|---|---|---|---|\n")
    assert re.findall(r"\w+", head) == [stage.name for stage in STAGES]
    table = {}
    for row in rows.split("\n\n")[0].splitlines():
        name, *cells = (cell.strip(" `") for cell in row.strip("|").split("|"))
        table[name] = cells
    assert table == {
        ending.name: [ENDINGS[stage][ending].name.lower() if ending in ENDINGS[stage] else "" for stage in STAGES]
        for ending in Ending
    }


def test_every_stage_and_every_action_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \| [A-Z]", PAGE, flags=re.MULTILINE) == [stage.name for stage in Stage]
    assert re.findall(r"^\| (\w+) \| It .* \| `(\w+)` \|$", PAGE, flags=re.MULTILINE) == [
        (action.name.lower(), stage.name) for action, stage in AFTER.items()
    ]
