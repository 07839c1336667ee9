"""The modules that a router imports before it listens. Three that start together carry an address within a second."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PATIENCE = 120.0  # seconds

# A quarter of a second of CPU for the first, and some tens of milliseconds for most others.
NOBODY_NEEDS = {"networkx", "asyncio", "scramp", "asn1crypto", "dns", "tqdm", "shtab", "multiprocessing", "xml"}
CERTIFICATES_NEED = {"cryptography"}
A_MESH_NEEDS = {"msgpack", "amqpmesh.topology.linkstate", "amqpmesh.router.mesh.member"}
#: Of the topology, what every router reads: deadlines by name, which need nothing of the rest.
ALL_NEED = {"amqpmesh.topology", "amqpmesh.topology.timers"}
CLIENTS_NEED = {
    "amqpmesh.router.client.connect",
    "amqpmesh.router.cli.client_peer",
    "amqpmesh.router.cli.commands.send",
}

LISTENER = '[[listener]]\nurl = "amqp://127.0.0.1:0"\n'
MESH = f'[mesh]\ninsecure = true\n{LISTENER}role = "mesh"\n[[connector]]\nurl = "amqp://127.0.0.1:1"\n'


def read_before_listening(config: Path, content: str) -> set[str]:
    """Return the modules that a router has imported, directly or not, when it listens."""
    config.write_text(content)
    router = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "amqpmesh", "run", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    alarm = threading.Timer(PATIENCE, router.kill)
    alarm.start()
    try:
        assert router.stderr is not None
        modules = set()
        for line in router.stderr:
            if " INFO listening " in line:
                return modules
            if found := re.fullmatch(r"import time:[ \d|]+\| +([\w.]+)\n", line):
                modules.add(found.group(1))
        raise AssertionError("it does not listen")
    finally:
        alarm.cancel()
        router.kill()
        router.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("content", "needed"),
    [(LISTENER, set()), (LISTENER + MESH, A_MESH_NEEDS)],
    ids=["a router of no mesh", "a router of an unsigned mesh"],
)
def test_a_router_listens_before_it_reads_what_it_does_not_need(content: str, needed: set[str], tmp_path: Path) -> None:
    read = read_before_listening(tmp_path / "router.toml", content)
    spared = NOBODY_NEEDS | CERTIFICATES_NEED | A_MESH_NEEDS | CLIENTS_NEED
    assert read & spared == needed
    topology = {module for module in read if module.split(".")[:2] == ["amqpmesh", "topology"]}
    assert topology >= ALL_NEED
    assert (topology == ALL_NEED) is (not needed)
    assert "trio" in read
