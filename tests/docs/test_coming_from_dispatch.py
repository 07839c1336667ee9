"""The page for those who come from another router: its commands, and what they print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import pytest

from amqpmesh.router.cli.main import main
from tests.docs.pages import blocks

PAGE: Final = "operate/coming-from-dispatch.md"


def test_the_file_of_the_page_becomes_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, shown = (block.text for block in blocks(PAGE, "text"))
    imports, checks, _ = (shlex.split(line)[1:] for line in blocks(PAGE, "sh")[0].text.splitlines())
    monkeypatch.chdir(tmp_path)
    Path(imports[1]).write_text(file)
    assert main(imports) == 5
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown.splitlines() if line.split() not in said] == []
    assert main(checks) == 0
