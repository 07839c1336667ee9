"""The package `amqpmesh`: its public names, and their homes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

import amqpmesh
from amqpmesh import Message, Router, connect

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there() -> None:
    assert [name for name in amqpmesh.__all__ if not hasattr(amqpmesh, name)] == []
    assert sorted(amqpmesh.__all__) == sorted(set(amqpmesh.__all__))


def test_each_name_is_found_where_type_checkers_look_for_it() -> None:
    """The imports for type checkers must agree with the imports on demand."""
    tree = ast.parse(Path(amqpmesh.__file__).read_text(encoding="utf-8"))
    declared = {
        name.name: statement.module
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert declared == amqpmesh._HOMES
    assert {*declared, "__version__"} == set(amqpmesh.__all__)
    assert set(amqpmesh.__all__) <= set(dir(amqpmesh))
    assert not hasattr(amqpmesh, "Broker")


def test_importing_it_touches_neither_logging_nor_signals_nor_the_pipeline() -> None:
    check = """
import logging, signal, sys
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
from amqpmesh import *
assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before, "signals"
assert not logging.getLogger().handlers and not logging.getLogger("amqpmesh").handlers, "logging"
assert not [name for name in sys.modules if name.startswith(("amqpmesh.pipeline", "pyspark"))], "pipeline"
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


async def test_what_programs_hold_has_the_names_that_the_page_tells_and_no_other(autojump_clock: MockClock) -> None:
    page = (ROOT / "docs/develop/embedding.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Summary of the classes")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", table.partition("## ")[0], re.MULTILINE)
    told = {kind: sorted(re.findall(r"`(\w+)`", names)) for kind, names in rows}
    async with (
        Router() as router,
        router.sender("q") as sender,
        router.receiver("q") as receiver,
        router.requester("q") as requester,
    ):
        sent = await sender.transfer("x")
        delivery = await receiver.receive()
        delivery.accept()
        held = (router, connect("amqp://localhost"), sender, receiver, requester, sent, delivery)
        found = {type(each).__name__: sorted(name for name in dir(each) if name[0] != "_") for each in held}
    assert found == told


async def test_what_programs_hold_tells_how_it_stands_and_nothing_of_what_a_message_holds(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def open_stream(endpoint: object) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(router.serve_stream, theirs)
        return ours

    router = Router(id="A")
    assert repr(router) == "<Router 'A' new>"
    connection = connect(
        "amqp://localhost", id="B", user="me", password="secret", mechanisms=["ANONYMOUS"], open_stream=open_stream
    )
    assert repr(connection) == "<Connection 'B' to amqp://localhost:5672 new>"
    async with router, connection:
        assert repr(router) == "<Router 'A' running>"
        assert repr(connection) == "<Connection 'B' to amqp://localhost:5672 connected>"
        receiver = connection.receiver("q", name="r", credit=5)
        sender = connection.sender("q", name="s")
        assert repr(sender) == "<Sender 's' to 'q' new, credit 0, 0 waiting, 0 unsettled>"
        async with sender, receiver, connection.requester("services") as requester:
            asking = trio.CancelScope()

            async def ask() -> None:
                with asking:
                    await requester.request("secret")

            nursery.start_soon(ask)
            sent = await sender.transfer(Message("secret", subject="seen"))
            assert repr(sent) == "<Sent undecided>"
            delivery = await receiver.receive()
            size = len(delivery.payload)
            assert repr(delivery) == f"<Delivery {delivery.tag.hex()} undecided, {size} octets from 'q'>"
            assert repr(delivery.message) == "<Message str[6] subject='seen'>"
            assert repr(receiver) == "<Receiver 'r' from 'q' attached, credit 4, 1 undecided>"
            assert re.fullmatch(r"<Sender 's' to 'q' attached, credit \d+, 0 waiting, 1 unsettled>", repr(sender))
            told = repr(requester)
            assert re.fullmatch(
                r"<Requester '\S+' to 'services' attached, credit 0, 1 waiting, 0 unsettled, 1 calls>", told
            )
            delivery.reject()
            assert " decided, " in repr(delivery)
            await sent.outcome()
            assert repr(sent) == "<Sent rejected>"
            assert repr(await sender.transfer("secret", settled=True)) == "<Sent settled>"
            doubtful = await sender.transfer("secret")
            asking.cancel()
            await router.drain()
            with pytest.raises(amqpmesh.InDoubtError):
                await doubtful.outcome()
            assert repr(doubtful) == "<Sent in doubt>"
        assert repr(sender) == "<Sender 's' to 'q' over, credit 0, 0 waiting, 0 unsettled>"
    assert repr(router) == "<Router 'A' over>"
    assert repr(connection) == "<Connection 'B' to amqp://localhost:5672 over>"
    async with Router(id="C", listeners=["amqp://127.0.0.1:0"]) as other:
        assert repr(other) == f"<Router 'C' running, listens at {other.listeners[0].url}>"
