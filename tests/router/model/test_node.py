"""Nodes of a router: parts that they make when they need them, and what they leave behind."""

import gc
from weakref import ref

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.kernel import Budget
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.node import Node
from tests.support.worlds.network import Network


def test_an_address_has_a_pool_once_a_link_comes_and_asks_for_nothing_before() -> None:
    node = Node("", "q", AddressConfig(pattern="#"), Budget(2**20))
    assert (node.demand, node.granted, node.next_timer(), node.made_pool) == (0, 0, None, None)
    node.pool.add_source(usable=7)
    assert (node.demand, node.made_pool) == (7, node.pool)
    assert node.pool is node.pool


def test_a_pool_that_is_made_while_memory_is_used_up_gives_nothing() -> None:
    node = Node("", "q", AddressConfig(pattern="#"), Budget(2**20))
    node.suspended = True
    node.pool.add_source(usable=7)
    node.pool.add_sink(0)
    assert (node.demand, node.pool.grants(1.0)) == (0, [])
    node.pool.set_suspended(False)
    assert [grant.credit > 0 for grant in node.pool.grants(2.0)] == [True]


def test_an_address_that_only_a_look_has_made_is_gone_without_a_pool() -> None:
    router = Network()
    node = router.core.context.nodes.use("", "q")
    router.core.context.touch(node)
    router.run()
    router.advance(0.1)
    assert (router.core.context.nodes.find("", "q"), node.made_pool) == (None, None)


def test_the_timer_of_an_address_goes_with_it() -> None:
    router = Network(AddressConfig(pattern="q", distribution=Distribution.BALANCED))
    consumer, producer = router.client(), router.client()
    consumer.receiver("q", credit=5)
    for _ in range(3):  # the last one finds no credit left: the pool checks the others again
        producer.sender("q")
        router.run()
    node = router.core.context.nodes.find("", "q")
    assert node is not None
    assert node.next_timer() is not None
    assert router.core.next_timer() == node.next_timer()
    gone = ref(node)
    del node
    router.leave()
    router.clients.clear()
    del consumer, producer
    router.arrived.clear()
    gc.collect()
    assert gone() is None
    assert router.core.next_timer() is None
    assert snapshot(router.core).is_empty
