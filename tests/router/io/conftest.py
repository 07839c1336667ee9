"""Both ways to wait for sockets: what has to hold with one has to hold with the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.router.io import poller

#: Tests that run with a task that serves all sockets, and with tasks of each connection's own, as without epoll.
ON_BOTH = frozenset(
    {
        "test_both_ways.py",
        "test_connector_redirects.py",
        "test_connectors.py",
        "test_handshake.py",
        "test_listeners.py",
        "test_node.py",
        "test_standing_by.py",
        "test_statistics.py",
        "test_trace.py",
        "test_transport.py",
    }
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run those twice."""
    if Path(metafunc.module.__file__ or "").name in ON_BOTH:
        metafunc.parametrize("sockets", ["polled", "streamed"], indirect=True)


@pytest.fixture(autouse=True)
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the sockets of this test's routers are waited for; if it does not say, as they are anywhere else."""
    way = getattr(request, "param", None)
    if way == "streamed":
        monkeypatch.setattr(poller, "EPOLL", None)
    elif way == "polled" and poller.EPOLL is None:
        pytest.skip("this system has no epoll")
