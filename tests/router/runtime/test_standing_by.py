"""A connector that waits while its neighbour has connected here, and connects once that connection is gone."""

import trio
from trio.testing import MockClock

from amqpmesh import Router
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.statistics.configured import ConnectorState
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", name="mesh", role="mesh")


def url_of(router: str) -> str:
    return f"amqp://127.0.0.1:{5000 + ord(router)}"


def meeting(roads: Roads, own: str, other: str) -> Router:
    connector = ConnectorConfig(url=url_of(other), name=f"to-{other}", role="mesh")
    return Router(id=own, mesh=MeshConfig(insecure=True), connectors=[connector], open_stream=roads.open)


def state(router: Router) -> ConnectorState:
    (connector,) = router.statistics().connectors
    return connector.state


async def test_two_routers_that_connect_to_each_other_keep_one_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with meeting(roads, "A", "B") as a, meeting(roads, "B", "A") as b:
        roads.lead_to(a, url_of("A"), LISTENER)
        roads.lead_to(b, url_of("B"), LISTENER)
        with trio.fail_after(10.0):
            await until(lambda: {state(a), state(b)} == {ConnectorState.CONNECTED, ConnectorState.STANDING_BY})
            await until(lambda: len(a.statistics().connections) == len(b.statistics().connections) == 1)
        waiting, opened = (a, b) if state(a) is ConnectorState.STANDING_BY else (b, a)
        tries = len(roads.tries)
        await trio.sleep(60.0)
        assert len(roads.tries) == tries, "it waits, and does not try"
        roads.close(url_of(waiting.id))
        await roads.cut()
        with trio.fail_after(10.0):
            await until(lambda: state(waiting) is ConnectorState.CONNECTED)
        assert state(opened) is not ConnectorState.CONNECTED
