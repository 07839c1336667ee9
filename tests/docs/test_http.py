"""The page on HTTP: its commands are run as they stand there."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.support.processes.programs import PATIENCE, programs

PAGE = "operate/http.md"
CONFIGURATION = """
[[listener]]
url = "amqp://127.0.0.1:0"

[[listener]]
url = "http://127.0.0.1:0"
role = "http"
"""


def test_every_command_is_answered(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("NOT TESTED, missing: curl")
    (tmp_path / "router.toml").write_text(CONFIGURATION, encoding="utf-8")
    with programs() as start:
        url = start.router(tmp_path / "router.toml", scheme="http")
        (block,) = blocks(PAGE, "sh")
        script = block.text.replace("http://127.0.0.1:8080", url)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    health, _, listener = done.stdout.partition(b"\n")
    assert health == b"ok"
    assert json.loads(listener)["role"] == "normal"
