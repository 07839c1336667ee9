"""Workers of a router, and proton clients that connect all the time while workers are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from amqpmesh.router.config.users import add_user
from benchmarks.processes import ROOT
from tests.support.processes.daemon import Daemon

pytestmark = pytest.mark.interop

SENDERS, RECEIVERS = 4, 6
LASTS = 6.0  # seconds of the storm
CONFIG = """
[router]
id = "A"
drain = 5
[[listener]]
url = "amqp://127.0.0.1:0"
sasl = ["PLAIN"]
users = "users.toml"
insecure = true
"""


class Client:
    """A process of `proton_storm.py`."""

    def __init__(self, url, seed, *arguments):
        program = ROOT / "tests" / "interop" / "clients" / "proton_storm.py"
        identity = ["--url", url, "--user", "ada", "--password", "lovelace", "--seed", seed]
        self._process = subprocess.Popen(
            [sys.executable, str(program), *identity, *arguments], stdout=subprocess.PIPE, text=True
        )

    def attached(self):
        assert json.loads(self._process.stdout.readline())["event"] == "attached"

    def end(self):
        """Return the report."""
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=30)
        return json.loads(output.splitlines()[-1])


class Log:
    """All lines of a daemon, read while it runs."""

    def __init__(self, daemon):
        self._daemon = daemon
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        for line in self._daemon._errors:
            self._daemon.lines.append(line)

    def pids(self):
        """Return the process ids of the workers that were started last."""
        found = re.findall(r"worker started worker=(A\.\d) pid=(\d+)", "".join(self._daemon.lines))
        return {worker: int(pid) for worker, pid in found}

    def all(self):
        self._reading.join(30)
        return "".join(self._daemon.lines)


@pytest.mark.parametrize("count", [2, 4])
def test_no_accepted_message_is_lost_when_workers_are_killed_amid_hand_overs(tmp_path, count):
    (tmp_path / "a.toml").write_text(CONFIG)
    add_user(tmp_path / "users.toml", "ada", "lovelace", iterations=4096)
    daemon = Daemon("a.toml", "--workers", str(count), cwd=tmp_path, patience=120.0)
    started = [daemon.said(r"worker started worker=A\.\d pid=\d+") for _ in range(count)]
    assert len(started) == count
    url = f"amqp://127.0.0.1:{daemon.port()}"
    daemon.lines = [f"{each.string}\n" for each in started]
    log = Log(daemon)
    addresses = [f"q{number}" for number in range(RECEIVERS)]
    receivers = [Client(url, f"r{at}", "--receive", address) for at, address in enumerate(addresses)]
    for each in receivers:
        each.attached()
    senders = [Client(url, f"s{at}", *addresses) for at in range(SENDERS)]
    until = time.monotonic() + LASTS
    killed = 0
    while time.monotonic() < until:
        time.sleep(LASTS / 4)
        os.kill(log.pids()[f"A.{1 + killed % count}"], signal.SIGKILL)
        killed += 1
    sent = [each.end() for each in senders]
    received = [each.end() for each in receivers]
    daemon.send(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    told = log.all()
    daemon.close()
    accepted = [each for report in sent for each in report["ids"]]
    arrived = Counter(each for report in received for each in report["ids"])
    assert accepted
    assert not set(accepted) - set(arrived)
    assert " connection handed over " in told
    assert "Traceback" not in told
    assert " ERROR " not in told
    # A worker that was killed may have taken lines and clients' connections with it.
    connections = sum(report["connections"] for report in sent + received)
    logins = told.count(" logged in ")
    assert abs(logins - connections) <= (SENDERS + RECEIVERS) * killed


def test_each_client_is_served_where_its_address_lives_and_logs_in_once(tmp_path):
    (tmp_path / "a.toml").write_text(CONFIG)
    add_user(tmp_path / "users.toml", "ada", "lovelace", iterations=4096)
    daemon = Daemon("a.toml", "--workers", "4", cwd=tmp_path, patience=120.0)
    url = f"amqp://127.0.0.1:{daemon.port()}"
    log = Log(daemon)
    addresses = [f"q{number}" for number in range(RECEIVERS)]
    clients = [Client(url, f"r{at}", "--receive", address) for at, address in enumerate(addresses)]
    for each in clients:
        each.attached()
    clients += [Client(url, f"s{at}", *addresses) for at in range(SENDERS)]
    time.sleep(2)
    reports = [each.end() for each in clients]
    daemon.send(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    told = log.all()
    daemon.close()
    connections = sum(report["connections"] for report in reports)
    logins = told.count(" logged in ")
    assert logins == connections
    assert "Traceback" not in told
