"""The services of README, pages and examples: no request ends one, or blocks it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh import Message, Requester, Router
from tests.docs.pages import ROOT, blocks
from tests.support.peers.bad_requests import BODIES, PATIENCE, UNDECODABLE, send_all, send_other_formats
from tests.support.peers.library_client import Roads, joined
from tests.support.peers.scripted_stream import connected

Names = dict[str, Any]


class Service(NamedTuple):
    """A program, the name of its serving function, and a good request with the expected reply."""

    text: str
    name: str
    address: str
    request: Any
    answer: Any


def shown(page: str, serving: str) -> str:
    """Return the program of a page that contains the text `serving`."""
    (text,) = (block.text for block in blocks(page, "python") if serving in block.text)
    return text


def example(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")


SERVICES = {
    "README": Service(shown("../README.md", "def shout("), "shout", "shout", "hi", "HI"),
    "tutorial": Service(shown("start/tutorial.md", "# service.py"), "main", "squares", 12, 144),
    "embedding": Service(shown("develop/embedding.md", "def quotes("), "quotes", "quotes", "A/B", "A/B: 0.9312"),
    "service.py": Service(example("service"), "main", "quotes", "EUR/CHF", "0.9312"),
}


def names_of(text: str, roads: Roads) -> Names:
    """Return the names that a program defines. Its `connect` uses these roads."""
    names: Names = {"__name__": "example"}
    exec(compile(text.replace("\ntrio.run(main)\n", "\n"), "example", "exec"), names)
    names["connect"] = lambda _url, **settings: roads.connect(**settings)
    return names


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
async def test_no_request_ends_or_stops_a_service(
    service: Service, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        roads.lead_to(router)
        names = names_of(service.text, roads)
        serve: Callable[..., Awaitable[None]] = names[service.name]
        nursery.start_soon(serve, *([router] if service.name != "main" else []))
        async with joined(nursery, router) as connection:
            await send_all(connection, service.address)
            await send_other_formats(connected(nursery, router), service.address)
            with trio.fail_after(PATIENCE):
                async with connection.requester(service.address) as requests:
                    assert (await requests.request(service.request)).body == service.answer
        nursery.cancel_scope.cancel()


async def test_no_job_ends_or_stops_the_pool(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    names = names_of(example("worker_pool"), Roads(nursery))
    pool = names["Pool"]()
    async with Router() as router, joined(nursery, router) as connection:
        async with router.receiver("jobs", credit=names["CREDIT"]) as jobs:
            for _ in range(2):
                nursery.start_soon(pool.work, jobs)
            await send_all(connection, "jobs")
            await send_other_formats(connected(nursery, router), "jobs")
            done = pool.done
            with trio.fail_after(PATIENCE):
                async with connection.sender("jobs") as sender:
                    await sender.send("a good job")
            await wait_all_tasks_blocked()
            assert pool.done > done
        nursery.cancel_scope.cancel()


async def posted(names: Names, quotes: Requester, method: str, *parts: bytes) -> tuple[int, bytes]:
    """Return the HTTP response of the gateway's web service to a request."""
    coming = [{"type": "http.request", "body": part, "more_body": True} for part in parts] + [{"type": "http.request"}]
    said: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(event: dict[str, Any]) -> None:
        said.update(event)

    await names["web"](quotes, {"type": "http", "method": method}, receive, send)
    assert isinstance(said["body"], bytes)
    return said["status"], said["body"]


async def test_no_answer_of_a_service_ends_or_stops_the_gateway(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hypercorn")
    monkeypatch.setattr(sys, "argv", ["gateway.py"])
    names = names_of(example("gateway"), Roads(nursery))
    answers: list[tuple[int, bytes]] = []

    async def ask(quotes: Requester) -> None:
        answers.append(await posted(names, quotes, "POST", b"EUR/", b"CHF"))

    async with (
        Router() as router,
        router.requester("quotes") as quotes,
        joined(nursery, router) as connection,
        connection.receiver("quotes") as requests,
        connection.sender(None) as replies,
    ):
        for body in BODIES.values():
            nursery.start_soon(ask, quotes)
            delivery = await requests.receive()
            await delivery.reply(body)
            delivery.accept()
            await trio.sleep(2 * names["PATIENCE"])
            status, said = answers.pop()
            assert (status, said) == (200, body) if isinstance(body, bytes) else status == 502
        for payload in UNDECODABLE.values():
            nursery.start_soon(ask, quotes)
            async with await requests.receive() as request:
                wrong = Message("x", to=request.reply_to, correlation_id=5).encode()
                for each in (wrong, Message(to=request.reply_to).encode() + payload):
                    await (await replies.transfer_payload(each)).outcome()
            await trio.sleep(2 * names["PATIENCE"])
            assert answers.pop() == (503, b"nobody serves\n")
        nursery.start_soon(ask, quotes)
        async with (delivery := await requests.receive()) as request:
            assert request.body == b"EUR/CHF"
            await delivery.reply(b"0.9312")
        await wait_all_tasks_blocked()
        assert answers.pop() == (200, b"0.9312")
        nursery.cancel_scope.cancel()
