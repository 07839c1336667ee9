"""`$management` of a running router, asked by its clients and by the program around it."""

import gc
import logging
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Rejected, Released
from amqpmesh.router.amqp.standard.performatives import Detach
from amqpmesh.router.client.links.incoming import Incoming
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.config.file import AddressConfig, PolicyConfig
from amqpmesh.router.incremental import Steps
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.management import service
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import ModifiedError, RejectedError
from amqpmesh.router.runtime.management_node import CREDIT, FAULT_PAUSE, REPLY_TIME
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.snapshots import PAGES_TIME, PAUSE, SNAPSHOT_TIME
from amqpmesh.router.statistics.router_statistics import LinkStatistics, Statistics
from tests.support.peers.bad_requests import send_all, send_other_formats
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_stream import connected
from tests.support.tasks.stopwatches import measure

ADDRESS = service.ADDRESS
LINKS = Message(application_properties={"operation": "QUERY", "entityType": "org.amqpmesh.link"})


def rows(response: Message) -> list[dict[str, Any]]:
    assert response.application_properties["statusCode"] == 200
    names = response.body["attributeNames"]
    return [dict(zip(names, row, strict=True)) for row in response.body["results"]]


async def test_a_client_asks_why_its_sender_has_no_credit(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.sender("orders", name="mine"),
        client.requester(ADDRESS) as requests,
    ):
        (mine,) = (row for row in rows(await requests.request(LINKS)) if row["name"] == "mine")
        assert (mine["address"], mine["credit"], mine["reason"]) == ("orders", 0, "no receiver anywhere")
        refused = await requests.request(Message(application_properties={"operation": "CREATE"}))
        assert refused.application_properties["statusCode"] == 400
    assert router.statistics().is_empty


async def test_the_program_that_the_router_is_in_asks_as_well(autojump_clock: MockClock) -> None:
    async with Router(id="A") as router, router.requester(f"{ADDRESS}@A") as requests:
        asked = Message(application_properties={"operation": "READ", "identity": "router/A"})
        read = (await requests.request(asked)).body
        assert read["id"] == "A"
        assert read["connections"] == router.statistics().router.connections == 1
    assert router.statistics().is_empty


async def test_an_anonymous_sender_asks_by_the_to_of_its_message(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.receiver(None) as answers,
        client.sender(None) as sender,
    ):
        await sender.send(Message(to=ADDRESS, reply_to=answers.address, correlation_id=7))
        answer = (await answers.receive()).message
        assert (answer.correlation_id, answer.application_properties["statusCode"]) == (7, 400)


