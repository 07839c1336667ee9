"""The README: its commands and programs print what it shows, and its statements hold."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.reader import Reader
from tests.support.processes.programs import programs

PAGE = "../README.md"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE_RUN = Block("", "console", "$ make run\n")


def test_the_two_commands_print_what_is_shown(tmp_path: Path) -> None:
    receive, send = blocks(PAGE, "console")
    with programs() as start:
        reader = Reader(tmp_path, start)
        # A reader of the page sees the receiver's output only after the sender has sent.
        for block in (MAKE_RUN, receive._replace(text=receive.text.splitlines()[0]), send, receive):
            reader.does(block)


@pytest.mark.parametrize(("number", "name"), [(0, "client.py"), (1, "gateway.py")])
def test_a_program_prints_what_is_said_below_it(tmp_path: Path, number: int, name: str) -> None:
    program = blocks(PAGE, "python")[number]
    said = re.search(r"prints (.*?)\.", TEXT.split(program.text)[1])
    assert said
    output = "\n".join(re.findall(r"`(.+?)`", said[1]))
    with programs() as start:
        reader = Reader(tmp_path, start)
        for block in (MAKE_RUN, program, Block("", "console", f"$ python {name}\n{output}\n")):
            reader.does(block)


def test_every_block_is_done() -> None:
    assert len(blocks(PAGE, "console")) == 2
    assert len(blocks(PAGE, "python")) == 2
    assert TEXT.count("\n```") == 2 * 4


def test_its_figures_are_those_of_the_page_on_performance() -> None:
    figures = re.search(r"^Three figures.*?\.$", TEXT, re.DOTALL | re.MULTILINE)
    assert figures
    said = re.findall(r"\d[\d,.]*(?:/s| us| KiB)", figures[0])
    assert len(said) == 4
    measured = (ROOT / "docs" / "internals" / "performance.md").read_text(encoding="utf-8")
    for figure in said:
        assert re.search(rf"\b{re.escape(figure.removesuffix(' us'))}\b", measured), figure


def test_it_names_targets_and_files_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", TEXT):
        assert f"\n{target}:" in makefile
    for file in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / file).is_file()


def test_it_can_be_read_at_one_go() -> None:
    assert len(TEXT.splitlines()) <= 120
