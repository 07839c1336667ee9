"""The tutorial, run from its first line to its last."""

import re
from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.docs.reader import Reader
from tests.support.processes.programs import programs

PAGES = ("start/tutorial.md", "start/tutorial-tls.md")
TEXT = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
BLOCKS = [block for page in PAGES for block in blocks(page, "python", "console")]


def test_every_step_shows_what_the_page_says(tmp_path: Path) -> None:
    with programs() as start:
        reader = Reader(tmp_path, start)
        for block in BLOCKS:
            reader.does(block)
    password = tmp_path / "examples" / "configurations" / "alice.password"
    assert password.stat().st_mode & 0o777 == 0o600


def test_every_block_is_done() -> None:
    assert TEXT.count("\n```") == 2 * len(BLOCKS)


def test_every_program_is_run() -> None:
    names = {block.text.split()[1] for block in BLOCKS if block.language == "python"}
    run = set(re.findall(r"^\$ python (\S+)$", TEXT, re.MULTILINE))
    assert names == run


def test_make_run_is_what_is_run_in_its_place() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\nrun: .venv/base .venv/kernel\n\t@$(BIN)/amqpmesh run $(ARGS)\n" in makefile
    assert "BIN := .venv/bin\n" in makefile
