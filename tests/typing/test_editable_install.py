"""The editable installation of `make run`, as a strict type checker sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    "amqpmesh",
    "router",
    "policies",
    "topology",
    "pipeline",
    "Makefile",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)
PATIENCE = 300.0  # seconds: it creates an environment and installs packages


@pytest.mark.slow
def test_a_strict_type_checker_takes_a_program_beside_the_checkout(tmp_path: Path) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    checkout.mkdir()
    programs.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    make = ["make", "-s", ".venv/base", f"PYTHON={sys.executable}"]
    env = {**os.environ, "CFLAGS": "-O0"}  # no optimization: this test needs no fast kernel
    subprocess.run(make, cwd=checkout, env=env, check=True, timeout=PATIENCE)

    (programs / "right.py").write_text("from amqpmesh import Message\n\nMessage('hi').subject\n")
    (programs / "wrong.py").write_text("from amqpmesh import Message\n\nMessage('hi').subjcet\n")
    strict = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache")
    strict += ("--python-executable", checkout / ".venv" / "bin" / "python")
    for program, answer in (
        ("right.py", "Success: "),
        ("wrong.py", 'wrong.py:3: error: "Message" has no attribute "subjcet"'),
    ):
        done = subprocess.run(
            [*strict, program], cwd=programs, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.stdout.startswith(answer), done.stdout + done.stderr
