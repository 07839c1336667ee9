"""HTTP of a router with several workers: the one that a client reaches answers for all."""

from __future__ import annotations

import socket
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from amqpmesh import ListenerConfig, connect
from amqpmesh.router.http.siblings import path_of
from amqpmesh.router.http.visitors import Visitor
from tests.support.peers.http_client import PATIENCE, HttpClient, told
from tests.support.worlds.sibling_workers import LOOPBACK, router_config, workers

if TYPE_CHECKING:
    from amqpmesh import Router

HTTP = ListenerConfig(url="http://127.0.0.1:0", role="http", manage=True)
CHANGE = {"x_amqpmesh_change": "1"}


@pytest.fixture
def config() -> object:
    return router_config(listeners=(LOOPBACK, HTTP))


async def test_one_answer_has_the_entities_of_all_workers(config: object, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(workers(config, tmp_path))  # type: ignore[arg-type]  # a configuration
        peer = await stack.enter_async_context(connect(both[1].listeners[0].url))
        await stack.enter_async_context(peer.receiver("news"))
        for reached in both:
            client = HttpClient.of(reached, 1)
            whole = (await client.get("/api")).json
            assert {name: each["router"][0]["id"] for name, each in whole.items()} == {"A.1": "A.1", "A.2": "A.2"}
            assert [each["id"] for each in (await client.get("/api/router?router=A.2")).json["router"]] == ["A.2"]
            assert (await client.get("/api/router/A.2")).status == 400
            assert (await client.get("/api/router/A.2?router=A.2")).json["id"] == "A.2"
            assert (await client.get("/api/router/A.1?router=A.2")).status == 404
            assert (await client.get("/api?router=B")).status == 404
        (number,) = [each.number for each in both[1].statistics().connections if each.role == "normal"]
        client = HttpClient.of(both[0], 1)
        assert (await client.ask("DELETE", f"/api/connection/{number}", **CHANGE)).status == 400
        found = await client.ask("DELETE", f"/api/connection/{number}?router=A.2", **CHANGE)
        assert (found.status, found.body) == (204, b"")
        with trio.fail_after(PATIENCE):
            while any(each.role == "normal" for each in both[1].statistics().connections):
                await trio.sleep(0.01)


async def test_metrics_of_all_workers_are_one_document(config: object, tmp_path: Path) -> None:
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="NOT TESTED, missing: prometheus-client"
    )
    async with workers(config, tmp_path, 3) as every:  # type: ignore[arg-type]  # a configuration
        for accept in ("application/openmetrics-text", "text/plain"):
            for reached in every:
                found = await HttpClient.of(reached, 1).get("/metrics", accept=accept)
                text = found.body.decode()
                assert text.count("# TYPE amqpmesh_uptime_seconds gauge") == 1
                assert text.count('\namqpmesh_uptime_seconds{worker="') == 3
                if accept != "text/plain":
                    families = list(parser.text_string_to_metric_families(text))
                    (uptime,) = [each for each in families if each.name == "amqpmesh_uptime_seconds"]
                    assert {each.labels["worker"] for each in uptime.samples} == {"1", "2", "3"}
        # One that is gone is missing, and the others answer.
        path_of(tmp_path, 3).unlink()
        assert 'worker="3"' not in (await HttpClient.of(every[0], 1).get("/metrics")).body.decode()
        assert set((await HttpClient.of(every[0], 1).get("/api")).json) == {"A.1", "A.2"}
        assert (await HttpClient.of(every[0], 1).get("/healthz")).status == 200
        assert (await HttpClient.of(every[0], 1).get("/api?router=A.3")).status == 503


async def test_one_worker_that_is_not_well_makes_the_router_so(config: object, tmp_path: Path) -> None:
    async with workers(config, tmp_path) as both:  # type: ignore[arg-type]  # a configuration
        client = HttpClient.of(both[0], 1)
        assert (await client.get("/readyz")).status == 200
        await both[1].drain()
        found = await client.get("/readyz")
        assert (found.status, found.body) == (503, b"the router drains\n")
        assert (await client.get("/healthz")).status == 200
        # Another one whose thread says nothing at all.
        path = path_of(tmp_path, 2)
        path.unlink()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen()
            found = await client.get("/healthz")
            assert (found.status, found.body) == (503, b"the router's loop stands still\n")


async def ask(router: Router, number: int, folder: Path, head: str) -> int:
    del router
    with trio.fail_after(PATIENCE):
        async with await trio.open_unix_socket(str(path_of(folder, number))) as stream:
            await stream.send_all(f"{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            data = b""
            while more := await stream.receive_some(2**16):
                data += more
    return told(data).status


async def test_a_client_cannot_say_what_it_may_see(config: object, tmp_path: Path) -> None:
    policyless = Visitor("", frozenset({"router"}), frozenset(), {})
    async with workers(config, tmp_path) as both:  # type: ignore[arg-type]  # a configuration
        # By the socket of the workers, each request describes its client; only processes of this user get there.
        header = f"X-Amqpmesh-Visitor: {policyless.written()}"
        assert await ask(both[0], 1, tmp_path, f"GET /api/router HTTP/1.1\r\n{header}") == 200
        assert await ask(both[0], 1, tmp_path, f"GET /api/link HTTP/1.1\r\n{header}") == 403
        for value in ("", "x", "{}", "[1]", '["",1,2,3]'):
            head = f"GET /api/router HTTP/1.1\r\nX-Amqpmesh-Visitor: {value}"
            assert await ask(both[0], 1, tmp_path, head) == 400
        # Elsewhere the field means nothing.
        nobody = Visitor("other", frozenset(), frozenset(), {}).written()
        assert (await HttpClient.of(both[0], 1).get("/api/router", x_amqpmesh_visitor=nobody)).status == 200
        assert stat.S_ISSOCK(path_of(tmp_path, 1).stat().st_mode)
