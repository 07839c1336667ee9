"""`amqpmesh receive` beside a router: output, outcomes, and exit statuses."""

import json
import os
import re
import signal
import sys
import threading
import time
from typing import Any
from uuid import UUID

import pytest
import trio

from amqpmesh.router.amqp.codec.types import Symbol, Timestamp, UInt
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data
from amqpmesh.router.cli.main import main
from amqpmesh.router.message.content import Message
from tests.support.processes.router_thread import Command, Served

# ------------------------------------------------------------------------------------------------------ what is printed


def test_a_body_is_a_line_and_the_rest_is_elsewhere(served: Served, command: Command) -> None:
    outcomes = served.send("hello", "one", b"two", "drei \u00e4")
    said = command("receive", "hello", "--count", "3")
    assert (said.status, said.out) == (0, "one\ntwo\ndrei \u00e4\n")
    assert re.fullmatch(r"received 3 in [\d.]+ s( \([\d,]+/s\))?: accepted 3\n", said.err)
    assert served.first(3, outcomes) == [Accepted()] * 3


def test_values_are_printed_as_json_and_binary_as_it_is(
    served: Served, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bodies = [
        {"a": [1, True, None]},
        17,
        b"\xff\x00",
        None,
        AmqpValue(value=b"\xfe"),
        (Data(value=b"a"), Data(value=b"b")),
        AmqpSequence(value=[1, "x"]),
        (AmqpSequence(value=[1]), AmqpSequence(value=[2])),
    ]
    served.send("hello", *bodies)
    assert main(["receive", "hello", "--count", str(len(bodies))]) == 0
    assert capfdbinary.readouterr().out.split(b"\n") == [
        b'{"a": [1, true, null]}',
        b"17",
        b"\xff\x00",
        b"null",
        b"\xfe",
        b"ab",
        b'[1, "x"]',
        b"[[1], [2]]",
        b"",
    ]


def test_messages_may_be_json_with_all_that_is_set(served: Served, command: Command) -> None:
    message = Message(
        "hi",
        durable=True,
        ttl=60.0,
        message_id=UUID(int=1),
        correlation_id=b"\xff",
        content_type="text/plain",
        creation_time=Timestamp(1_700_000_000_000),
        application_properties={"n": UInt(3), "x": float("nan")},
        message_annotations={"x-opt-a": Symbol("s")},
    )
    served.send("hello", message, b"data")
    said = command("receive", "hello", "--count", "2", "--json")
    first, second = (json.loads(line) for line in said.out.splitlines())
    assert 59 < first.pop("ttl") <= 60
    assert first == {
        "body": "hi",
        "section": "amqp-value",
        "durable": True,
        "message_id": "00000000-0000-0000-0000-000000000001",
        "correlation_id": {"base64": "/w=="},
        "content_type": "text/plain",
        "creation_time": 1_700_000_000_000,
        "application_properties": {"n": 3, "x": "nan"},
        "message_annotations": {"x-opt-a": "s"},
    }
    assert second == {"body": "data", "section": "data"}
    summary = json.loads(said.lines[-1])
    assert (summary["received"], summary["accepted"], summary["latency"]["p50"] > 0) == (2, 2, True)


def test_what_came_settled_is_said_to_be_so(served: Served, command: Command) -> None:
    served.send("hello", "hi", settled=True)
    said = command("receive", "hello", "--count", "1", "--json")
    assert json.loads(said.out)["settled"] is True
    assert json.loads(said.lines[-1])["settled"] == 1


def test_the_latency_is_told_where_messages_say_when_they_were_created(served: Served, command: Command) -> None:
    served.send("hello", Message("hi", creation_time=Timestamp(round(time.time() * 1000) - 5000)))
    said = command("receive", "hello", "--count", "1")
    found = re.search(r"; latency p50 (\d+\.\d\d) s, p99 ", said.lines[-1])
    assert found is not None
    assert 4.9 < float(found.group(1)) < 5 + 40


def test_two_thousand_come_in_order(served: Served, command: Command) -> None:
    served.send("hello", *map(str, range(2_000)))
    said = command("receive", "hello", "--count", "2000")
    assert said.status == 0
    assert said.out.splitlines() == [str(number) for number in range(2_000)]
    assert "accepted 2,000" in said.lines[-1]


# ----------------------------------------------------------------------------------------------------- what is decided


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("accept", Accepted()),
        ("reject", Rejected()),
        ("release", Released()),
        ("modify", Modified(delivery_failed=True)),
    ],
)
def test_the_outcome_is_given(served: Served, command: Command, outcome: str, told: Any) -> None:
    outcomes = served.send("hello", "hi")
    said = command("receive", "hello", "--count", "1", "--outcome", outcome)
    assert (said.status, said.out) == (0, "hi\n")
    assert served.first(1, outcomes) == [told]
    assert said.lines[-1].endswith(f": {type(told).__name__.lower()} 1")


