"""The wheel, and its public names for a strict type checker."""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import amqpmesh

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("every_public_name.py")
SOURCES = (
    "amqpmesh",
    "router",
    "policies",
    "topology",
    "pipeline",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Return the output of a program. Raises: AssertionError: it failed; with its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMQPMESH")} | environment
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, cwd=cwd, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder: Path, **building: str) -> Path:
    """Return the interpreter of an environment with the wheel. Its dependencies come from this environment.

    Args: building: variables of the environment in which the wheel is built.
    """
    source, environment = folder / "source", folder / "environment"
    source.mkdir()
    for name in SOURCES:  # a copy, since a build leaves files behind
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", source, "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, cwd=folder, **building)
    (wheel,) = folder.glob("*.whl")
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    run(*pip, "install", "--no-deps", "--no-index", "--target", packages, wheel, cwd=folder)
    (packages / "needed.pth").write_text("\n".join(site.getsitepackages()))
    found = run(environment / "bin" / "python", "-c", "import amqpmesh; print(amqpmesh.__file__)", cwd=folder)
    assert found.startswith(str(packages)), "the checkout is not what is tested"
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel as users install it.

    All processes of pytest-xdist share it, since to translate the kernel takes half a minute.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "wheel"
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder / "environment" / "bin" / "python"
        folder.mkdir()
        return installed(folder, CFLAGS="-O0")  # no optimization: this test needs no fast kernel


def test_the_program_uses_every_public_name() -> None:
    used = {node.id for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Name)}
    assert set(amqpmesh.__all__) - used == set()


@pytest.mark.interop
def test_a_strict_type_checker_takes_a_program_that_uses_every_public_name(python: Path, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    strict = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache")
    said = run(*strict, "--python-executable", python, tmp_path / PROGRAM.name, cwd=tmp_path)
    assert "Success: no issues found in 1 source file" in said
    # The type checker reports every name of another type.
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import amqpmesh\nreveal_type(amqpmesh.connect)\namqpmesh.Message(ttl='soon')\n")
    with pytest.raises(AssertionError, match="incompatible type") as raised:
        run(*strict, "--python-executable", python, wrong, cwd=tmp_path)
    assert "amqpmesh.router.client.connect.Connection" in str(raised.value)


@pytest.mark.interop
def test_that_program_runs(python: Path, tmp_path: Path) -> None:
    said = run(python, PROGRAM, cwd=tmp_path).splitlines()
    assert said[0] == amqpmesh.__version__
    assert any("rejected: amqp:not-allowed spam" in line for line in said)
    assert any("refused" in line for line in said)


@pytest.mark.interop
def test_it_has_the_files_of_the_page(python: Path, tmp_path: Path) -> None:
    said = run(python, "-c", "import amqpmesh.router.http as room; print(room.__path__[0])", cwd=tmp_path)
    there = {each.name for each in Path(said.strip(), "page").iterdir()}
    assert there == {each.name for each in (ROOT / "router" / "http" / "page").iterdir()}


@pytest.mark.interop
def test_its_kernel_is_compiled_where_there_is_a_compiler(python: Path, tmp_path: Path) -> None:
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("NOT TESTED, missing: a C compiler, or Python's headers")
    assert run(python, "-m", "amqpmesh", "--version", cwd=tmp_path).endswith(" (kernel: compiled)\n")


@pytest.mark.interop
def test_without_a_compiler_its_kernel_runs_as_it_is(tmp_path: Path) -> None:
    python = installed(tmp_path, CC="/nowhere/cc")
    assert run(python, "-m", "amqpmesh", "--version", cwd=tmp_path).endswith(" (kernel: pure Python)\n")
