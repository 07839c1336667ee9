"""`--exactly-once`: commands that find out over the next connection what became of their messages."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio

from amqpmesh.router.cli.process.stdio import Output
from amqpmesh.router.config.address import AddressConfig, Resumption
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.message.outcomes import ReleasedError
from tests.support.processes.cuttable_path import Way

if TYPE_CHECKING:
    from amqpmesh.router.client.delivery import Delivery
    from tests.support.processes.router_thread import Command, Serve, Served


def test_each_message_of_a_sender_is_processed_once_over_many_connections(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(served)
    monkeypatch.setenv("AMQPMESH_URL", way.url)
    bodies: Counter[object] = Counter()

    def decide(delivery: Delivery) -> None:
        body = delivery.message.body
        bodies[body] += 1
        if body in ("3", "20", "41"):
            way.cut()
        delivery.accept()

    served.receive("q", decide, credit=5)
    said = command("send", "q", "--count", "50", "--exactly-once", "--json")
    assert said.status == 0, said.err
    told = json.loads(said.lines[-1])
    assert (told["sent"], told["accepted"], told["in_doubt"]) == (50, 50, 0)
    assert bodies == {str(number): 1 for number in range(1, 51)}
    assert way.made == 4


def test_the_link_has_the_name_and_the_connection_the_id_that_are_given(served: Served, command: Command) -> None:
    named: list[tuple[str, str]] = []

    def decide(delivery: Delivery) -> None:
        told = served.router.statistics()
        containers = {each.number: each.container_id for each in told.connections}
        named.extend((containers[each.connection], each.name) for each in told.links if each.connection in containers)
        delivery.accept()

    served.receive("q", decide)
    said = command("send", "q", "--body", "hi", "--exactly-once", "--id", "till-7", "--name", "orders")
    assert said.status == 0, said.err
    assert ("till-7", "orders") in named
    assert served.router.statistics().router.suspended == 0, "a link that was closed is not kept"


@pytest.mark.parametrize("exactly_once", [True, False])
def test_an_address_that_requires_it_takes_no_other_sender(serve: Serve, command: Command, exactly_once: bool) -> None:
    served = serve(addresses=[AddressConfig(pattern="q", resumption=Resumption.REQUIRED)])
    served.receive("q")
    said = command("send", "q", "--body", "hi", "--url", served.url, *(["--exactly-once"] if exactly_once else []))
    assert said.status == (0 if exactly_once else 3)
    assert exactly_once or "only links that can be resumed" in said.err


def test_a_peer_that_keeps_nothing_ends_it_with_3(serve: Serve, command: Command) -> None:
    served = serve(resumption=ResumptionConfig(timeout=0.0))
    served.receive("q")
    said = command("send", "q", "--body", "hi", "--url", served.url, "--exactly-once")
    assert said.status == 3
    assert "keeps no unsettled state" in said.err


@pytest.mark.parametrize("other", [["--settled"], ["--file", "-"]])
def test_what_is_not_kept_cannot_be_sent_exactly_once(command: Command, other: list[str]) -> None:
    said = command("send", "q", "--exactly-once", *other)
    assert said.status == 2
    assert other[0] in said.err


def test_each_message_of_a_receiver_is_printed_once_over_many_connections(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(served)
    monkeypatch.setenv("AMQPMESH_URL", way.url)
    bodies = [str(number) for number in range(1, 31)]

    async def send(body: str) -> None:
        async with served.router.sender("q") as sender:
            while True:
                try:
                    await sender.send(body)
                except ReleasedError:
                    continue  # it was on the connection that was cut, and nobody has it
                return

    async def send_all(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(send, body)

    written = Output.write

    async def write(self: Output, body: bytes) -> None:
        await written(self, body)
        if body.strip() in (b"3", b"11", b"30"):
            way.cut_soon()

    monkeypatch.setattr(Output, "write", write)
    served.begin(send_all)
    said = command("receive", "q", "--count", "30", "--exactly-once", "--credit", "5")
    assert said.status == 0, said.err
    assert sorted(said.out.split(), key=int) == bodies, "each once, and none is lost"
    assert way.made > 2
    served.until(lambda: served.router.statistics().router.relays == 0)
    assert served.router.statistics().router.accepted == 30
