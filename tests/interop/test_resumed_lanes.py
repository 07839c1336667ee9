"""Lanes that resume, between routers that are processes, with TLS, workers and tenants' connections, over a path that
stands still.

Each message is in an account: what its sender has said and heard, and what its receiver has accepted. A path that
stands still is found by `hold`, however long that takes, so nothing here depends on how fast a machine is.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from benchmarks.meshes import await_that, mesh

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PATIENCE = 120.0  # seconds for what takes a few of them on an idle machine
FLOW = 12  # messages between two faults: more than are on their way at a time
TABLE = "hello = 0.5\nhold = 2.0\nresume = 300\n"
TENANTS = ("one", "two")
POLICY = """
[[tenant]]
name = "operator"
default = true
[[group]]
name = "status"
tenant = "operator"
may = ["dynamic"]
manage = ["read"]
""" + "".join(
    f"""
[[tenant]]
name = "{each}"
match = [{{ hostname = "{each}" }}]
[[group]]
name = "all"
tenant = "{each}"
send = ["#"]
receive = ["#"]
"""
    for each in TENANTS
)


class Account:
    """A sender at one router and a receiver at another one, and all that they say."""

    def __init__(self, program, near, far, hostname):
        common = ["--address", f"from-{near.id}", "--idle", str(PATIENCE)]
        common += ["--hostname", hostname] if hostname else []
        self._receiver = program("amqpmesh_once", "--url", far.url, "--id", "receiver", "--receive", *common)
        self._receiver.expect("attached", PATIENCE)
        self._sender = program("amqpmesh_once", "--url", near.url, "--id", "sender", *common)

    def flow(self, count=FLOW):
        """Wait until the sender has heard of so many more."""
        for _ in range(count):
            self._sender.expect("outcome", PATIENCE)

    def _came(self):
        self._receiver.catch_up()
        return Counter(each["index"] for each in self._receiver.of("message"))

    def conclude(self):
        """End both, and compare what was sent, heard and accepted. Returns: how often each outcome was heard."""
        self._sender.kill(signal.SIGTERM)
        self._sender.finish()
        outcomes = {each["index"]: each["outcome"] for each in self._sender.of("outcome")}
        assert sorted(outcomes) == [each["index"] for each in self._sender.of("sent")], "each has one outcome"
        accepted = {index for index, outcome in outcomes.items() if outcome == "accepted"}
        await_that(lambda: accepted <= self._came().keys(), "none is lost", PATIENCE)
        came = self._came()
        assert max(came.values()) == 1, "none comes twice"
        assert not {index for index, outcome in outcomes.items() if outcome == "released"} & came.keys(), (
            "nobody has it"
        )
        return Counter(outcomes.values())


@pytest.fixture
def routers(authority):
    """Start a mesh whose routers trust each other by certificates, and resume their lanes."""

    def settings(router):
        files = f'certificate = "{router}.pem"\nkey = "{router}.key"\ntrust = "mesh-ca.pem"\n'
        return "[mesh]\n" + files.replace(' = "', f' = "{authority}/') + TABLE

    with mesh(settings) as made:
        yield made
        status = made.end()
        log = "\n".join(f"{each.id}: {line}" for each in made.routers.values() for line in each.log)
        print(log)
    assert set(status.values()) == {0}
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line]


@pytest.mark.parametrize("kind", ["workers", "tenants"])
def test_of_mode_second_nothing_is_in_doubt_when_paths_stand_still(kind, routers, strait, program, tmp_path):
    settings = ""
    if kind == "tenants":
        policy = tmp_path / "policy.toml"
        policy.write_text(POLICY)
        settings = f'[policy]\nfile = "{policy}"\n'
    b = routers.add("B", settings=settings)
    path = strait(b.mesh_url)
    a = routers.add("A", (f"amqps://127.0.0.1:{path.port}", 1), settings=settings)
    b.arguments = ("--workers", "2")  # the next connection may be accepted by another one than the one before
    if kind == "workers":
        a.arguments = b.arguments
    routers.start()
    hostnames = TENANTS if kind == "tenants" else ("",)
    accounts = [Account(program, *ends, each) for each in hostnames for ends in ((a, b), (b, a))]
    for each in accounts:
        each.flow()
    if kind == "tenants":
        await_that(lambda: path.made > len(TENANTS), "each tenant has a connection of its own", PATIENCE)
    for up, down in ((True, True), (False, True)):
        made = path.made
        path.strand(up=up, down=down)
        for each in accounts:
            each.flow()
        assert path.made > made, "the routers have connected again"
    for each in accounts:
        assert each.conclude().keys() <= {"accepted", "released"}
