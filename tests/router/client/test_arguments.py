"""Wrong arguments: an error at the call that takes them, and no effect on other links."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connect import connect
from amqpmesh.router.runtime.router import Router

if TYPE_CHECKING:
    from trio.testing import MockClock

    from amqpmesh.router.client.factory import LinkFactory


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *(("receiver", {"credit": credit}) for credit in (-1, 1.5, "5", None, True, 2**31)),
        *(("receiver", {"buffer": buffer}) for buffer in (-1, 1.5e6, "5", None)),
        *(("receiver", {"max_message_size": size}) for size in (-1, 2**64, 1e6, "5")),
        *((kind, {"name": name}) for kind in ("sender", "receiver") for name in (5, b"x")),
        *((kind, {"address": address}) for kind in ("sender", "receiver", "requester") for address in (5, b"x", ["x"])),
        *((kind, {"desired_capabilities": "abc"}) for kind in ("sender", "receiver")),
        *(("requester", {"credit": credit}) for credit in (0, -1, 1.5, "5")),
        ("requester", {"max_message_size": -1}),
    ],
    ids=str,
)
async def test_what_no_link_can_be_made_of_is_said_before_there_is_one(
    kind: str, arguments: dict[str, Any], factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.sender("q") as other:
        with pytest.raises(CommandError):
            getattr(factory, kind)(**{"address": "q", **arguments})
        assert other.is_attached


@pytest.mark.parametrize("credit", [-1, 1.5, "5", None, 2**31])
async def test_credit_that_is_none_is_said_and_not_given(
    credit: Any, factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=0) as receiver, factory.sender("q") as sender:
        with pytest.raises(CommandError, match="credit"):
            receiver.flow(credit)
        receiver.flow(1)
        await sender.transfer(b"", settled=True)
        (await receiver.receive()).accept()


@pytest.mark.parametrize("buffer", [0, 2**60])
async def test_any_buffer_makes_a_window(buffer: int, factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.receiver("q", buffer=buffer) as receiver, factory.sender("q") as sender:
        await sender.transfer(b"", settled=True)
        (await receiver.receive()).accept()


@pytest.mark.parametrize("made", [Router, lambda: connect("amqp://127.0.0.1:1")], ids=["router", "connection"])
def test_asyncio_is_told_in_one_error_where_to_look(made: Any) -> None:
    async def enter() -> None:
        async with made():
            raise AssertionError("it runs on Trio alone")

    with pytest.raises(CommandError, match=r"inside `trio\.run`; in asyncio see .* in docs/develop/embedding\.md"):
        asyncio.run(enter())
