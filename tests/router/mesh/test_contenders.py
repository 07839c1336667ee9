"""Senders of two tenants at several routers: each tenant has its part of the receivers' credit, by its weight."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol, UInt, ULong
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link_state import tell
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.tenants import Tenants, policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from tests.support.worlds.network import Client

STEP = 0.05
"""Seconds between two times that the receiver gives credit, and the senders use theirs."""

SENDING = b"amqpmesh:sending"
"""The property of a flow by which routers tell each other of tenants."""

LINE = [("A", "B"), ("B", "C")]
STAR = [("A", "T"), ("C", "T"), ("T", "B")]


def keys(weight: float) -> dict[str, str]:
    """Return what is said of the tenants `shop`, whose address it is, and `market`, which may send to it."""
    return {
        "shop": 'exports = [{ pattern = "orders", to = "market", as = "shop/orders", may = ["send"] }]',
        "market": f'weight = {weight}\nimports = [{{ from = "shop", pattern = "shop/orders" }}]',
    }


class Shop:
    """Senders of two tenants, all with more to send than there is credit, and receivers of `shop`."""

    def __init__(
        self,
        weight: float,
        senders: Iterable[tuple[str, str, int]],
        edges: Iterable[tuple[str, str]] = LINE,
        receivers: str = "B",
        *addresses: AddressConfig,
    ) -> None:
        """Args: senders: of a tenant at a router so many. receivers: the routers that have one."""
        edges = list(edges)
        routers = "".join(sorted({each for edge in edges for each in edge}))
        self.world = Tenants(routers, (), *addresses)
        #: The octets between routers.
        self.octets = bytearray()
        self.world.mesh.tap = lambda _, __, data: self.octets.extend(data)
        for each in edges:
            self.world.mesh.join(*each)
        self.world.change(policy(**keys(weight)))
        clients = [self.world.client("shop", each) for each in receivers]
        self.receivers: dict[Receiver, Client] = {each.receiver("orders", credit=20): each for each in clients}
        self.world.rest()
        self.senders: dict[Sender, tuple[str, Client]] = {}
        for tenant, router, count in senders:
            self.add(tenant, router, count)
        self.world.rest()

    def add(self, tenant: str, router: str, count: int) -> list[Sender]:
        """Attach so many senders of a tenant to a router."""
        client = self.world.client(tenant, router)
        links = [client.sender("orders" if tenant == "shop" else "shop/orders") for _ in range(count)]
        self.senders |= dict.fromkeys(links, (tenant, client))
        return links

    def part(self, seconds: float = 2.5, quiet: Collection[Sender] = ()) -> float:
        """Take deliveries for a while. Args: quiet: these send nothing. Returns: the part of `market`."""
        self.taken: list[Counter[str]] = [Counter() for _ in self.receivers]
        for _ in range(round(seconds / STEP)):
            for sender, (tenant, client) in self.senders.items():
                while sender.credit and sender not in quiet:
                    client.send(sender, tenant.encode(), settled=True)
            self.world.mesh.advance(STEP)
            for (receiver, client), taken in zip(self.receivers.items(), self.taken, strict=True):
                taken.update(bytes(each.payload).decode() for each in client.take())
                receiver.flow(20)
            self.world.mesh.run()
        taken = sum(self.taken, Counter[str]())
        return taken["market"] / taken.total()


@pytest.mark.parametrize(
    ("weight", "edges", "senders"),
    [
        (3, LINE, [("shop", "A", 3), ("market", "C", 1)]),
        (1, LINE, [("shop", "A", 1), ("shop", "C", 1), ("market", "C", 3)]),
        (3, LINE[:1], [("shop", "A", 1), ("shop", "B", 1), ("market", "B", 1)]),
        (3, STAR, [("shop", "A", 2), ("shop", "B", 1), ("shop", "C", 1), ("market", "C", 1)]),
        (0.5, STAR, [("market", "A", 2), ("market", "T", 1), ("market", "C", 1), ("shop", "A", 1)]),
    ],
)
def test_each_tenant_has_its_part_whichever_routers_its_senders_are_at(
    weight: float, edges: list[tuple[str, str]], senders: list[tuple[str, str, int]]
) -> None:
    shop = Shop(weight, senders, edges)
    shop.part()
    assert shop.part() == pytest.approx(weight / (weight + 1), abs=0.06)


@pytest.mark.parametrize(
    ("edges", "receivers", "senders"),
    [
        (LINE[:1], "AB", [("shop", "A", 1), ("market", "A", 1)]),
        (LINE[:1], "AB", [("shop", "A", 3), ("market", "A", 1)]),
        (LINE, "AC", [("shop", "B", 3), ("market", "B", 1)]),
    ],
)
def test_a_tenant_has_most_of_its_part_of_receivers_at_several_routers(
    edges: list[tuple[str, str]], receivers: str, senders: list[tuple[str, str, int]]
) -> None:
    # The tenant that comes first sends whatever it gets before the other one sends anything.
    shop = Shop(3, senders, edges, receivers)
    shop.part(1.0)
    assert shop.part(1.5) == pytest.approx(0.72, abs=0.1)


@pytest.mark.parametrize(
    ("edges", "receivers", "senders"),
    [
        (LINE[:1], "AB", [("shop", "A", 3), ("market", "A", 1)]),
        (LINE, "BC", [("shop", "A", 3), ("market", "C", 1)]),
    ],
)
def test_each_receiver_of_a_multicast_gets_the_part_of_each_tenant(
    edges: list[tuple[str, str]], receivers: str, senders: list[tuple[str, str, int]]
) -> None:
    multicast = AddressConfig(pattern="orders", distribution=Distribution.MULTICAST)
    shop = Shop(3, senders, edges, receivers, multicast)
    shop.part(1.0)
    assert shop.part(1.0) == pytest.approx(0.75, abs=0.06)
    first, second = shop.taken
    assert first == second


def test_senders_that_send_nothing_and_those_that_have_left_do_not_count() -> None:
    shop = Shop(1, [("shop", "A", 1), ("market", "C", 1)])
    silent = [*shop.add("market", "A", 2), *shop.add("shop", "B", 1)]
    shop.part(quiet=silent)
    assert shop.part(quiet=silent) == pytest.approx(0.5, abs=0.06)
    for each in [each for each, (tenant, _) in shop.senders.items() if tenant == "market"]:
        each.detach()
        del shop.senders[each]
    shop.part()
    assert shop.part() == 0.0
    shop.add("market", "C", 1)
    shop.part()
    assert shop.part() == pytest.approx(0.5, abs=0.06)


def test_routers_say_nothing_of_one_tenant_and_end_what_they_have_said() -> None:
    shop = Shop(1, [("shop", "A", 1), ("shop", "C", 1)])
    shop.part()
    assert SENDING not in shop.octets
    (sender,) = shop.add("market", "C", 1)
    shop.part()
    assert SENDING in shop.octets
    sender.detach()
    del shop.senders[sender]
    shop.part(2.0)
    shop.octets.clear()
    shop.part()
    assert SENDING not in shop.octets
    for each in list(shop.senders):
        each.detach()
    shop.world.mesh.advance(1.0)
    shop.octets.clear()
    shop.world.mesh.advance(60.0)
    assert SENDING not in shop.octets


@pytest.mark.parametrize(("silent", "part"), [("A", 0.5), ("B", 0.5), ("C", 0.75)])
def test_beside_a_router_that_says_and_hears_nothing_each_tenant_has_a_part(
    silent: str, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(3, [])
    contenders = shop.world.mesh[silent].core.context.routes._contenders  # type: ignore[attr-defined]
    for each in ("hear", "_tell"):  # as of a router of an earlier version
        monkeypatch.setattr(contenders, each, lambda *_: None)
    shop.add("market", "A", 1)
    shop.add("shop", "C", 1)
    shop.part(1.0)
    assert shop.part(1.0) == pytest.approx(part, abs=0.1)  # a lane that says nothing counts as one of the owner's


def lanes(shop: Shop, router: str, way: str) -> list[IncomingLink | OutgoingLink]:
    """Return the lanes of the address at a router. Args: way: incoming or outgoing."""
    records = shop.world.mesh[router].core.context.connections
    links = [each for record in records for each in getattr(record, way)]
    return [each for each in links if each.lane is not None and each.lane.name == "orders"]


WRONG: tuple[Value, ...] = (
    5,
    {1: UInt(1)},
    {"shop": UInt(0)},
    {"shop": -1},
    {"shop": ULong(2**40)},
    {"shop": "9"},
    {f"t{number}": UInt(1) for number in range(65)},
)


def test_what_a_neighbour_should_not_say_is_ignored() -> None:
    shop = Shop(3, [("shop", "A", 1), ("market", "C", 1)])
    shop.part()
    neighbour = shop.world.mesh["C"]
    (lane,) = [each.endpoint for each in lanes(shop, "C", "outgoing")]
    for wrong in WRONG:
        said = {Symbol(SENDING.decode()): wrong}
        neighbour.core.change(partial(tell, lane, said), neighbour.now)
        shop.part(0.3)
    assert shop.part(2.0) == pytest.approx(0.75, abs=0.06)


def test_a_flow_that_is_too_large_to_be_written_announces_no_window() -> None:
    shop = Shop(3, [("market", "A", 1)], LINE[:1])
    shop.part(0.3)
    (lane,) = [each.endpoint for each in lanes(shop, "B", "incoming")]
    session = lane.session.flow_state
    before = session.incoming_limit, session.flow_due
    assert (session.next_incoming_id + session.window_size) % 2**32 != session.incoming_limit, "there is more to tell"
    with pytest.raises(CommandError):
        tell(lane, {Symbol("too-large"): "x" * lane.session.connection.remote_max_frame_size})
    assert (session.incoming_limit, session.flow_due) == before