@pytest.mark.parametrize("credit", ["1", "2", "100"])
def test_no_more_are_taken_than_were_asked_for(served: Served, command: Command, credit: str) -> None:
    outcomes = served.send("hello", "one", "two", "three", "four", "five")
    said = command("receive", "hello", "--count", "3", "--credit", credit)
    assert said.out == "one\ntwo\nthree\n"
    assert served.first(3, outcomes) == [Accepted()] * 3
    assert served.router.statistics().router.deliveries_out == 3


def test_credit_is_what_may_be_on_its_way(served: Served, command: Command) -> None:
    async def credit(*, task_status: trio.TaskStatus[None]) -> None:
        async with served.router.sender("hello") as sender:
            task_status.started()
            while not served.router.statistics().addresses[0].demand:
                await trio.sleep(0.01)
            (link,) = (link for link in served.router.statistics().links if link.direction == "outgoing")
            await sender.send(str(link.credit))

    served.begin(credit)
    assert command("receive", "hello", "--credit", "7", "--timeout", "0.5").out == "7\n"


# ------------------------------------------------------------------------------------------------------------- the ends


def test_a_message_that_does_not_come_ends_with_4(served: Served, command: Command) -> None:
    served.send("hello", "one")
    said = command("receive", "hello", "--count", "2", "--timeout", "0.3")
    assert (said.status, said.out) == (4, "one\n")
    assert said.lines[-1] == "amqpmesh: timed out: waited 0.3 s for a message"
    assert said.lines[-2].startswith("received 1 in ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--count", "9"), 1)])
def test_a_signal_ends_it_in_good_order(
    served: Served, command: Command, number: signal.Signals, arguments: tuple[str, ...], status: int
) -> None:
    """With 0 where it would go on for ever, with 1 where not all have come."""

    async def send(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with served.router.sender("hello") as sender:
            await sender.send("one")
            os.kill(os.getpid(), number)

    served.begin(send)
    said = command("receive", "hello", *arguments)
    assert (said.status, said.out) == (status, "one\n")
    assert "received 1" in said.err
    assert served.router.statistics().router.modified == 0


def test_a_reader_that_closes_the_pipe_ends_the_command_and_gets_nothing_more(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    outcomes = served.send("hello", "one")
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        said = command("receive", "hello")
    assert (said.status, said.err) == (1, "")
    assert served.first(1, outcomes) == [Released()]


def test_a_reader_that_takes_its_time_holds_up_nothing_but_the_messages(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection lives meanwhile, and what was not written is not accepted."""
    reading, writing = os.pipe()
    body = "x" * 100_000  # more than the pipe holds
    outcomes = served.send("hello", body, body)
    taken = bytearray()

    def read() -> None:
        time.sleep(1.0)
        while chunk := os.read(reading, 65536):
            taken.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert command("receive", "hello", "--count", "2").status == 0
    reader.join()
    assert bytes(taken) == (body + "\n").encode() * 2
    assert served.first(2, outcomes) == [Accepted()] * 2


def test_a_terminal_is_not_controlled_by_what_comes(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = os.openpty()
    served.send("hello", "\x1b]0;title\x07\u009b\u202eone\ttwo\nthree")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert command("receive", "hello", "--count", "1").status == 0
        shown = os.read(master, 4096)
    os.close(master)
    assert shown == b"\\u001b]0;title\\u0007\\u009b\\u202eone\ttwo\r\nthree\r\n"


def test_a_malformed_message_is_rejected_and_does_not_count(served: Served, command: Command) -> None:
    ended: list[Any] = []

    async def send(*, task_status: trio.TaskStatus[None]) -> None:
        async with served.router.sender("hello") as sender:
            task_status.started()
            torn = await sender.transfer_payload(Message("hi").encode()[:-1])
            ended.append(await torn.outcome())
            await sender.send("whole")

    served.begin(send)
    said = command("receive", "hello", "--count", "1", "--timeout", "20")
    assert (said.status, said.out) == (0, "whole\n")
    assert [type(outcome) for outcome in ended] == [Rejected]


def test_a_refused_link_ends_with_3(served: Served, command: Command) -> None:
    said = command("receive", "$management")
    assert (said.status, said.out) == (3, "")
    assert "amqp:unauthorized-access" in said.lines[-1]


@pytest.mark.parametrize("arguments", [["--outcome", "hold"], ["--credit", "0"], ["--count", "x"]])
def test_arguments_that_make_no_sense_end_with_2(arguments: list[str], command: Command) -> None:
    said = command("receive", "hello", *arguments)
    assert (said.status, said.out) == (2, "")
