"""Histories of multicast trees, and their lifetime."""

from __future__ import annotations

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.mesh.routes import MEMORY_TIME
from tests.support.worlds.meshes import World

NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)


def test_what_came_by_a_tree_is_remembered_from_the_last_time_that_it_was_of_use() -> None:
    mesh = World("AB", [("A", "B")], NEWS)
    histories = mesh["B"].mesh.routes.tree_histories
    consumer = mesh["B"].client()
    consumer.receiver("news/x", credit=10)
    for seconds in (MEMORY_TIME - 10, MEMORY_TIME - 10):
        producer = mesh["A"].client()
        link = producer.sender("news/x")
        mesh.advance(0.2)
        (lane,) = [each.lane for record in mesh["B"].core.context.connections for each in record.incoming if each.lane]
        producer.send(link, settled=True)
        mesh.run()
        producer.close()
        mesh.run()
        mesh.advance(seconds)
        assert lane in histories
    mesh.advance(11)
    assert lane not in histories
    mesh.leave()
