"""Code blocks of the pages: each runs as a reader would save it, or names the reason why it does not."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from amqpmesh.router.cli.registry import parser
from amqpmesh.router.config.file import load
from tests.docs.pages import ROOT, blocks, fences, is_whole, pieces, steady
from tests.docs.processes import environment
from tests.support.processes.programs import ENVIRONMENT, PATIENCE, programs

PAGES: Final = (
    "../README.md",
    "../CONTRIBUTING.md",
    *sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")),
)

CODE: Final = ("python", "console", "sh", "toml")
"""Languages that a reader saves or types; `text` is what comes of it."""

RUN: Final = {
    ("../README.md", "console"): "test_readme",
    ("../README.md", "python"): "test_readme",
    ("analyse/answers.md", "toml"): "test_pipeline",
    ("analyse/pipeline.md", "python"): "test_pipeline",
    ("analyse/pipeline.md", "sh"): "test_pipeline",
    ("analyse/jobs.md", "python"): "test_pipeline",
    ("analyse/jobs.md", "sh"): "test_pipeline",
    ("analyse/spark-connector.md", "python"): "test_spark_connector",
    ("analyse/spark-connector.md", "toml"): "test_blocks",
    ("develop/embedding.md", "python"): "test_blocks",
    ("develop/messages.md", "python"): "test_blocks",
    ("develop/simulation.md", "python"): "test_blocks",
    ("operate/addresses.md", "toml"): "test_blocks",
    ("operate/audit.md", "toml"): "test_blocks",
    ("operate/coming-from-dispatch.md", "sh"): "test_coming_from_dispatch",
    ("operate/configuration.md", "toml"): "test_blocks",
    ("operate/draining.md", "toml"): "test_blocks",
    ("operate/exports.md", "console"): "test_policy",
    ("operate/exports.md", "toml"): "test_policy",
    ("operate/changing.md", "sh"): "test_management",
    ("operate/http.md", "sh"): "test_http",
    ("operate/http.md", "toml"): "test_blocks",
    ("operate/install.md", "sh"): "test_installed",
    ("operate/management.md", "python"): "test_blocks",
    ("operate/management.md", "sh"): "test_blocks",
    ("operate/mesh.md", "sh"): "test_operations",
    ("operate/mesh.md", "toml"): "test_blocks",
    ("operate/duplicates.md", "toml"): "test_blocks",
    ("operate/metrics.md", "toml"): "test_blocks",
    ("operate/page.md", "toml"): "test_blocks",
    ("operate/policy.md", "console"): "test_policy",
    ("operate/policy.md", "toml"): "test_policy",
    ("operate/policy-push.md", "toml"): "test_policy",
    ("operate/tenant-limits.md", "toml"): "test_policy",
    ("operate/tokens.md", "toml"): "test_policy",
    ("operate/security.md", "console"): "test_operations",
    ("operate/resumption.md", "python"): "test_blocks",
    ("operate/tracing.md", "toml"): "test_blocks",
    ("operate/websocket.md", "python"): "test_blocks",
    ("operate/websocket.md", "toml"): "test_blocks",
    ("start/tutorial.md", "console"): "test_tutorial",
    ("start/tutorial.md", "python"): "test_tutorial",
    ("start/tutorial-tls.md", "console"): "test_tutorial",
    ("start/tutorial-tls.md", "python"): "test_tutorial",
    ("start/tutorial-teams.md", "console"): "test_teams",
    ("start/tutorial-teams.md", "toml"): "test_teams",
}
"""The tests that run the blocks of a page, by language."""

NOT_RUN: Final = 8
"""Blocks at most that a comment before them says are not run, and why."""

PIECE: Final = "        ...  # a piece goes here\n"
"""In the program of a page, the place of those of its blocks that are none."""


def test_every_block_is_run_or_says_why_it_is_not() -> None:
    reasons = []
    for page in PAGES:
        found = blocks(page)
        assert len(found) == fences(page), f"{page}: a fence has no language, or does not end"
        for block in found:
            if block.unrun is not None:
                assert block.language in CODE
                assert len(block.unrun) > 10, (page, block.heading)
                reasons.append(block.unrun)
            elif block.language in CODE:
                tests = ROOT / "tests" / "docs" / f"{RUN[page, block.language]}.py"
                assert f'"{page}"' in tests.read_text(encoding="utf-8"), (page, block.heading)
            else:
                assert block.language == "text" or block.language.startswith("{"), block  # output, or for Sphinx
    assert len(reasons) <= NOT_RUN, reasons


# ------------------------------------------------------------------------------------------------------------ programs

_EACH: Final = """
import json, os, runpy, sys, traceback
import pytest, trio, amqpmesh.topology.simulation.mesh  # once for all programs: the imports take most of their time

