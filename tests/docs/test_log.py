"""The pages for operators: one explains every log event, and their examples are lines that routers write."""

from __future__ import annotations

import ast
import io
import logging
import re
import resource
import signal
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from amqpmesh import AddressConfig, Distribution, Router, RouterConfig
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslClient
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Open
from amqpmesh.router.config.users import add_user
from amqpmesh.router.logs import event_log
from tests.docs.pages import ROOT, log_lines, on_loopback, steady
from tests.docs.processes import PATIENCE, Daemon, environment
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, exactly

PAGES = ("operate/install.md", "operate/changing.md", "operate/security.md", "operate/limits.md", "operate/logs.md")
"""Pages that show lines of logs; the last explains each event."""

TEXT = (ROOT / "docs" / PAGES[-1]).read_text(encoding="utf-8")
PASSWORD = "correct horse"


def test_every_event_has_an_entry_with_its_level() -> None:
    entries = TEXT.split("### What each event means")[1].split("\n#")[0]
    rows = re.findall(r"^- `([^`]+)` \((\w+)\): ", entries, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(logged())


def shown() -> set[str]:
    """Return the log lines that the pages show."""
    return set().union(*(log_lines(page) for page in PAGES))


def logged() -> Iterator[tuple[str, str]]:
    """Yield each event that the code logs, and its level."""
    for file in (ROOT / "router").rglob("*.py"):
        if "client" in file.parts:  # these are events of client programs
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=log, attr="debug" | "info" | "warning" | "error" as level),
                    args=[ast.Constant(value=str(event))],
                ) if ast.unparse(log).endswith("log"):
                    yield event, level


# ----------------------------------------------------------------------------------------------------- a router to ask


