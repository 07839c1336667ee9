"""The checks of `.ci/house.py`, each on a tree of a few files that breaks one rule."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG_ENOUGH = '"""Counters of a router."""\n' + "x = 1\n" * 50


class Tree:
    """A tree of files that holds all rules, until a test adds others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(".ci/house.toml", (ROOT / ".ci/house.toml").read_text())
        self.write("router/counters.py", LONG_ENOUGH)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def faults(self) -> list[str]:
        """Return the faults that the check prints; it must exit with 1 if there is one."""
        command = [sys.executable, ROOT / ".ci/house.py", self.root]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.stderr
        lines = done.stdout.splitlines()
        assert done.returncode == bool(lines)
        return lines


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_tree_that_holds_all_rules_has_no_faults(tree: Tree) -> None:
    tree.write("router/mesh/__init__.py", '"""Routes over several routers."""\n')
    tree.write("router/kernel/serial.py", '"""Serial numbers (RFC 1982)."""\n')
    assert tree.faults() == []


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("router/core.py", '"""A router."""\n' + "x = 1\n" * 500, "large: router/core.py: 501 lines, more than 500"),
        ("benchmarks/run.py", "x = 1\n" * 501, "large: benchmarks/run.py: 501 lines, more than 500"),
        ("tests/test_x.py", "x = 1\n" * 801, "large: tests/test_x.py: 801 lines, more than 800"),
        (
            "policies/access.py",
            "x = 1\n" * 39,
            "small: policies/access.py: 39 lines: merge it, or give a reason in house.toml",
        ),
        (
            "router/mesh/routes.py",
            LONG_ENOUGH.replace("Counters of", "Where messages go in"),
            "docstring: router/mesh/routes.py: line 1 begins with 'Where'",
        ),
        (
            "tests/test_x.py",
            'def test_x() -> None:\n    """Whoever attaches is refused."""\n',
            "docstring: tests/test_x.py: line 2 begins with 'Whoever'",
        ),
        ("tests/test_x.py", "undecided = Undecided()\n", "word: Undecided: tests/test_x.py: say PendingDisposition"),
        ("docs/x.md", "The router\nbegins\nitself anew.\n", "line 2: not 'begins itself anew' but 'restarts itself'"),
    ],
)
def test_a_file_that_breaks_a_rule_is_a_fault(tree: Tree, path: str, text: str, fault: str) -> None:
    tree.write(path, text)
    assert any(fault in line for line in tree.faults())


def test_a_basename_may_stand_for_two_things_but_not_for_three(tree: Tree) -> None:
    tree.write("topology/mesh.py", LONG_ENOUGH)
    tree.write("router/config/mesh.py", LONG_ENOUGH)
    assert tree.faults() == []
    tree.write("router/mesh/mesh.py", LONG_ENOUGH)
    paths = "router/config/mesh.py, router/mesh/mesh.py, topology/mesh.py"
    assert tree.faults() == [f"name: mesh: stands for 3 things: {paths}"]


def test_a_dozen_files_may_lie_flat_in_the_router(tree: Tree) -> None:
    for number in range(11):
        tree.write(f"router/part{number}.py", LONG_ENOUGH)
    assert tree.faults() == []
    tree.write("router/one_more.py", LONG_ENOUGH)
    assert tree.faults() == ["flat: router: 13 files lie flat, more than 12"]


def test_at_most_fifteen_small_files_have_a_reason(tree: Tree) -> None:
    reasons = "".join(f'"policies/small{number}.py" = "one idea"\n' for number in range(16))
    rules = (ROOT / ".ci/house.toml").read_text()
    start, _, rest = rules.partition("[sizes.small]")
    tree.write(".ci/house.toml", f"{start}[sizes.small]\n{reasons}[names]{rest.partition('[names]')[2]}")
    tree.write("policies/small1.py", "x = 1\n")
    assert tree.faults() == ["small: house.toml: it lists 16 small files, more than 15"]


def test_the_face_and_what_is_built_are_not_read(tree: Tree) -> None:
    for folder in ("build", ".venv", "tests/interop/node_modules", "amqpmesh/router"):
        tree.write(f"{folder}/x.py", '"""What is not ours."""\n')
    assert tree.faults() == []
