"""The page about the pipeline: its settings are those that are made, its commands are ones that there are."""

import re
import shlex

from amqpmesh.pipeline.session import EVERYWHERE, LOCAL, PARTITIONS
from amqpmesh.router.cli.commands import parser
from tests.docs.pages import ROOT, blocks

PAGE = "pipeline.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")


def test_the_settings_are_those_that_are_made() -> None:
    rows = re.findall(r"^\| `(spark[\w.]+)` \| (.+?) \| (.+?) \|", TEXT, re.MULTILINE)
    told = {key: (value.strip("`"), on) for key, value, on in rows}
    expected = {key: (value, "any master") for key, value in EVERYWHERE.items()}
    expected |= {key: (value, "`local`") for key, value in LOCAL.items()}
    expected["spark.sql.shuffle.partitions"] = (f"{PARTITIONS} for each core", "`local`")
    assert told == expected


def test_every_command_has_arguments_that_make_sense() -> None:
    lines = [line for block in blocks(PAGE, "sh") for line in block.text.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line) for line in lines if " pipeline JOB " in line]
    assert len(commands) == 4
    for words in commands:
        arguments = words[words.index("pipeline") :]
        assert parser().parse_args(["run" if each == "JOB" else each for each in arguments]).job == "run"
