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
        metafunc.fixturenames.append("sockets")
        metafunc.parametrize("sockets", ["polled", "streamed"], indirect=True)


@pytest.fixture
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the sockets of this test's routers are waited for."""
    way: str = request.param
    if way == "streamed":
        monkeypatch.setattr(poller, "EPOLL", None)
    elif poller.EPOLL is None:
        pytest.skip("this system has no epoll")
    return way
