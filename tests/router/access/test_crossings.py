"""Addresses that cross tenants by exports and imports, on one router and over two."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp.standard.definitions import Error, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.attach.homes import Homes
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, RedirectConfig, WorkerConfig
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.kernel import AnonymousRoutes
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import Numbers, TenantViews
from amqpmesh.router.model.redirects import info
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.telemetry.schema import Kind
from tests.support.data.recordings import Records
from tests.support.peers.broker import Broker
from tests.support.worlds.network import message
from tests.support.worlds.tenants import Tenants, made, policy

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Link
    from tests.support.worlds.network import Client, Sent

UNAUTHORIZED: Final = "amqp:unauthorized-access"
#: Invoices of `billing` that `audit` may read; requests of `audit` to services of `billing`, with answers.
EXPORTS: Final = (
    'exports = [{ pattern = "invoices/#", to = "audit", as = "billing/invoices/#", may = ["receive"] },'
    ' { pattern = "svc/*", to = "audit", as = "billing.*", may = ["send"], replies = true }]'
)
IMPORTS: Final = 'imports = [{ from = "billing", pattern = "billing/#" }, { from = "billing", pattern = "billing.*" }]'
PLACES: Final = ["AA", "AB", "BA"]


def tenants(*addresses: AddressConfig, own: dict[str, AddressConfig] | None = None) -> Tenants:
    return Tenants("AB", [("A", "B")], *addresses, own=own, billing=EXPORTS, audit=IMPORTS, shop="")


def refusal(client: Client, link: Link) -> str | None:
    """Return the condition with which a link was refused or ended; None: it is attached."""
    error = client.detached.get(link)
    if error is None:
        assert link.is_attached
        return None
    assert "svc" not in str(error)
    assert not str(error).count("invoices") or "billing/invoices" in str(error)
    return str(error.condition)


def take(client: Client, number: int) -> list[bytes]:
    found = client.take(number)
    for each in found:
        each.accept()
    client.network.run()
    return [bytes(each.payload) for each in found]


@pytest.mark.parametrize("place", PLACES)
def test_an_importer_receives_what_is_exported_under_the_name_that_it_uses(place: str) -> None:
    world = tenants()
    here, there = place
    audit, billing, own = world.client("audit", there), world.client("billing", here), world.client("audit", there)
    links = [audit.receiver("billing/invoices/7"), own.receiver("invoices/7")]
    world.rest()
    sender = billing.sender("invoices/7")
    world.rest()
    sent = billing.send(sender)
    take(audit, 1)
    assert sent.outcome == Accepted()
    assert not own.take(), "the same name in the importer's tenant is its own address"
    assert [refusal(audit, links[0]), refusal(own, links[1])] == [None, None]
    (source,) = {getattr(each.remote.source, "address", None) for each in links[:1] if each.remote is not None}
    assert source == "billing/invoices/7"
    world.mesh.leave()


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_importer_sends_to_what_is_exported(place: str, anonymous: bool) -> None:
    world = tenants()
    here, there = place
    service, audit = world.client("billing", here), world.client("audit", there)
    service.receiver("svc/tax", credit=100)
    world.rest()
    sender = audit.sender(None if anonymous else "billing.tax")
    world.rest()
    for _ in range(5):
        sent = audit.send(sender, message(to="billing.tax"))
        take(service, 1)
        assert sent.outcome == Accepted()
    (link,) = audit.record.incoming
    if anonymous:
        route = link.endpoint.flow_state.fast_route
        assert isinstance(route, AnonymousRoutes)
        assert route.find(b"billing.tax") is not None
    world.mesh.leave()


def test_each_use_that_no_export_permits_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    world = tenants()
    audit, shop, billing = (world.client(each) for each in ("audit", "shop", "billing"))
    with caplog.at_level(logging.INFO, "amqpmesh"):
        refused = [
            audit.sender("billing/invoices/7"),
            audit.sender("billing/other"),
            audit.sender("billing"),
            audit.receiver("billing.tax"),
            audit.sender("billing/invoices/7@B"),
            audit.receiver("billing.tax@A"),
            audit.sender("billing/" + "x/" * 300),
        ]
    assert [refusal(audit, each) for each in refused] == [UNAUTHORIZED] * len(refused)
    assert "no export permits send to billing/invoices/7; its groups: all" in caplog.text
    assert world.mesh["A"].core.context.denied == len(refused)
    outside = [shop.receiver("billing/invoices/7"), billing.receiver("billing/invoices/7")]
    assert [refusal(client, link) for client, link in zip((shop, billing), outside, strict=True)] == [None, None]
    sender = audit.sender(None)
    sent = audit.send(sender, message(to="billing/invoices/7"))
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert sent.outcome.error.condition == UNAUTHORIZED


def test_a_name_at_a_router_is_imported_too() -> None:
    world = tenants()
    service, audit = world.client("billing", "B"), world.client("audit", "A")
    service.receiver("svc/tax", credit=100)
    world.rest()
    links = [audit.sender("billing.tax@B"), audit.sender("@B"), audit.sender(None)]
    world.rest()
    for link, to in zip(links, ("any", "billing.tax", "billing.tax@B"), strict=True):
        sent = audit.send(link, message(to=to))
        take(service, 1)
        assert sent.outcome == Accepted()


def request(client: Client, to: str, anonymous: bool) -> tuple[Sent, str]:
    """Send a request, and return it with the address for the answer."""
    replies = made(client.receiver(None, source=Source(dynamic=True)))
    sender = client.sender(None if anonymous else to)
    client.network.advance(0.5)
    return client.send(sender, message(to=to)), replies


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_service_answers_to_dynamic_nodes_of_its_importers(place: str, anonymous: bool) -> None:
    world = tenants()
    here, there = place
    service, audit = world.client("billing", here), world.client("audit", there)
    service.receiver("svc/tax")
    world.rest()
    sent, replies = request(audit, "billing.tax", anonymous)
    take(service, 1)
    assert sent.outcome == Accepted()
    answers = service.sender(None if anonymous else replies)
    assert refusal(service, answers) is None
    world.rest()
    for _ in range(4):
        answer = service.send(answers, message(to=replies))
        take(audit, 1)
        assert answer.outcome == Accepted()
    world.mesh.leave()


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("of", ["shop", "billing"])
def test_other_peers_do_not_reach_a_dynamic_node_whose_name_they_know(place: str, anonymous: bool, of: str) -> None:
    world = tenants()
    here, there = place
    maker = world.client("billing" if of == "billing" else "audit", there)  # an importer answers no exporter
    other = world.client("audit" if of == "billing" else "shop", here)
    source, target = maker.receiver(None, source=Source(dynamic=True)), maker.sender(None, target=Target(dynamic=True))
    world.rest()
    for name in (made(source), made(target)):
        sender = other.sender(None if anonymous else name)
        if sender.is_attached:
            world.rest()
            if sender.credit:
                assert not isinstance(other.send(sender, message(to=name)).outcome, Accepted)
        assert refusal(other, other.receiver(name)) is not None
    assert not maker.take()
    assert not target.credit


def test_an_exporter_does_not_receive_from_a_dynamic_node_of_an_importer() -> None:
    world = tenants()
    audit, service = world.client("audit"), world.client("billing")
    for name in (
        made(audit.receiver(None, source=Source(dynamic=True))),
        made(audit.sender(None, target=Target(dynamic=True))),
    ):
        assert refusal(service, service.receiver(name)) is not None
        assert refusal(service, service.sender(name)) is None


def test_a_multicast_goes_to_receivers_of_both_tenants_at_all_routers() -> None:
    news = AddressConfig(pattern="invoices/#", distribution=Distribution.MULTICAST)
    world = tenants(news)
    receivers = [world.client(tenant, router) for tenant in ("audit", "billing") for router in "AB"]
    for each in receivers:
        name = "invoices/7" if each.record.peer.tenant == "billing" else "billing/invoices/7"
        each.receiver(name, credit=100)
    world.rest()
    billing = world.client("billing")
    sender = billing.sender("invoices/7")
    world.rest()
    for _ in range(3):
        sent = billing.send(sender)
        for each in receivers:
            take(each, 1)
        assert sent.outcome == Accepted()
    world.mesh.leave()


def test_the_exporters_addresses_redeliver_and_have_dead_letters_of_its_own() -> None:
    config = AddressConfig(pattern="svc/*", redeliver=True, attempts=2, dead_letter="dead")
    world = tenants(config)
    service, audit, dead = world.client("billing", "B"), world.client("audit"), world.client("billing")
    own = world.client("audit")
    service.receiver("svc/tax")
    dead.receiver("dead")
    own.receiver("dead")
    world.rest()
    sender = audit.sender("billing.tax")
    world.rest()
    sent = audit.send(sender)
    for _ in range(2):
        (arrival,) = service.take()
        arrival.dispose(Modified(delivery_failed=True), settled=True)
        world.mesh.run()
    assert isinstance(sent.outcome, Modified)
    take(dead, 1)
    assert not own.take()
    world.mesh.leave()


@pytest.mark.parametrize("exported", [True, False])
def test_dead_letters_go_to_an_imported_address_as_what_the_tenant_sends_does(exported: bool) -> None:
    config = AddressConfig(pattern="q", redeliver=True, dead_letter="dead")
    may = "send" if exported else "receive"
    world = Tenants(
        "AB",
        [("A", "B")],
        config,
        operator=f'exports = [{{ pattern = "letters", to = "shop", as = "dead", may = ["{may}"] }}]',
        shop='imports = [{ from = "operator", pattern = "dead" }]',
    )
    operator, shop = world.client("operator", "B"), world.client("shop")
    operator.receiver("letters")
    shop.receiver("q")
    world.rest()
    shop.send(shop.sender("q"))
    shop.take(1)[0].dispose(Rejected(), settled=True)
    world.rest()
    take(operator, int(exported))


@pytest.mark.parametrize(
    ("pattern", "alias", "expected"),
    [
        ("old", "billing.tax", None),  # a name of the importer's
        ("svc/old", "svc/tax", None),  # one of the exporter's, within the export
        ("svc/old", "other", UNAUTHORIZED),
        ("svc/old", "svc/tax@B", UNAUTHORIZED),
        ("svc/old", "svc/tax/more", UNAUTHORIZED),
    ],
)
def test_aliases_are_followed_as_far_as_the_export_reaches(pattern: str, alias: str, expected: str | None) -> None:
    world = tenants(AddressConfig(pattern=pattern, alias=alias))
    service, audit = world.client("billing"), world.client("audit")
    service.receiver("svc/tax")
    world.rest()
    sender = audit.sender("old" if pattern == "old" else "billing.old")
    assert refusal(audit, sender) == expected
    if expected is None:
        audit.send(sender)
        take(service, 1)


@pytest.mark.parametrize("router", "AB")
@pytest.mark.parametrize("way", ["link", "anonymous", "at a router"])
def test_a_redirect_of_the_exporters_address_is_not_told(router: str, way: str) -> None:
    place = RedirectConfig(hostname="secret", network_host="secret.example", port=5672, address="svc/secret")
    own = AddressConfig(pattern="svc/*", redirect=place)
    world = tenants(own=dict.fromkeys("AB", own))
    audit = world.client("audit")
    to = f"billing.tax@{router}" if way == "at a router" else "billing.tax"
    sender = audit.sender(to if way == "link" else None)
    if way == "link":
        error = audit.detached[sender]
    else:
        sent = audit.send(sender, message(to=to))
        assert isinstance(sent.outcome, Rejected)
        error = sent.outcome.error
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert "secret" not in str(error)


CHANGES: Final = [
    (EXPORTS.replace('pattern = "invoices/#"', 'pattern = "bills/#"'), IMPORTS, "the name means another address"),
    (EXPORTS.replace('pattern = "invoices/#"', 'pattern = "#"'), IMPORTS, "so does this one, though both are exported"),
    ("", IMPORTS, "no export"),
    (EXPORTS, "", "no import"),
    (EXPORTS.replace('to = "audit"', 'to = "shop"'), IMPORTS, "it is for another tenant"),
]


@pytest.mark.parametrize(("exports", "imports", "why"), CHANGES)
def test_links_whose_export_or_import_is_gone_end_and_others_stay(exports: str, imports: str, why: str) -> None:
    world = tenants()
    audit, billing = world.client("audit"), world.client("billing", "B")
    lost = audit.receiver("billing/invoices/7")
    kept = [audit.receiver("own"), audit.sender("own"), audit.sender(None)]
    theirs = [billing.sender("invoices/7"), billing.receiver("svc/tax")]
    world.change(policy(billing=EXPORTS, audit=IMPORTS, shop=""))
    assert refusal(audit, lost) is None
    world.change(policy(billing=exports, audit=imports, shop=""))
    assert refusal(audit, lost) == UNAUTHORIZED, why
    assert [refusal(audit, each) for each in kept] == [None] * 3
    assert [refusal(billing, each) for each in theirs] == [None] * 2
    world.mesh.leave()


def test_a_link_to_an_own_address_ends_when_its_name_becomes_an_imported_one() -> None:
    world = Tenants(billing="", audit="")
    audit = world.client("audit")
    link, other = audit.receiver("billing/invoices/7"), audit.receiver("billing2")
    world.change(policy(billing=EXPORTS, audit=IMPORTS, shop=""))
    assert [refusal(audit, each) for each in (link, other)] == [UNAUTHORIZED, None]


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_answers_end_when_the_export_permits_none_any_more(place: str, anonymous: bool) -> None:
    world = tenants()
    here, there = place
    service, audit = world.client("billing", here), world.client("audit", there)
    replies = made(audit.receiver(None, source=Source(dynamic=True), credit=100))
    sender = service.sender(None if anonymous else replies)
    for _ in range(3):
        assert service.send(sender, message(to=replies)) is not None
        take(audit, 1)
    world.change(policy(billing=EXPORTS.replace(", replies = true", ""), audit=IMPORTS, shop=""))
    if anonymous or here != there:
        assert refusal(service, sender) is None
        sent = service.send(sender, message(to=replies))
        assert isinstance(sent.outcome, Rejected | Released | Modified)
    else:
        assert refusal(service, sender) == UNAUTHORIZED
    assert not audit.take()


def test_a_message_of_an_anonymous_sender_is_refused_once_its_export_is_gone() -> None:
    world = tenants()
    service, audit = world.client("billing", "B"), world.client("audit")
    service.receiver("svc/tax", credit=100)
    world.rest()
    sender = audit.sender(None)
    for _ in range(3):
        audit.send(sender, message(to="billing.tax"))
        take(service, 1)
    world.change(policy(billing="", audit=IMPORTS, shop=""))
    sent = audit.send(sender, message(to="billing.tax"))
    assert isinstance(sent.outcome, Rejected)
    assert not service.take()
    world.change(policy(billing=EXPORTS, audit="", shop=""))
    assert not isinstance(audit.send(sender, message(to="billing.tax")).outcome, Accepted), (
        "it is an address of its own"
    )
    assert not service.take()


def test_a_link_is_shown_by_the_name_and_the_tenant_of_its_peer() -> None:
    world = tenants()
    records = Records(world.mesh["A"].core)
    audit, billing = world.client("audit"), world.client("billing")
    audit.receiver("billing/invoices/7")
    billing.sender("invoices/7")
    assert {(each["tenant"], each["address"]) for each in records.taken[Kind.LINK] if not each["from_router"]} == {
        ("audit", "billing/invoices/7"),
        ("billing", "invoices/7"),
    }
    shown = snapshot(world.mesh["A"].core)
    assert {(each.direction, each.tenant, each.address) for each in shown.links} == {
        (Direction.OUTGOING, "audit", "billing/invoices/7"),
        (Direction.INCOMING, "billing", "invoices/7"),
    }
    (address,) = [each for each in shown.addresses if each.name.endswith("invoices/7")]
    assert (address.tenant, address.name, address.producers, address.consumers) == ("billing", "invoices/7", 1, 1)


def test_the_management_node_shows_an_importer_the_names_that_it_uses() -> None:
    world = tenants()
    audit, billing = world.client("audit"), world.client("billing")
    audit.sender("billing.tax")
    billing.receiver("svc/tax")
    views = TenantViews(snapshot(world.mesh["A"].core), Numbers(bytes(16)))
    parts = {tenant: run_to_end(views.of(tenant)) for tenant in ("audit", "billing", "shop")}
    assert [each.address for each in parts["audit"]["link"]] == ["billing.tax"]
    assert "svc" not in repr(parts["audit"])
    assert not parts["audit"].get("address")
    assert [each.address for each in parts["billing"]["link"]] == ["svc/tax"]
    assert "billing.tax" not in repr(parts["billing"])
    assert "tax" not in repr(parts["shop"])


def test_the_operator_may_export_and_import() -> None:
    world = Tenants(
        operator='exports = [{ pattern = "status", to = "shop", may = ["receive"] }]\n'
        'imports = [{ from = "shop", pattern = "orders/#" }]',
        shop='imports = [{ from = "operator", pattern = "status" }]\n'
        'exports = [{ pattern = "#", to = "operator", as = "orders/#", may = ["receive"] }]',
    )
    operator, shop = world.client("operator"), world.client("shop", "B")
    operator.receiver("orders/new")
    shop.receiver("status")
    world.rest()
    senders = [shop.sender("new"), operator.sender("status")]
    world.rest()
    shop.send(senders[0])
    operator.send(senders[1])
    take(operator, 1)
    take(shop, 1)
    assert refusal(operator, operator.sender("orders/new")) == UNAUTHORIZED
    assert refusal(operator, operator.receiver("orders/$management")) == UNAUTHORIZED
    world.mesh.leave()


def test_what_is_imported_is_not_exported_again() -> None:
    world = Tenants(
        a='exports = [{ pattern = "q", to = "b", may = ["send"] }]',
        b='imports = [{ from = "a", pattern = "q" }]\n'
        'exports = [{ pattern = "#", to = "c", as = "b/#", may = ["send"] }]',
        c='imports = [{ from = "b", pattern = "b/#" }]',
    )
    c = world.client("c")
    assert refusal(c, c.sender("b/other")) is None
    assert refusal(c, c.sender("b/q")) == UNAUTHORIZED


@pytest.mark.parametrize("way", ["link", "anonymous", "at a router"])
def test_what_a_container_says_of_the_exporters_address_does_not_reach_an_importer(way: str) -> None:
    place = RedirectConfig(network_host="10.0.0.2", port=5672, address="secret", follow="router")
    world = tenants(AddressConfig(pattern="svc/*", redirect=place))
    router = world.mesh["B" if way == "at a router" else "A"]
    wanted: list[ConnectorConfig] = []
    router.core.on_demand.on_connect = lambda config, _: wanted.append(replace(config, idle_time_out=0.0))
    audit, billing = world.client("audit"), world.client("billing", "B" if way == "at a router" else "A")
    own = billing.sender("svc/tax")
    sender = audit.sender("billing.tax" if way == "link" else None)
    sent = None if way == "link" else audit.send(sender, message(to=f"billing.tax{'@B' * (way == 'at a router')}"))
    moved = Error(
        condition=LinkCondition.REDIRECT,
        description="secret",
        info=info(Redirect(hostname=None, network_host="secret")),
    )
    broker = Broker(router, connector=wanted[0], refuses={"secret": moved})
    world.mesh.run()
    assert broker.asked
    error = audit.detached[sender] if sent is None else getattr(sent.outcome, "error", None)
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert "secret" not in str(error)
    assert "10.0.0.2" not in str(error)
    told = billing.detached[own]
    assert told is not None
    assert told.condition == LinkCondition.REDIRECT, "the exporter's own clients are told"


def test_an_importer_is_served_by_the_worker_that_the_exporters_address_lives_at() -> None:
    world = tenants()
    core = world.mesh["A"].core
    homes = Homes(
        core.context, core.lookup, WorkerConfig(name="A", number=1, count=8, folder=Path("/")), lambda _: True
    )
    found: dict[str, set[int | None]] = {"billing": set(), "audit": set()}
    core.context.leads_away = lambda record, event: found[record.peer.tenant].add(homes.of_attach(record, event))
    billing, audit = world.client("billing"), world.client("audit")
    for number in range(6):
        for each in found.values():
            each.clear()
        billing.sender(f"svc/{number}")
        audit.sender(f"billing.{number}")
        assert found["billing"] == found["audit"] != {None}
    audit.receiver("billing.1")
    assert None in found["audit"], "a link that is refused needs no other worker"


def test_links_within_the_process_import_and_end_as_all_of_their_tenant() -> None:
    offer = 'exports = [{ pattern = "q", to = "operator", as = "shop/q", may = ["receive"] }]'
    world = Tenants("A", (), operator='imports = [{ from = "shop", pattern = "shop/#" }]', shop=offer)
    inside, shop = world.client("operator"), world.client("shop")
    inside.record.inside, inside.record.rights = True, None
    links = [inside.receiver("shop/q"), inside.receiver("own")]
    sent = shop.send(shop.sender("q"))
    take(inside, 1)
    assert sent.outcome == Accepted()
    assert refusal(inside, inside.sender("shop/q")) == UNAUTHORIZED
    world.change(policy(operator="", shop=offer))
    assert [refusal(inside, each) for each in links] == [UNAUTHORIZED, None]


def test_the_rate_of_an_address_is_of_its_owner_and_limits_importers_together_with_the_owners_own_clients() -> None:
    world = Tenants(
        "A",
        (),
        a='exports = [{ pattern = "q", to = "b", as = "a/q", may = ["send"] }]\n'
        'limits = { messages_per_address = "10/s" }',
        b='imports = [{ from = "a", pattern = "a/q" }]\nlimits = { messages_per_address = "40/s" }',
    )
    for tenant in ("a", "b"):
        world.client(tenant).receiver("q", credit=500)
    assert world.client("b").sender("q").credit == 40, "an address of the same name"
    importing = world.client("b").sender("a/q")
    assert importing.credit == 10
    assert world.client("a").sender("q").credit == 0
    world.mesh.advance(2.0)
    assert importing.credit <= 1, "it was asked to return what it does not use"


def test_each_tenant_has_a_rate_of_its_own_at_the_routers_own_addresses() -> None:
    rates = {"operator": 3, "a": 3, "b": 5}
    keys = {
        name: f'limits = {{ messages_per_address = "{rate}/s" }}\n'
        f'[[group]]\nname = "reads"\ntenant = "{name}"\nmanage = ["read"]'
        for name, rate in rates.items()
    }
    world = Tenants("A", (), **keys)
    context = world.mesh["A"].core.context
    context.nodes.make_own("$management")
    for tenant in rates:
        assert world.client(tenant).sender("$management").is_attached
    assert sorted(bucket.rate for bucket in context.rates.buckets) == [3.0, 3.0, 5.0]
