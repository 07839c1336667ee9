"""The router that the tests of the connector send to and receive from, in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.router_thread import Served


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()
