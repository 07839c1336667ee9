"""The page about meshes in tests: its test passes, its program prints what is shown, its table is complete."""

import re
import subprocess
import sys
from pathlib import Path

from amqpmesh.topology.simulation.mesh import Mesh
from amqpmesh.topology.simulation.nodes import Node
from tests.docs.pages import ROOT, blocks
from tests.support.programs import ENVIRONMENT, PATIENCE

PAGE = "simulation.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_test_passes(tmp_path: Path) -> None:
    text, _ = (block.text for block in blocks(PAGE, "python"))
    (tmp_path / "test_outage.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plugin = "amqpmesh.topology.simulation.fixtures"
    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin, str(tmp_path), cwd=tmp_path)


def test_the_program_prints_what_is_shown() -> None:
    _, program = (block.text for block in blocks(PAGE, "python"))
    (shown,) = (block.text for block in blocks(PAGE, "text"))
    assert run("-c", program) == shown


def test_the_table_names_all_that_a_mesh_can_do_and_nothing_else() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named | {"unsettled"} == {name for name in dir(Mesh()) if not name.startswith("_")}
    assert {"connect", "statistics", "is_running", "is_frozen", "sender", "receiver", "requester"} <= set(dir(Node))
