"""The links of clients that are away: entities, the end of one by a request, counts, events, and who sees them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh import InDoubtError, ListenerConfig, Router, connect
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Detach
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.queries import entities_of, query
from amqpmesh.router.management.requested_changes import remove
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import Numbers, TenantViews
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.telemetry.schema import Happening
from tests.router.client.test_resuming_sender import LASTING, ways
from tests.router.http.test_metrics import of, of_router, told
from tests.router.management.test_config_edits import ask
from tests.router.resumption.test_returning_senders import SECOND, Roaming, tag
from tests.support.data.recordings import Records
from tests.support.tasks.calls import Call
from tests.support.worlds.network import Network
from tests.support.worlds.tenants import Tenants

COUNTED = (
    *("suspended", "parked_unsettled", "resumed", "lapsed", "evicted", "resumed_outcomes", "resumed_again"),
    *("aborted_resumes", "restated", "in_doubt"),
)


def counts(r: Roaming) -> dict[str, int]:
    """Return the counts of resumption that are not 0."""
    router = snapshot(r.network.core).router
    found = {name: getattr(router, name) for name in COUNTED}
    metrics = told(of_router(r.network))
    for name, metric in (("suspended", "suspended_links"), ("parked_unsettled", "suspended_deliveries")):
        assert of(metrics, metric) == found[name]
    for name, metric in (("resumed", "resumed_links"), ("lapsed", "expired_links"), ("evicted", "evicted_links")):
        assert of(metrics, f"{metric}_total") == found[name]
    for name in ("aborted_resumes", "restated", "in_doubt"):
        assert of(metrics, f"{name}_total") == found[name]
    for name, state in (("resumed_outcomes", "outcome"), ("resumed_again", "unsettled")):
        assert of(metrics, "resumed_deliveries_total", state=state) == found[name]
    assert of(metrics, "resumable_links") == router.resumable
    assert of(metrics, "suspended_bytes") == router.kept_octets
    return {name: count for name, count in found.items() if count}


def test_a_link_whose_client_is_away_is_listed() -> None:
    r = Roaming()
    r.send(3)
    r.arrivals[0].accept()
    r.network.run()
    (link,) = (each for each in snapshot(r.network.core).links if each.direction is Direction.INCOMING)
    at = r.network.now
    r.lose()
    r.network.advance(10)
    (row,) = snapshot(r.network.core).termini
    assert (row.number, row.name, row.connection) == (link.number, "sender of q", link.connection)
    assert (row.direction, row.address, row.tenant, row.user) == (Direction.INCOMING, "q", "", None)
    assert (row.host, row.unsettled, row.timeout) == ("127.0.0.1", 2, 30)
    assert (row.suspended_since, row.expires_at) == (at, at + 30)
    assert row.octets == snapshot(r.network.core).router.kept_octets > 0
    r.back({tag(1): None, tag(2): None})
    assert snapshot(r.network.core).termini == ()
    for arrival in r.arrivals[1:]:
        arrival.accept()
    r.finish()


def test_a_receiver_that_is_away_is_listed_with_what_it_has() -> None:
    network = Network()
    away, producer = network.client("till"), network.client()
    away.receiver(None, name="in", source=Source(address="q", timeout=20), rcv=SECOND)
    sender = producer.sender("q")
    for _ in range(2):
        producer.send(sender)
    away.lose()
    told = snapshot(network.core)
    (row,) = told.termini
    assert (row.direction, row.name, row.address, row.container_id) == (Direction.OUTGOING, "in", "q", "till")
    assert (row.unsettled, row.timeout, told.router.parked_unsettled) == (2, 20, 2)
    remove(network.core, row, network.now)
    network.run()
    assert snapshot(network.core).termini == ()
    assert all(each.outcome is not None for each in producer.sent.values())
    network.leave()


def test_the_time_of_a_detached_link_does_not_run_while_its_connection_is_there() -> None:
    r = Roaming()
    r.peer.write(Detach(handle=0))
    (row,) = snapshot(r.network.core).termini
    assert row.expires_at is None
    r.finish()


def test_what_became_of_links_that_came_back_is_counted() -> None:
    r = Roaming(SECOND)
    r.send(4)
    r.lose()
    assert counts(r) == {"suspended": 1, "parked_unsettled": 4}
    for arrival in r.arrivals[:2]:
        arrival.dispose(Accepted(), settled=False)
    r.network.run()
    r.back({tag(0): None, tag(1): Rejected(), tag(2): None, tag(3): None})
    again = {"resumed": 1, "resumed_outcomes": 2, "resumed_again": 2, "restated": 1}
    assert counts(r) == again
    r.resume(7, of=2, aborted=True)
    assert counts(r) == again | {"aborted_resumes": 1}
    r.lose()
    r.network.advance(31)
    assert counts(r) == again | {"aborted_resumes": 1, "lapsed": 1}
    r.back({tag(3): None, tag(9): None})
    assert counts(r) == again | {"aborted_resumes": 1, "lapsed": 1, "in_doubt": 2}
    r.lose()
    r.network.advance(31)


def test_a_link_that_is_removed_cannot_be_resumed() -> None:
    r = Roaming()
    r.send()
    r.lose()
    (row,) = snapshot(r.network.core).termini
    with pytest.raises(LookupError):
        remove(r.network.core, replace(row, tenant="shop"), r.network.now)
    remove(r.network.core, row, r.network.now)
    assert r.suspended == 0
    with pytest.raises(LookupError):
        remove(r.network.core, row, r.network.now)
    assert r.back({tag(0): None}).unsettled is None
    r.arrivals[0].accept()
    r.finish()


def test_a_tenant_sees_its_own_and_with_other_numbers() -> None:
    tenants = Tenants("A", [], shop="", bank="")
    for tenant in ("shop", "bank"):
        client = tenants.client(tenant)
        client.sender(None, target=Target(address="q", timeout=30))
        client.lose()
    told = snapshot(tenants.mesh["A"].core)
    assert len(told.termini) == 2
    views = TenantViews(told, Numbers(bytes(16)))
    part = run_to_end(views.of("shop"))
    (row,) = part["terminus"]
    (whole,) = (each for each in told.termini if each.tenant == "shop")
    assert row.number != whole.number
    assert views.unmasked("terminus", row) == whole
    assert not {"suspended", "in_doubt"} & {each.name for each in fields(part["router"][0])}


def test_each_event_is_recorded() -> None:
    r = Roaming()
    records = Records(r.network.core)
    r.send()
    r.lose()
    r.back({tag(0): None})
    r.lose()
    r.network.advance(31)
    name, happened = "sender of q", records.happened()
    assert [what for what, link in happened if link == name] == [
        *(Happening.SUSPENDED, Happening.DOWN, Happening.RESUMED, Happening.UP),
        *(Happening.SUSPENDED, Happening.DOWN, Happening.EXPIRED),
    ]


@pytest.mark.parametrize("may", [True, False])
async def test_those_who_may_change_it_list_and_remove_it(
    nursery: trio.Nursery, autojump_clock: MockClock, may: bool
) -> None:
    config = replace(LASTING, id="A", listeners=(ListenerConfig(url="amqp://127.0.0.1:0", name="own", manage=may),))
    async with Router(config) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with (
            roads.connect(id="till", reconnect=True) as connection,
            connection.sender("q", resume=30.0) as sender,
        ):
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            roads.close()
            await wait_all_tasks_blocked()
            async with (
                connect(router.listeners[0].url) as client,
                client.requester(ADDRESS) as requester,
            ):
                (row,) = entities_of(await requester.request(query("terminus")))
                assert (row["container_id"], row["address"], row["unsettled"]) == ("till", "q", 1)
                identity = row["identity"]
                assert (await ask(requester, "READ", identity=identity)) == (200, row)
                status, _ = await ask(requester, "DELETE", identity=identity)
                assert status == (204 if may else 403)
                left = entities_of(await requester.request(query("terminus")))
                assert len(left) == (0 if may else 1)
            roads.lead_to(router)
            if may:
                with pytest.raises(InDoubtError):
                    await call.result()
                delivery.accept()
            else:
                delivery.accept()
                await call.result()
    assert router.statistics().is_empty
