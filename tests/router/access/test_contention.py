"""Senders of two tenants to the receivers of one: each tenant has its part of their credit, by weight."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.worlds.tenants import Tenants, policy

if TYPE_CHECKING:
    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.amqp.link import Receiver, Sender
    from tests.support.worlds.network import Client

MANY = 12
"""Links of the tenant that floods."""


def keys(weight: float) -> dict[str, str]:
    """Return what is said of the tenants `shop`, whose address it is, and `market`, which may send to it."""
    return {
        "shop": 'exports = [{ pattern = "orders", to = "market", as = "shop/orders", may = ["send"] }]',
        "market": f'weight = {weight}\nimports = [{{ from = "shop", pattern = "shop/orders" }}]',
    }


class Shop:
    """Many senders of `shop`, one of `market`, all with more to send than there is credit, and a receiver of `shop`."""

    def __init__(self, weight: float, credit: int, at: str) -> None:
        self.world = Tenants("AB", [("A", "B")], **keys(weight))
        self.credit = credit
        self.receiving = self.world.client("shop", at)
        self.receiver: Receiver = self.receiving.receiver("orders", credit=credit)
        self.world.rest()
        self.senders: dict[Sender, tuple[str, Client]] = {}
        for tenant, address, count in (("shop", "orders", MANY), ("market", "shop/orders", 1)):
            client = self.world.client(tenant)
            self.senders |= {client.sender(address): (tenant, client) for _ in range(count)}
        self.world.rest()

    def change(self, changed: Policy) -> None:
        self.world.change(changed)
        self.world.rest()

    def part(self, deliveries: int) -> float:
        """Take so many deliveries. Returns: the part of `market`."""
        taken: Counter[str] = Counter()
        while taken.total() < deliveries:
            for sender, (tenant, client) in self.senders.items():
                while sender.credit:
                    client.send(sender, tenant.encode(), settled=True)
            if not (arrived := self.receiving.take()):
                self.world.mesh.advance(0.01)
            taken.update(bytes(each.payload).decode() for each in arrived)
            self.receiver.flow(self.credit)
            self.world.mesh.run()
        return taken["market"] / taken.total()


@pytest.mark.parametrize(("credit", "at"), [(2, "A"), (20, "A"), (20, "B")])
@pytest.mark.parametrize("weight", [1, 3])
def test_a_tenant_with_one_link_gets_its_part_beside_one_with_many(weight: float, credit: int, at: str) -> None:
    shop = Shop(weight, credit, at)
    shop.part(100)
    assert shop.part(600) == pytest.approx(weight / (weight + 1), abs=0.06)


def test_a_changed_weight_holds_at_once() -> None:
    shop = Shop(1, 20, "A")
    shop.part(300)
    shop.change(policy(**keys(4)))
    shop.part(100)
    assert shop.part(600) == pytest.approx(0.8, abs=0.06)


def test_the_last_sender_of_another_tenant_leaves_all_to_the_others() -> None:
    shop = Shop(1, 20, "A")
    shop.part(100)
    (foreign,) = (each for each, (tenant, _) in shop.senders.items() if tenant == "market")
    _, client = shop.senders.pop(foreign)
    client.close()
    shop.part(100)  # with what had come
    assert shop.part(600) == 0.0
