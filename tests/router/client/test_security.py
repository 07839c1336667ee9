"""Logins and secrets of a client: TLS, the SASL mechanisms, and no password in plain text (part 5)."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, SaslError
from amqpmesh.router.amqp.frames import SASL_FRAME
from amqpmesh.router.amqp.sasl.exchange import SaslCode, SaslInit, SaslMechanisms, SaslOutcome
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.client.connect import connect
from amqpmesh.router.config.file import ListenerConfig, PlaceConfig, TlsConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io.dialing import open_tcp
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.kernel import FrameReader
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import URL, Host, Roads, enter, joined
from tests.support.peers.scripted import SASL, frame

PASSWORD = "correct horse battery staple"
TLS_URL = "amqps://127.0.0.1:0"


@dataclass(frozen=True)
class Files:
    """The files that the operators of both ends have."""

    folder: Path

    @property
    def trust(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def users(self) -> Path:
        return self.folder / "users.toml"

    @property
    def ada(self) -> dict[str, Path]:
        return {"certificate": self.folder / "ada.pem", "key": self.folder / "ada.key"}

    def listener(
        self, *mechanisms: str, client: str = "none", url: str = TLS_URL, host: str = "here"
    ) -> ListenerConfig:
        trust = None if client == "none" else self.trust
        tls = TlsConfig(
            certificate=self.folder / f"{host}.pem", key=self.folder / f"{host}.key", trust=trust, client=client
        )  # type: ignore[arg-type]  # one of three
        users = None if {"EXTERNAL", "ANONYMOUS"}.issuperset(mechanisms) else self.users
        return ListenerConfig(url=url, sasl=mechanisms, users=users, tls=tls)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("security")

    def write(leaf: trustme.LeafCert, name: str) -> None:
        (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        (folder / f"{name}.key").write_bytes(leaf.private_key_pem.bytes())

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    write(authority.issue_cert("127.0.0.1", "localhost"), "here")
    write(authority.issue_cert("elsewhere.example"), "elsewhere")
    write(authority.issue_cert("ada@example.org"), "ada")
    # Few enough iterations to be hashed without a thread: virtual time does not wait for threads.
    add_user(folder / "users.toml", "ada", PASSWORD, MIN_ITERATIONS)
    return Files(folder)


class Tapped(trio.abc.Stream):
    """A stream that records what is written to it."""

    def __init__(self, stream: trio.abc.Stream, written: bytearray) -> None:
        self._stream = stream
        self._written = written

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._written += data
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


def tapped(
    written: bytearray, opener: Callable[[Endpoint], Awaitable[trio.abc.Stream]] = open_tcp
) -> Callable[[Endpoint], Awaitable[trio.abc.Stream]]:
    async def open_stream(endpoint: Endpoint) -> trio.abc.Stream:
        return Tapped(await opener(endpoint), written)

    return open_stream


def whom(router: Router) -> tuple[str | None, str | None]:
    """Return the user and the mechanism of the only client."""
    (client,) = (each for each in router.statistics().connections if each.listener != "in-process")
    return client.user, client.mechanism


# ------------------------------------------------------------------------------------------------ over real sockets


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"])
async def test_a_password_lets_in_over_tls_and_is_not_seen(mechanism: str, files: Files) -> None:
    async with Router(listeners=[files.listener(mechanism)]) as router:
        written = bytearray()
        url = router.listeners[0].url
        settings = {"trust": files.trust, "open_stream": tapped(written)}
        async with connect(url, user="ada", password=PASSWORD, **settings) as connection:
            assert whom(router) == ("ada", mechanism)
            async with connection.receiver("q") as receiver, connection.sender("q") as sender:
                await sender.send("hello", settled=True)
                assert (await receiver.receive()).message.body == "hello"
        assert written
        assert PASSWORD.encode() not in written
        assert b"AMQP" not in written
        with pytest.raises(SaslError, match="not let in"):
            await enter(connect(url, user="ada", password="wrong", **settings))
        with pytest.raises(SaslError, match="not let in"):
            await enter(connect(url, user="eve", password=PASSWORD, reconnect=True, **settings))
    assert router.statistics().is_empty


async def test_the_best_mechanism_that_both_have_is_chosen(files: Files) -> None:
    async with Router(listeners=[files.listener("PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256")]) as router:
        url = router.listeners[0].url
        who = {"user": "ada", "password": PASSWORD, "trust": files.trust}
        async with connect(url, **who):
            assert whom(router) == ("ada", "SCRAM-SHA-256")
        async with connect(url, **who, mechanisms=["PLAIN", "SCRAM-SHA-256"]):
            assert whom(router) == ("ada", "PLAIN")
        with pytest.raises(SaslError, match="EXTERNAL is offered|none of"):
            await enter(connect(url, trust=files.trust, **files.ada, mechanisms=["EXTERNAL"]))


@pytest.mark.parametrize("own_context", [False, True], ids=["files", "context"])
async def test_a_client_logs_in_by_the_name_of_its_certificate(own_context: bool, files: Files) -> None:
    async with Router(listeners=[files.listener("EXTERNAL", client="required")]) as router:
        url = router.listeners[0].url
        if own_context:
            tls = client_context(files.trust, *files.ada.values())
            connection = connect(url, tls=tls, mechanisms=["EXTERNAL"])
        else:
            connection = connect(url, trust=files.trust, **files.ada)
        async with connection:
            assert whom(router) == ("ada@example.org", "EXTERNAL")
        # In TLS 1.3 the server checks the certificate after the client has ended its handshake.
        with pytest.raises(ConnectionClosedError):
            await enter(connect(url, trust=files.trust))
    assert router.statistics().is_empty


async def test_the_server_must_be_one_that_is_trusted_and_the_one_that_was_meant(files: Files) -> None:
    listeners = [files.listener("ANONYMOUS"), files.listener("ANONYMOUS", host="elsewhere")]
    async with Router(listeners=listeners) as router:
        here, elsewhere = (each.url for each in router.listeners)
        async with connect(here, trust=files.trust):
            assert whom(router) == (None, "ANONYMOUS")
        with pytest.raises(ConnectionClosedError, match="TLS: .*self-signed|TLS: .*unable to get"):
            await enter(connect(here))
        with pytest.raises(ConnectionClosedError, match="TLS: .*not valid for '127.0.0.1'"):
            await enter(connect(elsewhere, trust=files.trust, reconnect=True))
    assert router.statistics().is_empty


async def test_tls_with_a_peer_that_has_none_is_a_lost_connection_not_a_hang(files: Files) -> None:
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        url = router.listeners[0].url.replace("amqp:", "amqps:")
        with pytest.raises(ConnectionClosedError):
            await enter(connect(url, trust=files.trust))
    assert router.statistics().is_empty


async def test_sockets_in_clear_within_this_machine(files: Files) -> None:
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        url = router.listeners[0].url
        async with connect(url) as connection:
            assert whom(router) == (None, "ANONYMOUS")
            assert connection.peer.container_id == router.id
        async with connect(url, mechanisms=()):
            assert whom(router) == (None, None)
        free = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = free[0].socket.getsockname()[1]
        await free[0].aclose()
        with pytest.raises(ConnectionClosedError, match=f"127.0.0.1:{port}.*refused"):
            await enter(connect(f"amqp://127.0.0.1:{port}"))
        async with connect([f"amqp://127.0.0.1:{port}", url]) as connection:
            assert connection.is_connected
    assert router.statistics().is_empty


# ------------------------------------------------------------------------------------------- what is written in clear


def in_clear(files: Files, *mechanisms: str, url: str = "amqp://0.0.0.0:0") -> ListenerConfig:
    return ListenerConfig(url=url, sasl=mechanisms, users=files.users, insecure=True)


@pytest.mark.parametrize("again", [False, True], ids=["no-reconnect", "reconnect"])
async def test_a_password_does_not_leave_the_machine_in_clear(
    again: bool, files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router, listener=in_clear(files, "PLAIN"))
        written = bytearray()
        who = {"user": "ada", "password": PASSWORD, "open_stream": tapped(written, roads.open)}
        with pytest.raises(SaslError, match="offered"):
            await enter(connect(URL, **who, reconnect=again))
        assert written
        assert PASSWORD.encode() not in written
        # PLAIN is no safer if the program asks for it by name.
        for mechanisms in (["PLAIN"], ["PLAIN", "SCRAM-SHA-256"]):
            written.clear()
            with pytest.raises((CommandError, SaslError)):
                await enter(connect(URL, **who, mechanisms=mechanisms))
            assert PASSWORD.encode() not in written
        # With `insecure`, the password is sent.
        async with connect(URL, **who, insecure=True):
            assert whom(router) == ("ada", "PLAIN")
        assert PASSWORD.encode() in written
    assert router.statistics().is_empty


async def test_within_the_machine_a_password_may_be_shown(
    files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    for url in ("amqp://127.0.0.1:5672", "amqp://[::1]:5672", "amqp://localhost:5672"):
        async with Router() as router:
            roads = Roads(nursery)
            roads.lead_to(router, url, listener=in_clear(files, "PLAIN"))
            async with roads.connect(url, user="ada", password=PASSWORD):
                assert whom(router) == ("ada", "PLAIN")


def elsewhere(port: int) -> PlaceConfig:
    return PlaceConfig(network_host="127.0.0.1", port=port)


@pytest.mark.parametrize("insecure", [False, True], ids=["", "insecure"])
async def test_a_peer_that_a_redirect_names_does_not_get_the_password_in_clear(
    insecure: bool, files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    home, there = "amqp://127.0.0.1:5672", "amqp://127.0.0.1:5673"
    async with Router() as router, Router() as far:
        roads = Roads(nursery)
        strong = replace(in_clear(files, "SCRAM-SHA-256"), redirect=elsewhere(5673))
        roads.lead_to(router, home, strong)
        written = bytearray()
        who = {"user": "ada", "password": PASSWORD, "insecure": insecure, "open_stream": tapped(written, roads.open)}
        roads.lead_to(far, there, in_clear(files, "PLAIN"))
        with pytest.raises(SaslError, match="is offered; where a redirect leads, PLAIN is used only under TLS"):
            async with connect(home, **who) as connection, connection.sender("q"):
                raise AssertionError("it is elsewhere")
        assert [url for _, url in roads.tries] == [home, there]
        assert PASSWORD.encode() not in written
        # Mechanisms that prove the password without sending it are used.
        roads.lead_to(far, there, in_clear(files, "PLAIN", "SCRAM-SHA-1"))
        async with connect(home, **who) as connection, connection.sender("q"):
            assert whom(far) == ("ada", "SCRAM-SHA-1")
        assert PASSWORD.encode() not in written
        # Hosts that the program named get it, too, in any order.
        roads.lead_to(far, there, in_clear(files, "PLAIN"))
        async with connect([home, there], **who) as connection, connection.sender("q"):
            assert whom(far) == ("ada", "PLAIN")


@pytest.mark.parametrize(
    ("verify", "check", "told"),
    [(ssl.CERT_REQUIRED, True, True), (ssl.CERT_REQUIRED, False, False), (ssl.CERT_NONE, False, False)],
    ids=["verified", "for-anybody", "unverified"],
)
async def test_a_peer_that_a_redirect_names_gets_the_password_under_verified_tls(
    verify: ssl.VerifyMode, check: bool, told: bool, files: Files
) -> None:
    async with Router(listeners=[files.listener("PLAIN")]) as far:
        strong = replace(files.listener("SCRAM-SHA-256"), redirect=elsewhere(Endpoint.parse(far.listeners[0].url).port))
        tls = ssl.create_default_context(cafile=files.trust)
        tls.check_hostname = check
        tls.verify_mode = verify
        async with Router(listeners=[strong]) as router:
            asked = connect(router.listeners[0].url, user="ada", password=PASSWORD, tls=tls)
            if told:
                async with asked as connection, connection.sender("q"):
                    assert whom(far) == ("ada", "PLAIN")
            else:
                with pytest.raises(SaslError, match="under TLS with a verified certificate"):
                    async with asked as connection, connection.sender("q"):
                        raise AssertionError("it is elsewhere")


async def test_scram_does_not_show_the_password_to_anybody(
    files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router, listener=in_clear(files, "PLAIN", "SCRAM-SHA-256"))
        written = bytearray()
        async with connect(URL, user="ada", password=PASSWORD, open_stream=tapped(written, roads.open)):
            assert whom(router) == ("ada", "SCRAM-SHA-256")
        assert PASSWORD.encode() not in written
    assert router.statistics().is_empty


async def test_what_can_never_let_in_is_said_when_the_connection_is_made() -> None:
    with pytest.raises(CommandError, match="credentials"):
        connect(URL, mechanisms=["SCRAM-SHA-256"])
    with pytest.raises(CommandError, match="credentials"):
        connect(URL, mechanisms=["EXTERNAL"])
    with pytest.raises(CommandError, match="not KERBEROS"):
        connect(URL, mechanisms=["KERBEROS"])
    with pytest.raises(CommandError):
        connect("http://router.example")
    with pytest.raises(CommandError, match="no URL"):
        connect([])
    with pytest.raises(CommandError, match="needs its key"):
        connect("amqps://router.example", certificate="ada.pem")
    with pytest.raises(OSError, match="No such file"):
        connect("amqps://router.example", trust="nowhere.pem")


@pytest.mark.parametrize(
    ("hostname", "named"), [(None, "router.example"), ("tenant", "tenant"), ("", "")], ids=["url", "named", "empty"]
)
async def test_the_host_that_is_wanted_is_named_in_open_and_sasl(
    hostname: str | None, named: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    said: list[str | None] = []

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        assert await host.expect_header() == SASL
        offer = SaslMechanisms(sasl_server_mechanisms=(Symbol("ANONYMOUS"),))
        await host.write(SASL, frame(encode_composite(offer), type=SASL_FRAME))
        frames = FrameReader(512)
        frames.feed(await stream.receive_some())
        init = frames.next_frame()
        assert init is not None
        said.append(decode_composite(Registry(SaslInit), init.body)[0].hostname)
        await host.write(frame(encode_composite(SaslOutcome(code=SaslCode.OK)), type=SASL_FRAME))
        said.append((await host.open()).hostname)
        await host.close()

    roads.lead_to(serve)
    async with roads.connect(hostname=hostname):
        pass
    assert said == [named, named]


async def test_tls_over_any_stream(files: Files, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:
        tls = ssl.create_default_context(cafile=files.trust)
        listener = files.listener("ANONYMOUS", url="amqps://127.0.0.1:5671")
        roads = Roads(nursery)
        roads.lead_to(router, "amqps://localhost:5671", listener)
        async with roads.connect("amqps://localhost:5671", tls=tls), joined(nursery, router):
            assert len(router.statistics().connections) >= 2
    assert router.statistics().is_empty
