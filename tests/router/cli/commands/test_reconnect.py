"""`--reconnect`: commands that go on over another connection, and messages in doubt."""

import json
import threading
from typing import Any

import pytest
import trio

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.cli.process.stdio import Output
from amqpmesh.router.client.delivery import Delivery
from tests.support.processes.cuttable_path import Way
from tests.support.processes.router_thread import Command, Serve, Served


@pytest.fixture
def way(served: Served, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Return the way to the router that commands use."""
    way = Way(served)
    monkeypatch.setenv("AMQPMESH_URL", way.url)
    return way


def test_a_sent_message_without_an_outcome_is_in_doubt_and_the_rest_goes_on(
    served: Served, way: Way, command: Command
) -> None:
    def decide(delivery: Delivery) -> None:
        if delivery.message.body == "3" and way.made == 1:
            way.cut()
        delivery.accept()

    came = served.receive("q", decide, credit=1)
    said = command("send", "q", "--count", "50", "--reconnect", "--json")
    assert said.status == 1
    lost, summary = said.lines
    assert lost.startswith("connection lost peer=")
    told = json.loads(summary)
    # With 3 are lost the few before it whose outcomes were on their way, and those behind it.
    assert 1 <= told["in_doubt"] < 10
    assert (told["sent"], told["accepted"]) == (50, 50 - told["in_doubt"])
    assert told["first_failure"].startswith("in doubt: ")
    assert (way.made, came[-1].body) == (2, "50")


def test_without_it_the_first_loss_ends_with_3(served: Served, way: Way, command: Command) -> None:
    served.receive("q", lambda _: way.cut())
    said = command("send", "q", "--count", "5")
    assert said.status == 3
    assert way.made == 1


def test_later_messages_are_received_over_another_connection(served: Served, way: Way, command: Command) -> None:
    first: dict[int, Any] = {}
    later: dict[int, Any] = {}

    def meanwhile() -> None:
        first.update(dict(enumerate(served.first(2, outcomes))))
        way.cut_soon()
        served.until(lambda: way.made == 2)
        later.update(dict(enumerate(served.first(3, served.send("q", *"cdefg")))))

    outcomes = served.send("q", *"ab")
    thread = threading.Thread(target=meanwhile)
    thread.start()
    said = command("receive", "q", "--count", "5", "--reconnect")
    thread.join()
    assert (said.status, said.out) == (0, "a\nb\nc\nd\ne\n")
    assert said.lines[0].startswith("connection lost peer=")
    assert "accepted 5" in said.lines[-1]
    assert [*first.values(), *later.values()] == [Accepted()] * 5


@pytest.mark.parametrize(("credit", "most"), [("1", 6), ("100", 6 + 5 + 4 + 3)])
def test_no_more_is_taken_than_is_wanted_over_however_many_connections(
    served: Served, way: Way, command: Command, credit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three connections are lost while a message is written, and with it what else was on its way."""
    write = Output.write

    async def late(self: Output, body: bytes) -> None:
        made = way.made
        if made < 4:
            way.cut_soon()
            while way.made == made:
                await trio.sleep(0.01)
        await write(self, body)

    monkeypatch.setattr(Output, "write", late)
    outcomes = served.send("q", *range(30))
    said = command("receive", "q", "--count", "6", "--credit", credit, "--reconnect", "--json")
    summary = json.loads(said.lines[-1])
    assert said.status == 1
    assert (summary["received"], summary["accepted"], summary["in_doubt"]) == (6, 3, 3)
    assert len(said.out.splitlines()) == 6
    served.until(lambda: sum(outcome == Accepted() for outcome in outcomes.values()) == 3)
    # A connection may be lost before the router has sent all that was wanted by it.
    assert 6 <= served.router.statistics().router.deliveries_out <= most


def test_it_waits_for_a_peer_that_comes_later(serve: Serve, command: Command) -> None:
    first = serve()
    url = first.url
    first.end()
    came: list[Any] = []

    def later() -> None:
        served = serve(listeners=[url])
        came.append(served.receive("q"))

    timer = threading.Timer(0.5, later)
    timer.start()
    said = command("send", "q", "--body", "hi", "--url", url, "--reconnect")
    timer.join()
    assert said.status == 0
    assert said.lines[0].startswith("not connected peer=")
    assert [message.body for message in came[0]] == ["hi"]


def test_a_peer_that_does_not_come_is_waited_for_as_long_as_is_said(command: Command) -> None:
    said = command("receive", "q", "--url", "amqp://127.0.0.1:1", "--reconnect", "--timeout", "0.5")
    assert said.status == 4
