"""The pages on HTTP and metrics: commands are run as they stand there, and each metric has a row."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from amqpmesh.router.http import families
from tests.docs.pages import ROOT, blocks
from tests.support.processes.programs import PATIENCE, programs

PAGE = "operate/http.md"
CONFIGURATION = """
[[listener]]
url = "amqp://127.0.0.1:0"

[[listener]]
url = "http://127.0.0.1:0"
role = "http"
"""


def test_every_metric_is_explained() -> None:
    text = (ROOT / "docs" / "operate" / "metrics.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(amqpmesh_\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", text, re.MULTILINE)
    tenants = (*families.TENANT, *families.LATENCY)
    kinds = (families.ADDRESS, tenants, families.NEIGHBOUR, families.LISTENER, families.ROUTER)
    assert documented == [
        (each.full_name, each.kind, ", ".join(f"`{name}`" for name in labels_of(each)), each.help)
        for kind in (*kinds, families.LEFT_OUT)
        for each in kind
    ]
    assert f"Each address has {families.series(families.ADDRESS)}." in text


def labels_of(family: families.Family) -> list[str]:
    return list(dict.fromkeys(name for _, labels in family.samples for name, _ in labels))


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
