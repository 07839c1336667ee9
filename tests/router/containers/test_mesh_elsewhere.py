"""Remote nodes that other routers of a mesh use."""

from __future__ import annotations

from dataclasses import replace

from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, ElsewhereConfig
from amqpmesh.router.containers.container_links import LONGEST_PAUSE
from tests.router.containers.test_remote_nodes import NOT_FOUND, PLACE, THERE
from tests.support.peers.broker import Broker
from tests.support.worlds.meshes import World


def test_other_routers_are_not_refused_but_wait_for_a_place_that_refuses() -> None:
    invoices = AddressConfig(pattern="invoices", redirect=THERE)
    world = World("AB", [("A", "B")], invoices)
    router = world["A"]
    made: list[ConnectorConfig] = []
    router.core.on_demand.on_connect = lambda config, _: made.append(replace(config, idle_time_out=0.0))
    client = world["B"].client()
    link = client.sender("invoices@A")
    world.advance(0.1)
    broker = Broker(router, connector=made[0], refuses={"there": NOT_FOUND})
    world.advance(20.0)
    assert 5 <= len(broker.asked) <= 12
    assert link.is_attached
    assert link.credit == 0
    broker.refuses.clear()
    world.advance(LONGEST_PAUSE)
    sent = client.send(link)
    broker.take(1)[0].accept()
    world.run()
    assert sent.said == [(Accepted(), True)]
    client.close()
    world.advance(100.0)
    assert broker.is_lost
    world.leave()


def test_receivers_at_another_router_get_what_comes_and_nothing_goes_back_there() -> None:
    world = World("AB", [("A", "B")], AddressConfig(pattern="elsewhere", redirect=THERE))
    made: dict[str, ConnectorConfig] = {}
    for router, node in world.nodes.items():
        node.core.on_demand.on_connect = lambda config, _, router=router: made.update(
            {router: replace(config, idle_time_out=0.0)}
        )
    client = world["A"].client()
    client.receiver("elsewhere@B")
    world.advance(1.0)
    assert list(made) == ["B"], "A follows no redirect of B's address"
    broker = Broker(world["B"], connector=made["B"])
    world.advance(1.0)
    (link,) = broker.links.values()
    assert isinstance(link, Sender)
    broker.send(link)
    world.advance(0.1)
    client.take(1)[0].accept()
    broker.take(0)
    world.leave()


def test_other_routers_wait_for_places_that_are_too_many() -> None:
    invoices = AddressConfig(pattern="invoices", redirect=THERE)
    receipts = AddressConfig(pattern="receipts", redirect=replace(THERE, network_host="10.0.0.3"))
    world = World("AB", [("A", "B")], invoices, receipts, elsewhere=ElsewhereConfig(places=1, idle=1.0))
    router = world["A"]
    made: dict[str, ConnectorConfig] = {}
    router.core.on_demand.on_connect = lambda config, _: made.update({config.name: replace(config, idle_time_out=0.0)})
    client = world["B"].client()
    first = client.sender("invoices@A")
    world.advance(0.5)
    second = client.sender("receipts@A")
    client.receiver("receipts@A")
    world.advance(5.0)
    assert list(made) == [PLACE]
    assert second.is_attached
    first.detach()
    world.advance(30.0)
    broker = Broker(router, connector=made["amqp://10.0.0.3:5672 as b.example"])
    world.advance(1.0)
    sent = client.send(second)
    broker.take(1)[0].accept()
    world.run()
    assert sent.said == [(Accepted(), True)]
    client.close()
    world.advance(100.0)
    world.leave()
