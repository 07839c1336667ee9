"""Nodes of a router: parts that they make when they need them, and what they leave behind."""

import gc
from weakref import ref

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.node import Address
from tests.support.worlds.network import Network


def test_an_address_has_a_pool_once_a_link_comes_and_asks_for_nothing_before() -> None:
    address = Address("", "q", AddressConfig(pattern="#"), Budget(2**20))
    assert (address.demand, address.granted, address.next_timer(), address.has_pool) == (0, 0, None, False)
    address.pool.add_branch(usable=7)
    assert (address.demand, address.has_pool) == (7, True)
    assert address.pool is address.pool


def test_a_pool_that_is_made_while_memory_is_used_up_gives_nothing() -> None:
    address = Address("", "q", AddressConfig(pattern="#"), Budget(2**20))
    address.suspended = True
    address.pool.add_branch(usable=7)
    address.pool.add_input(0)
    assert (address.demand, address.pool.grants(1.0)) == (0, [])
    address.pool.set_suspended(False)
    assert [grant.credit > 0 for grant in address.pool.grants(2.0)] == [True]


def test_an_address_that_only_a_look_has_made_is_gone_without_a_pool() -> None:
    router = Network()
    address = router.core.context.addresses.use("", "q")
    router.core.context.touch(address)
    router.run()
    router.advance(0.1)
    assert (router.core.context.addresses.find("", "q"), address.has_pool) == (None, False)


def test_the_timer_of_an_address_goes_with_it() -> None:
    router = Network(AddressConfig(pattern="q", distribution=Distribution.BALANCED))
    consumer, producer = router.client(), router.client()
    consumer.receiver("q", credit=5)
    for _ in range(3):  # the last one finds no credit left: the pool checks the others again
        producer.sender("q")
        router.run()
    address = router.core.context.addresses.find("", "q")
    assert address is not None
    assert address.next_timer() is not None
    assert router.core.next_timer() == address.next_timer()
    gone = ref(address)
    del address
    router.leave()
    router.clients.clear()
    del consumer, producer
    router.arrived.clear()
    gc.collect()
    assert gone() is None
    assert router.core.next_timer() is None
    assert router.core.statistics().is_empty
