"""The event log of a simulation: equal for equal seeds, byte for byte."""

import os
import subprocess
import sys

import pytest

from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.processes.programs import ENVIRONMENT, PATIENCE
from tests.support.worlds.eventful import log_of


def logs_in_another_process(*seeds: int, hash_seed: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.worlds.eventful", *map(str, seeds)],
        env={**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=PATIENCE * len(seeds),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\f")


def test_the_same_seed_gives_the_same_log_whatever_the_process_and_its_hashes_and_another_gives_another() -> None:
    log = log_of(5)
    assert log.count("\n") > 100
    assert log_of(5) == log
    assert log_of(4) != log
    assert logs_in_another_process(5, hash_seed=1) == [log]
    assert logs_in_another_process(5, hash_seed=2) == [log]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_every_seed_gives_the_same_log_in_every_process(first: int) -> None:
    seeds = range(first, first + 5)  # to start a process takes as long as a history
    logs = logs_in_another_process(*seeds, hash_seed=1)
    assert len(set(logs)) == len(seeds)
    # The other process has the histories in the other order: none depends on those before it.
    assert logs == logs_in_another_process(*reversed(seeds), hash_seed=2)[::-1]


async def test_an_event_says_when_and_where_and_what_the_network_had_carried(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    mesh.cut("A", "B")
    (cut,) = mesh.log.find("cut")
    assert str(cut) == f"{cut.at:.6f} - cut near=A far=B seen={cut.seen}"
    (lost,) = mesh.log.find("connection lost")
    assert (lost.seen, lost.at) == (cut.seen, cut.at), "nothing was carried between the two"
    started = mesh.log.find("started", router="B")
    assert [each.at for each in started] == [0.0]
    assert started[0].seen != cut.seen
    assert str(mesh.log).splitlines() == [str(each) for each in mesh.log]


async def test_the_log_has_what_routers_log_each_by_its_name(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    (at_a,), (at_b,) = (mesh.log.find("neighbour up", router=each) for each in "AB")
    assert "router=B" in at_a.text
    assert "router=A" in at_b.text
