"""Both ways of a router to wait for its sockets: one task with epoll, or tasks of each connection."""

from __future__ import annotations

import pytest

from amqpmesh.router.runtime import poller

#: The `pytestmark` of a module whose tests run with either way.
EITHER_WAY = [
    pytest.mark.usefixtures("sockets"),
    pytest.mark.parametrize("sockets", ["polled", "streamed"], indirect=True),
]


@pytest.fixture
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the way of all routers of this test."""
    if request.param == "streamed":
        monkeypatch.setattr(poller, "EPOLL", None)
    elif poller.EPOLL is None:
        pytest.skip("this system has no epoll")
