"""The choice of kernel: by its presence, its digest, and AMQPMESH_KERNEL."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from amqpmesh.router.kernel import binding

ROOT = Path(__file__).parents[3]
CHECKING = "TYPE_CHECKING"
PATIENCE = 120.0  # seconds for a process, which takes less than one

TELL = """
from amqpmesh.router import kernel
import amqpmesh.router.kernel.ledger as ledger
assert kernel.Ledger is ledger.Ledger
assert kernel.ledger is ledger
print(*kernel.BOUND, ledger.__file__.rpartition(".")[2], sep="; ")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a checkout that holds nothing but the kernel's source: it imports nothing else of ours."""
    kernel = tmp_path / "amqpmesh" / "router" / "kernel"
    kernel.mkdir(parents=True)
    for folder in (kernel.parent, kernel.parents[1]):
        (folder / "__init__.py").touch()
    for pattern in ("*.py", "*.pxd"):
        for file in (ROOT / "router" / "kernel").glob(pattern):
            shutil.copy(file, kernel)
    return kernel


@pytest.fixture
def compiled() -> Path:
    """Return the compiled kernel of this checkout."""
    file = binding.compiled_file()
    if file is None or not binding.is_of_source(file):
        pytest.skip("NOT TESTED, missing: a compiled kernel of this source (make .venv/kernel)")
    return Path(file)


def ran(tree: Path, *arguments: str, wanted: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a checkout."""
    env = {name: value for name, value in os.environ.items() if name != "AMQPMESH_KERNEL"}
    if wanted is not None:
        env["AMQPMESH_KERNEL"] = wanted
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=env, capture_output=True, text=True, timeout=PATIENCE
    )


def told(tree: Path, wanted: str | None = None) -> tuple[str, str]:
    """Return the kernel that a process has bound, and the last line of its standard error."""
    done = ran(tree.parents[2], "-c", TELL, wanted=wanted)
    return done.stdout.strip(), (done.stderr.splitlines() or [""])[-1]


def beside(tree: Path) -> Path:
    """Return the path of a compiled kernel."""
    return tree / f"_compiled{EXTENSION_SUFFIXES[0]}"


def test_a_source_that_is_not_compiled_runs_as_it_is(tree: Path) -> None:
    assert told(tree) == ("pure; there is no compiled kernel; py", "")


def test_it_runs_where_there_is_no_cython(tree: Path) -> None:
    without = 'import sys; sys.modules["cython"] = None'
    done = ran(tree.parents[2], "-c", f"{without}\n{TELL}", wanted="pure")
    assert (done.stdout, done.stderr) == ("pure; AMQPMESH_KERNEL says so; py\n", "")


def test_a_compiled_one_of_the_source_that_lies_beside_it_is_taken(tree: Path, compiled: Path) -> None:
    shutil.copy(compiled, tree)
    assert told(tree) == ("compiled; None; so", "")
    assert told(tree, "compiled") == ("compiled; None; so", "")


def test_the_variable_has_the_source_run_as_it_is(tree: Path, compiled: Path) -> None:
    shutil.copy(compiled, tree)
    assert told(tree, "pure") == ("pure; AMQPMESH_KERNEL says so; py", "")


@pytest.mark.parametrize("name", ["serial.py", "fast_path.py", "types.pxd"])
def test_a_source_that_has_changed_since_it_was_compiled_runs_as_it_is_with_a_warning(
    tree: Path, compiled: Path, name: str
) -> None:
    shutil.copy(compiled, tree)
    with (tree / name).open("a") as source:
        source.write("# changed\n")
    said, _ = told(tree)
    assert said == "pure; the compiled kernel is of another source; py"
    warned = ran(tree.parents[2], "-c", TELL).stderr
    assert f"RuntimeWarning: {beside(tree)}: the compiled kernel is of another source than {tree}" in warned


def test_a_kernel_made_for_another_system_is_left_alone(tree: Path) -> None:
    beside(tree).write_bytes(b"no machine code, " + binding.mark())
    said, _ = told(tree)
    assert said.startswith("pure; the compiled kernel cannot be loaded: ")
    assert said.endswith("; py")


@pytest.mark.parametrize(
    ("wanted", "content", "message"),
    [
        ("compiled", None, "AMQPMESH_KERNEL is 'compiled': there is no compiled kernel"),
        ("compiled", b"of something else", "AMQPMESH_KERNEL is 'compiled': the compiled kernel is of another source"),
        ("Compiled", None, "AMQPMESH_KERNEL is 'Compiled': it must be `compiled` or `pure`"),
    ],
)
def test_a_kernel_that_is_wanted_and_not_there_is_an_error(
    tree: Path, wanted: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        beside(tree).write_bytes(content)
    assert told(tree, wanted) == ("", f"ImportError: {message}")


def test_each_part_imports_only_parts_before_it() -> None:
    """Imports in functions count. Those for the type checker do not: classes of different parts refer to each other."""
    for at, part in enumerate(binding.ORDER):
        tree = ast.parse(Path(binding.part_file(part)).read_text())
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == CHECKING)
        ]
        imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        ours = [module.removeprefix(f"{binding.PACKAGE}.") for module in imported if binding.PACKAGE in module]
        assert set(ours) <= {*binding.ORDER[:at], binding.PACKAGE, "uncompiled"}, part  # both: what only C has


def test_every_module_of_the_kernel_is_a_part() -> None:
    modules = {file.stem for file in Path(binding.TYPES).parent.glob("*.py")}
    assert modules == {*binding.ORDER, "__init__", "binding", "uncompiled"}


def test_a_line_of_the_file_for_the_compiler_is_found_in_its_part() -> None:
    together = binding.put_together().splitlines()
    begin = together.index("# ---- ledger.py")
    part = Path(binding.part_file("ledger")).read_text().splitlines()
    line = next(number for number, line in enumerate(part) if line.startswith("class Ledger"))
    assert together[begin + line] == part[line]


@pytest.mark.parametrize("arguments", [["--version"], ["run"], ["check", "/nowhere.toml"]])
def test_a_command_says_so_in_one_line_and_ends_with_2(arguments: list[str]) -> None:
    done = ran(ROOT, "-m", "amqpmesh", *arguments, wanted="fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "amqpmesh: AMQPMESH_KERNEL is 'fast': it must be `compiled` or `pure`\n"


def test_the_version_says_which_kernel_runs(compiled: Path) -> None:
    for wanted, kernel in (("compiled", "compiled"), ("pure", "pure Python"), (None, "compiled")):
        assert ran(ROOT, "-m", "amqpmesh", "--version", wanted=wanted).stdout.endswith(f" (kernel: {kernel})\n")