class Site:
    """A router, and peers that connect to it from 127.0.0.1."""

    def __init__(self, router: Router, nursery: trio.Nursery, folder: Path) -> None:
        self.folder = folder
        self._router = router
        self._nursery = nursery

    def stream(self) -> trio.abc.Stream:
        """Open a connection to the first listener."""
        ours, theirs = memory_stream_pair()
        listener = next(iter(self._router.config.listeners), None)
        self._nursery.start_soon(partial(self._router.serve_stream, theirs, listener, host="127.0.0.1"))
        return ours

    async def opened(self, container: str, stream: trio.abc.Stream | None = None) -> Peer:
        """Return a peer that has opened a connection and begun a session."""
        peer = Peer(stream or self.stream())
        await peer.write(AMQP, Open(container_id=container), begun())
        assert await peer.expect_header() == AMQP
        await peer.expect(Open)
        await peer.expect(Begin)
        return peer

    async def secured(self) -> trio.SSLStream[trio.abc.Stream]:
        """Open a connection inside TLS."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        secured = trio.SSLStream(self.stream(), context, server_hostname="router.example.org", https_compatible=True)
        await secured.do_handshake()
        return secured

    async def logged_in(self, sasl: SaslClient) -> trio.SSLStream[trio.abc.Stream]:
        """Open a connection inside TLS, and do the SASL exchange, which may fail."""
        stream = await self.secured()
        negotiation = Negotiation(server=False, sasl=sasl)
        negotiation.start()
        await stream.send_all(bytes(negotiation.out))
        negotiation.receive_header(await exactly(stream, 8))
        while not sasl.done:
            negotiation.out.clear()
            size = int.from_bytes(await exactly(stream, 4), "big")
            negotiation.receive_sasl((await exactly(stream, size - 4))[4:])
            if not sasl.done:
                await stream.send_all(bytes(negotiation.out))
        return stream


async def until_the_end(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass


async def right_password(site: Site) -> None:
    sasl = SaslClient(["SCRAM-SHA-256"], "alice", PASSWORD)
    peer = await site.opened("billing", await site.logged_in(sasl))
    assert sasl.succeeded
    await peer.write(Close())
    await peer.expect(Close)


async def wrong_password(site: Site) -> None:
    sasl = SaslClient(["SCRAM-SHA-256"], "alice", "wrong")
    await until_the_end(await site.logged_in(sasl))
    assert not sasl.succeeded


async def unknown_user(site: Site) -> None:
    await until_the_end(await site.logged_in(SaslClient(["SCRAM-SHA-256"], "bob", PASSWORD)))


class Stubborn(SaslClient):
    """A client that chooses a mechanism which the router does not offer."""

    def _choose(self, offered: object) -> bytes:
        return super()._choose(["ANONYMOUS"])


async def another_mechanism(site: Site) -> None:
    await until_the_end(await site.logged_in(Stubborn(["ANONYMOUS"])))


async def no_sasl(site: Site) -> None:
    stream = await site.secured()
    await stream.send_all(AMQP)
    await until_the_end(stream)


async def no_trust(site: Site) -> None:
    other = site.folder / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    stream, received, to_send = site.stream(), ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=other)
    client = context.wrap_bio(received, to_send, server_hostname="router.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                await stream.send_all(to_send.read())
                received.write(await stream.receive_some())
    await stream.send_all(to_send.read())  # the alert, which has the reason
    await until_the_end(stream)


async def no_tls(site: Site) -> None:
    stream = site.stream()
    await stream.send_all(AMQP)
    await until_the_end(stream)


async def no_certificate(site: Site) -> None:
    await until_the_end(await site.secured())  # TLS 1.3: the client finishes first


async def idle(site: Site) -> None:
    await until_the_end((await site.opened("stopped")).stream)


async def never_opened(site: Site) -> None:
    await until_the_end(site.stream())


async def a_browser(site: Site) -> None:
    stream = site.stream()
    await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
    await until_the_end(stream)


async def no_frame(site: Site) -> None:
    peer = await site.opened("broken")
    await peer.write(b"\0\0\0\x04\2\0\0\0")
    await until_the_end(peer.stream)


async def sender_waits(site: Site) -> None:
    peer = await site.opened("shop")
    await peer.write(attached(Role.SENDER, "orders", name="orders-out"))
    await peer.expect(Attach)
    await peer.stream.aclose()


async def unavailable(site: Site) -> None:
    peer = await site.opened("shop")
    await peer.write(attached(Role.SENDER, "audit", name="audit-out"))
    await peer.expect(Attach)
    await peer.stream.aclose()


async def multicast_waits(site: Site) -> None:
    receiver, sender = await site.opened("desk"), await site.opened("agency")
    await receiver.write(attached(Role.RECEIVER, "news", name="news-in"))
    await receiver.expect(Attach)
    await sender.write(attached(Role.SENDER, "news", name="news-out"))
    await sender.expect(Attach)
    await trio.sleep(2.0)
    for peer in (receiver, sender):
        await peer.stream.aclose()


ADDRESSES = RouterConfig(
    addresses=(
        AddressConfig(pattern="audit", distribution=Distribution.UNAVAILABLE),
        AddressConfig(pattern="news", distribution=Distribution.MULTICAST),
    )
)

SCENES: Mapping[Callable[[Site], Awaitable[None]], str | RouterConfig] = {
    right_password: "scram.toml",
    wrong_password: "scram.toml",
    unknown_user: "scram.toml",
    another_mechanism: "scram.toml",
    no_sasl: "scram.toml",
    no_trust: "scram.toml",
    no_tls: "scram.toml",
    no_certificate: "certificates.toml",
    idle: RouterConfig(),
    never_opened: RouterConfig(),
    a_browser: RouterConfig(),
    no_frame: RouterConfig(),
    sender_waits: ADDRESSES,
    unavailable: ADDRESSES,
    multicast_waits: ADDRESSES,
}


@contextmanager
def written() -> Iterator[io.StringIO]:
    """Capture the log of the routers of this process, as a daemon writes it."""
    root = logging.getLogger(event_log.ROOT)
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    stream = io.StringIO()
    event_log.configure("info", "text", stream)
    try:
        yield stream
    finally:
        root.handlers[:], root.propagate = handlers, propagate
        root.setLevel(level)


def played(scene: Callable[[Site], Awaitable[None]], config: str | RouterConfig, folder: Path) -> set[str]:
    """Return the lines that a router logs in a scene."""

    async def play() -> None:
        async with (
            Router(folder / config if isinstance(config, str) else config) as router,
            trio.open_nursery() as nursery,
        ):
            with trio.fail_after(PATIENCE):  # seconds of virtual time
                await scene(Site(router, nursery, folder))

    with written() as stream:
        trio.run(play, clock=MockClock(autojump_threshold=0.01))
    return {steady(line) for line in stream.getvalue().splitlines()}


def told_to_read_again(folder: Path) -> set[str]:
    """Return the lines of a daemon that reloads changed files."""
    users, config = folder / "users.toml", folder / "scram.toml"
    users_before, config_before = users.read_bytes(), config.read_text(encoding="utf-8")
    lines = []
    with closing(Daemon("amqpmesh", "run", "scram.toml", cwd=folder, env=environment(folder.parent / "bin"))) as daemon:
        lines += [daemon.line(), daemon.line()]
        daemon.send(signal.SIGHUP)
        lines.append(daemon.line())
        users.unlink()
        daemon.send(signal.SIGHUP)
        lines.append(daemon.line())
        users.write_bytes(users_before)
        more = "[mesh]\ninsecure = true\n[[address]]\npattern = 'news/#'\nmax_credit = 100\n"
        config.write_text(f"{config_before}\n{more}", encoding="utf-8")
        daemon.send(signal.SIGHUP)
        lines += [daemon.line(), daemon.line(), daemon.line()]
        config.write_text(config_before, encoding="utf-8")
        status, rest = daemon.end()
    assert status == 0
    return {steady(line) for line in (*lines, *rest)}


def out_of_files(folder: Path) -> set[str]:
    """Return the lines of a daemon that runs out of file descriptors."""
    env = environment(folder.parent / "bin")
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (20, 20))
    with closing(
        Daemon("amqpmesh", "run", "--listen", "amqp://127.0.0.1:0", cwd=folder, env=env, before=limit)
    ) as daemon:
        first = daemon.said(" INFO listening ")
        port = int(first.rpartition(" name=")[0].rpartition(":")[2])
        clients = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(20)]
        line = daemon.line()
        for client in clients:
            client.close()
        daemon.end()
    return {steady(line)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the example configurations, with certificates, and with the user alice. Returns: the folder."""
    folder = on_loopback(tmp_path_factory.mktemp("log") / "router")
    subprocess.run(["./certificates.sh", "router.example.org", "--", "alice"], cwd=folder, check=True)
    add_user(folder / "users.toml", "alice", PASSWORD)
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, set[str]]:
    """Return the log lines, by scene."""
    found = {scene.__name__: played(scene, config, folder) for scene, config in SCENES.items()}
    found["told_to_read_again"] = told_to_read_again(folder)
    found["out_of_files"] = out_of_files(folder)
    return found


def test_every_line_of_the_page_is_one_that_a_router_writes(seen: dict[str, set[str]]) -> None:
    lines = shown()
    assert len(lines) > 10
    assert lines <= set().union(*seen.values())


@pytest.mark.parametrize("scene", [*(scene.__name__ for scene in SCENES), "told_to_read_again", "out_of_files"])
def test_what_happens_is_shown(seen: dict[str, set[str]], scene: str) -> None:
    assert seen[scene] & shown()