async def test_requests_can_be_sent_as_soon_as_the_router_has_started(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(id="A") as router:
        assert [node.name for node in router.statistics().nodes] == [ADDRESS]
        peer = connected(nursery, router)
        attach = await peer.attach(Role.SENDER, ADDRESS)
        assert attach.target is not None
        await peer.close()


async def test_the_configuration_of_addresses_does_not_touch_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    for distribution in Distribution:
        async with (
            Router(id="A", addresses=(AddressConfig(pattern="#", distribution=distribution),)) as router,
            joined(nursery, router) as client,
            client.requester(ADDRESS) as requests,
        ):
            assert rows(await requests.request(LINKS))


async def test_nobody_else_may_consume_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(id="A") as router:
        peer = connected(nursery, router)
        assert (await peer.attach(Role.RECEIVER, ADDRESS)).source is None
        detach = await peer.expect(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:unauthorized-access"
        await peer.close()
        with pytest.raises(LinkDetachedError):
            async with router.receiver(ADDRESS):
                pass


async def test_other_names_of_the_routers_own_are_not_there(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(id="A") as router:
        peer = connected(nursery, router)
        assert (await peer.attach(Role.SENDER, "$other")).target is None
        assert (await peer.expect(Detach)).error is not None
        await peer.close()


async def test_the_routers_own_connection_is_not_in_the_statistics(autojump_clock: MockClock) -> None:
    async with Router(id="A") as router:
        await trio.sleep(1)
        told = router.statistics()
        assert told.is_empty
        assert (told.connections, told.links, told.addresses) == ((), (), ())


async def test_it_is_not_in_the_log_that_the_router_connects_to_itself(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
    async with Router(id="A") as router:
        await trio.sleep(1)
        await router.drain()
        await trio.sleep(1)
    assert not caplog.records


async def test_a_request_without_reply_to_is_rejected(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(id="A") as router, joined(nursery, router) as client, client.sender(ADDRESS) as sender:
        with pytest.raises(RejectedError) as refused:
            await sender.send(LINKS)
        assert refused.value.error is not None
        assert refused.value.error.condition == "amqp:invalid-field"


async def test_a_request_with_very_many_values_is_rejected(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(id="A") as router, joined(nursery, router) as client, client.sender(ADDRESS) as sender:
        with pytest.raises(RejectedError) as refused:
            await sender.send(Message([[]] * 300, reply_to="somewhere"))
        assert refused.value.error is not None
        assert refused.value.error.condition == "amqp:resource-limit-exceeded"


async def test_a_peer_that_asks_and_takes_no_answer_stops_no_other_peer(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.receiver(None, credit=0) as silent,
        client.sender(ADDRESS) as sender,
    ):
        for _ in range(10 * CREDIT):
            await sender.send(Message(reply_to=silent.address, application_properties={"operation": "QUERY"}))
        began = trio.current_time()
        async with client.requester(ADDRESS) as requests:
            assert rows(await requests.request(LINKS))
        assert trio.current_time() - began <= REPLY_TIME


async def test_answers_come_though_memory_is_used_up(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with (
        Router(id="A", memory=2**20) as router,
        joined(nursery, router) as reader,
        joined(nursery, router) as writer,
        joined(nursery, router) as asker,
        reader.receiver("q", buffer=1) as unread,
        writer.sender("q") as sender,
    ):
        await sender.transfer(b"\x00")
        nursery.start_soon(sender.transfer, b"\x00" * 1_500_000)  # it waits in the router until the first is taken
        await trio.sleep(1)
        assert router.statistics().router.memory_used_up
        async with asker.requester(ADDRESS) as requests:
            with trio.fail_after(REPLY_TIME):
                for _ in range(3):
                    assert rows(await requests.request(LINKS))
        assert router.statistics().router.memory_used_up
        for _ in range(2):
            (await unread.receive()).accept()


async def test_others_have_their_turn_while_a_long_answer_is_made(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    seconds = count()
    turns = 0
    ended = False

    async def others() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await trio.sleep(PAUSE)  # as long as that after a step

    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.requester(ADDRESS) as requests,
        AsyncExitStack() as links,
    ):

        async def turns_of_an_answer() -> int:
            await trio.sleep(SNAPSHOT_TIME)
            began = turns
            assert rows(await requests.request(LINKS))
            return turns - began

        measure(lambda: float(next(seconds)))  # every step takes too long
        nursery.start_soon(others)
        short = await turns_of_an_answer()
        for _ in range(100):
            await links.enter_async_context(client.sender("q"))
        assert await turns_of_an_answer() >= 100 > 2 * short
        ended = True


async def test_nothing_that_was_found_out_stays_when_nobody_asks_any_more(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.requester(ADDRESS) as requests,
    ):
        for _ in range(2):
            async with client.sender("q", name="of a link that goes"):
                assert rows(await requests.request(LINKS))
            assert "of a link that goes" in names_of_links()
            await trio.sleep(PAGES_TIME + 1.0)
            assert "of a link that goes" not in names_of_links()


def names_of_links() -> set[str]:
    """Those of all statistics that there are."""
    gc.collect()
    return {each.name for each in gc.get_objects() if isinstance(each, LinkStatistics)}


async def test_a_router_that_was_asked_ends_without_waiting(autojump_clock: MockClock) -> None:
    async with Router(id="A") as router:
        async with router.requester(ADDRESS) as requests:
            await requests.request(LINKS)
        ended_at = trio.current_time()
    assert trio.current_time() == ended_at


async def test_what_was_found_out_for_one_is_told_to_all_for_a_moment(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.requester(ADDRESS) as requests,
    ):
        before = rows(await requests.request(LINKS))
        async with client.sender("q", name="new"):
            assert rows(await requests.request(LINKS)) == before
            await trio.sleep(SNAPSHOT_TIME)
            assert "new" in {row["name"] for row in rows(await requests.request(LINKS))}


async def test_the_pages_of_an_answer_are_of_one_moment_and_cost_one_survey(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys = 0
    survey = Router._take_snapshot

    def counted(router: Router) -> Steps[Statistics]:
        nonlocal surveys
        surveys += 1
        return survey(router)

    def page(offset: int) -> Message:
        asked: dict[str, Any] = {**LINKS.application_properties, "offset": offset, "count": 5}
        return Message(application_properties=asked)

    monkeypatch.setattr(Router, "_take_snapshot", counted)
    async with (
        Router(id="A") as router,
        joined(nursery, router) as client,
        client.requester(ADDRESS) as requests,
        AsyncExitStack() as links,
    ):
        for _ in range(20):
            await links.enter_async_context(client.sender("q"))
        told = rows(await requests.request(page(0)))
        async with client.sender("q", name="new"):
            while True:
                await trio.sleep(SNAPSHOT_TIME)  # an answer of many pages takes longer than that
                more = rows(await requests.request(page(len(told))))
                if not more:
                    break
                told += more
        assert surveys == 1
        assert len({row["identity"] for row in told}) == len(told) >= 20
        assert "new" not in {row["name"] for row in told}


async def test_a_peer_that_asks_again_and_again_gets_only_a_share_of_the_time(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    seconds = count()
    async with Router(id="A") as router, joined(nursery, router) as client, client.requester(ADDRESS) as requests:
        measure(lambda: float(next(seconds)))  # every step takes a second
        began = trio.current_time()
        for _ in range(3):
            rows(await requests.request(LINKS))
        assert trio.current_time() - began >= 3 * 2 * PAUSE  # two links at least, a step each


async def test_a_fault_of_ours_costs_one_request(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answering = service.respond

    def faulty(request: Message, statistics: Statistics, change: service.Change | None) -> Steps[Message]:
        if request.message_id == "trouble":
            raise RuntimeError("a fault")
        return answering(request, statistics, change)

    monkeypatch.setattr(service, "respond", faulty)
    async with Router(id="A") as router, joined(nursery, router) as client, client.sender(ADDRESS) as sender:
        sent = await sender.transfer(Message(message_id="trouble", reply_to="x"))
        assert not isinstance(await sent.outcome(), Rejected | Released)
        async with client.requester(ADDRESS) as requests:
            assert rows(await requests.request(LINKS))
    assert [event_of(record) for record in caplog.records if record.levelname == "ERROR"] == ["internal error"]


async def test_no_request_ends_or_stops_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(id="A") as router, joined(nursery, router) as client:
        await send_all(client, ADDRESS)
        await send_other_formats(connected(nursery, router), ADDRESS)
        with trio.fail_after(REPLY_TIME):
            async with client.requester(ADDRESS) as requests:
                assert rows(await requests.request(LINKS))


@pytest.mark.parametrize(
    ("cls", "method"),
    [(ReceiverLink, "transfer_received"), (Incoming, "decode")],
    ids=["as a request comes", "as it is taken"],
)
async def test_a_fault_of_ours_on_its_link_does_not_end_it(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cls: type,
    method: str,
) -> None:
    async with Router(id="A") as router, joined(nursery, router) as client, client.sender(ADDRESS) as sender:
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(cls, method, lambda *_: 1 / 0)
                with trio.fail_after(60), pytest.raises(ModifiedError):
                    await sender.send(LINKS)
            with trio.fail_after(60):
                async with client.requester(ADDRESS) as requests:
                    assert rows(await requests.request(LINKS))
    assert "internal error" in {event_of(record) for record in caplog.records if record.levelname == "ERROR"}


async def test_a_fault_that_is_there_to_stay_is_told_now_and_then(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ReceiverLink, "attach_received", lambda *_: 1 / 0)
        async with Router(id="A") as router:
            tries = 60
            await trio.sleep(tries * FAULT_PAUSE)
            assert tries <= len(caplog.records) <= 4 * tries
            patched.undo()
            with trio.fail_after(60):
                async with joined(nursery, router) as client, client.requester(ADDRESS) as requests:
                    assert rows(await requests.request(LINKS))


@pytest.mark.parametrize(("rights", "permitted"), [("", False), ('send = ["q"]', True)])
async def test_an_answer_goes_only_where_the_sender_of_the_request_may_send(
    nursery: trio.Nursery, tmp_path: Path, rights: str, *, permitted: bool, autojump_clock: MockClock
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(f'[[group]]\nname = "g"\nmay = ["dynamic"]\nmanage = ["read"]\n{rights}')
    asked = Message(application_properties={"operation": "READ", "identity": "router/A"}, reply_to="q")
    async with (
        Router(id="A", policy=PolicyConfig(file=file)) as router,
        router.receiver("q") as receiver,
        joined(nursery, router) as client,
        client.sender(ADDRESS) as sender,
    ):
        if permitted:
            await sender.send(asked)
            (await receiver.receive()).accept()
        else:
            with pytest.raises(RejectedError, match="not permitted"):
                await sender.send(asked)
            with trio.move_on_after(10.0) as waited:
                await receiver.receive()
            assert waited.cancelled_caught
        async with client.requester(ADDRESS) as requests:
            assert (await requests.request(LINKS)).application_properties["statusCode"] == 200