children = {}
for folder, name in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        status = 1
        try:
            os.chdir(folder)
            sys.path[0] = folder
            output = os.open("output", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if name.startswith("test_"):
                status = pytest.main(["-q", "-p", "no:cacheprovider", name])
            else:
                runpy.run_path(name, run_name="__main__")
                status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    children[child] = folder
failed = [children[child] for child, status in (os.wait() for _ in children) if status]
print(json.dumps(failed))
"""
"""Runs programs and tests, each in its folder and in a process of its own, all at once."""


PROGRAMS: Final = ("develop/embedding.md", "develop/messages.md", "operate/management.md", "develop/simulation.md")
"""Pages whose programs run here; the first has the frame for the pieces of the second."""


def saved(page: str) -> list[tuple[str, str, str]]:
    """Return the page's blocks as files: name, text, and the output that the page shows."""
    found = []
    frame = next(block.text for block in blocks(PROGRAMS[0], "python") if PIECE in block.text)
    for block, shown in pieces(page):
        text = block.text
        if not is_whole(text):
            text = frame.replace(PIECE, textwrap.indent(text, " " * 8))
        name = re.match(r"# (\w+\.py)\n", block.text)
        found.append((name[1] if name else "program.py", text, shown))
    return found


def test_every_program_prints_what_is_shown_and_every_test_passes(tmp_path: Path) -> None:
    shown = {}
    for page in PROGRAMS:
        for number, (name, text, output) in enumerate(saved(page)):
            folder = tmp_path / f"{Path(page).stem}-{number}"
            folder.mkdir()
            (folder / name).write_text(text, encoding="utf-8")
            if page == "operate/management.md":  # the page says so in a sentence
                found = re.search(r"prints `(.+)`\.", (ROOT / "docs" / page).read_text(encoding="utf-8"))
                assert found
                output = f"{found[1]}\n"
            shown[folder, name] = output
    assert len(shown) > 12
    each = json.dumps([(str(folder), name) for folder, name in shown])
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", _EACH, each],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    printed = {folder: (folder / "output").read_text(encoding="utf-8") for folder, _ in shown}
    assert json.loads(done.stdout) == [], printed
    for (folder, name), output in shown.items():
        if name.startswith("test_"):
            assert re.search(r"\d passed", printed[folder])
        else:
            assert without_names(printed[folder]) == without_names(output), folder.name


def without_names(text: str) -> str:
    """Return the output of a program without names that it generates."""
    return re.sub(r"link=\S+", "link=ID", steady(text))


def test_no_program_imports_what_it_does_not_use_or_uses_what_it_does_not_import(tmp_path: Path) -> None:
    for page in ("../README.md", *(page for page, language in RUN if language == "python")):
        for number, block in enumerate(blocks(page, "python")):
            if PIECE not in block.text and (is_whole(block.text) or page == "analyse/pipeline.md"):
                (tmp_path / f"{Path(page).stem}{number}.py").write_text(block.text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) > 15
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "E9,F", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout


# ------------------------------------------------------------------------------------------------------ configurations


@pytest.mark.parametrize(
    "page", [page for (page, language), run in RUN.items() if (language, run) == ("toml", "test_blocks")]
)
def test_every_configuration_is_right(page: str, tmp_path: Path) -> None:
    for heading, several in groupby(blocks(page, "toml"), lambda block: block.heading):
        file = tmp_path / "router.toml"
        text = "".join(block.text for block in several)  # blocks below one heading belong together
        file.write_text(text, encoding="utf-8")
        for name in re.findall(r'"([\w-]+\.(?:pem|key|toml|password))"', text):
            (tmp_path / name).touch()
        assert load(file), heading


# ------------------------------------------------------------------------------------------------------------ commands


def test_the_links_of_others_are_selected_with_jq(tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("NOT TESTED, missing: jq")
    (block,) = blocks("operate/management.md", "sh")
    with programs() as start:
        env = {**environment(tmp_path / "bin"), "AMQPMESH_URL": start.router()}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text], cwd=tmp_path, env=env, capture_output=True, timeout=PATIENCE
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_command_is_one_that_there_is() -> None:
    """The test includes commands that are not run."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console", "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                command = re.match(r"(?:\$ )?(?:amqpmesh|spark-submit .*\)\") ([^|<>&]+)", line)
                if command and (block.language == "sh" or line.startswith("$ ")):
                    found.append(parser().parse_args(shlex.split(command[1], comments=True)))
    assert len(found) > 30


def test_contributors_are_told_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = re.findall(r"^    make (\w+)", text, re.MULTILINE)
    assert len(targets) > 4
    for target in targets:
        assert f"\n{target}:" in makefile
