"""The pytest plugin, in the tests of another project."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.programs import ENVIRONMENT, PATIENCE

PLUGIN = "amqpmesh.topology.simulation.fixtures"

TESTS = """
import pytest
import trio


async def test_virtual_time(mesh):
    await mesh.line("A", "B")
    await mesh.settled()
    await trio.sleep(120)  # longer than this process may take
    assert trio.current_time() > 120


@pytest.mark.mesh(seed=7, latency=0.5)
async def test_marked(mesh):
    assert mesh.seed == 7
    await mesh.line("A", "B")
    assert await mesh.settled() > 0.5


async def test_beside_a_clock(mesh, autojump_clock):
    await trio.sleep(3600)
"""

OTHER = """
import pytest


@pytest.fixture
def mesh():
    return 1


def test_it(mesh):
    assert mesh == 1
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-p", PLUGIN]
    return subprocess.run(
        [*command, *options], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_test_gets_a_mesh_in_virtual_time_and_a_mesh_fixture_of_its_own_stays(mode: str, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(OTHER, encoding="utf-8")
    assert "4 passed" in run(tmp_path, TESTS, "-o", f"trio_mode={mode}").stdout


def test_without_pytest_trio_a_test_that_asks_for_a_mesh_is_told_and_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_other():\n    pass\n\n\ndef test_it(mesh):\n    pass\n", "-p", "no:trio")
    assert "1 passed, 1 error" in done.stdout
    assert "the fixture `mesh` needs pytest-trio" in done.stdout


def test_loading_it_loads_nothing_else() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import " + PLUGIN + "; "
        "print(sorted(name for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "trio" not in done.stdout
    assert "networkx" not in done.stdout
    assert "amqpmesh.router" not in done.stdout
