"""The plugin for pytest: the fixture `mesh`, a simulated mesh in virtual time, for tests with pytest-trio.

Nothing but pytest is imported until a test asks for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import trio

    from amqpmesh.topology.simulation.mesh import Mesh

_TIME: Final = "_amqpmesh_virtual_time"


def pytest_configure(config: pytest.Config) -> None:
    """Declare our marker."""
    config.addinivalue_line("markers", "mesh(seed=0, **options): how the fixture `mesh` is made; as `Mesh` has them")


@pytest.hookimpl(tryfirst=True)  # of all plugins, the first one that sets the runner counts
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests that have a mesh run in virtual time, whether or not they ask for a clock."""
    if not config.pluginmanager.hasplugin("trio"):
        return
    for item in items:
        if _TIME in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.trio(run=_run))


def _run(
    main: Callable[[], Awaitable[Any]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Any:
    import trio
    from trio.testing import MockClock

    return trio.run(main, clock=clock or MockClock(autojump_threshold=0), instruments=instruments)


@pytest.fixture(name=_TIME)
def _virtual_time(request: pytest.FixtureRequest) -> None:
    if not request.config.pluginmanager.hasplugin("trio"):
        raise pytest.UsageError("the fixture `mesh` needs pytest-trio")


@pytest.fixture
async def mesh(request: pytest.FixtureRequest, _amqpmesh_virtual_time: None) -> AsyncIterator[Mesh]:
    """Make a simulated mesh without routers; `@pytest.mark.mesh(seed=7)` gives its arguments."""
    from amqpmesh.topology.simulation.mesh import Mesh

    marker = request.node.get_closest_marker("mesh")
    async with Mesh(**(marker.kwargs if marker is not None else {})) as mesh:
        yield mesh
