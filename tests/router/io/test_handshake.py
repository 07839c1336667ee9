"""TLS of a connection: on a port of its own, or asked for in the stream (§5.2); and the client's identity."""

import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Open
from amqpmesh.router.config.file import ListenerConfig, RouterConfig, TlsConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io import handshake
from amqpmesh.router.io.handshake import HANDSHAKE_TIME_OUT, LONGEST, REMEMBERED, Identity, certificate_subject
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import AMQP, TLS, Peer, connect, connected, frame
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

NAME = "router.example"


@dataclass(frozen=True)
class Files:
    """The certificate files of an operator and of a client."""

    trust: Path
    certificate: Path
    key: Path
    ada: Path
    ada_key: Path

    def tls(self, client: str = "none") -> TlsConfig:
        trust = None if client == "none" else self.trust
        return TlsConfig(certificate=self.certificate, key=self.key, trust=trust, client=client)  # type: ignore[arg-type]  # one of three

    def client(self, *, known: bool = False) -> ssl.SSLContext:
        return client_context(self.trust, self.ada, self.ada_key) if known else client_context(self.trust)


def write(leaf: trustme.LeafCert, certificate: Path, key: Path) -> None:
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    files = Files(*(tmp_path / name for name in ("ca.pem", "router.pem", "router.key", "ada.pem", "ada.key")))
    authority.cert_pem.write_to_path(files.trust)
    write(authority.issue_cert(NAME), files.certificate, files.key)
    write(
        authority.issue_cert("ada@example.org", common_name="ada", organization_name="Mill"), files.ada, files.ada_key
    )
    return files


def over_tls(stream: trio.abc.Stream, context: ssl.SSLContext) -> Peer:
    return Peer(trio.SSLStream(stream, context, server_hostname=NAME))


async def test_a_port_of_its_own_begins_with_tls(
    files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        peer = connected(nursery, router, ListenerConfig(url="amqps://0.0.0.0:0", tls=files.tls(), insecure=True))
        peer = over_tls(peer.stream, files.client())
        await peer.open()
        await peer.write(Close())
        await peer.expect(Close)
        # The router ends TLS, too. Otherwise this would raise: a stream that an attacker cuts short is noticed.
        await peer.expect_end()
    assert router.statistics().is_empty


async def test_a_listener_with_tls_serves_sockets(files: Files) -> None:
    listener = ListenerConfig(url="amqps://127.0.0.1:0", tls=files.tls())
    async with Router(listeners=[listener]) as router:
        assert router.listeners[0].url.startswith("amqps://")
        for _ in range(2):
            peer = over_tls((await connect(router)).stream, files.client())
            await peer.attach(Role.RECEIVER, "q")
            await peer.close()
    assert router.statistics().is_empty


@pytest.mark.parametrize("pipelined", [False, True], ids=["waits-for-the-header", "sends-all-at-once"])
async def test_tls_may_be_asked_for_in_the_stream(
    pipelined: bool, files: Files, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name="plain", tls=files.tls())
        peer = connected(nursery, router, listener)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = files.client().wrap_bio(incoming, outgoing, server_hostname=NAME)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        if pipelined:
            await peer.write(TLS, hello)
            assert await peer.expect_header() == TLS
        else:
            await peer.write(TLS)
            assert await peer.expect_header() == TLS
            await peer.write(hello)
        incoming.write(peer.rest())
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await peer.write(outgoing.read())
                incoming.write(await peer.stream.receive_some())
        tls.write(AMQP + frame(Open(container_id="ada")))
        await peer.write(outgoing.read())
        heard = b""
        while len(heard) < 8:
            try:
                heard += tls.read()
            except ssl.SSLWantReadError:
                incoming.write(await peer.stream.receive_some())
        assert heard.startswith(AMQP)
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_tls_is_not_offered_without_a_certificate(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:
        peer = connected(nursery, router)
        await peer.write(TLS)
        assert await peer.expect_header() == AMQP
        await peer.expect_end()
    assert router.statistics().is_empty


@pytest.mark.parametrize("url", ["amqps://127.0.0.1:0", "amqp://127.0.0.1:0"])
async def test_a_handshake_that_hangs_is_given_up(
    url: str, files: Files, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router() as router:
        peer = connected(nursery, router, ListenerConfig(url=url, tls=files.tls()))
        if url.startswith("amqp:"):
            await peer.write(TLS)
            assert await peer.expect_header() == TLS
        await peer.expect_end()
        assert trio.current_time() <= HANDSHAKE_TIME_OUT + 2
    assert router.statistics().is_empty


@pytest.mark.parametrize("url", ["amqps://127.0.0.1:0", "amqp://127.0.0.1:0"])
async def test_a_handshake_that_fails_ends_the_connection_and_is_no_fault_of_ours(
    url: str, files: Files, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router() as router:
        peer = connected(nursery, router, ListenerConfig(url=url, tls=files.tls()))
        if url.startswith("amqp:"):
            await peer.write(TLS)
            assert await peer.expect_header() == TLS
        await peer.write(b"this is not a ClientHello")
        while await peer.stream.receive_some():
            pass
    assert router.statistics().is_empty
    failed = [record for record in caplog.records if event_of(record) == "TLS handshake failed"]
    assert [(record.levelname, record.exc_info) for record in failed] == [("WARNING", None)]


async def test_a_client_is_known_by_its_certificate(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    listener = ListenerConfig(url="amqps://127.0.0.1:0", sasl=(), tls=files.tls("required"))
    async with Router(listeners=[listener]) as router:
        peer = over_tls((await connect(router)).stream, files.client(known=True))
        await peer.open()
        await peer.close()
        stranger = over_tls((await connect(router)).stream, files.client())
        with pytest.raises(trio.BrokenResourceError):
            await stranger.open()
    assert router.statistics().is_empty


async def test_reload_shows_new_certificates_to_new_connections_and_keeps_the_others(
    files: Files, authority: trustme.CA, tmp_path: Path
) -> None:
    add_user(tmp_path / "users.toml", "ada", "secret")
    listener = ListenerConfig(
        url="amqps://127.0.0.1:0", sasl=("PLAIN", "ANONYMOUS"), users=tmp_path / "users.toml", tls=files.tls()
    )

    async def shown(router: Router) -> Peer:
        peer = over_tls((await connect(router)).stream, files.client())
        await peer.open()
        return peer

    def certificate(peer: Peer) -> bytes:
        assert isinstance(peer.stream, trio.SSLStream)
        found: bytes = peer.stream.getpeercert(binary_form=True)
        return found

    async with Router(listeners=[listener]) as router:
        before = await shown(router)
        write(authority.issue_cert(NAME), files.certificate, files.key)
        users = (tmp_path / "users.toml").read_text()
        (tmp_path / "users.toml").write_text("broken")
        with pytest.raises(ConfigError, match=r"users\.toml"):
            router.reload()
        assert certificate(await shown(router)) == certificate(before), "one bad file, and nothing has changed"
        (tmp_path / "users.toml").write_text(users)
        assert router.reload(replace(router.config, id="other")) == ["router.id"]
        assert certificate(await shown(router)) != certificate(before)
        assert router.reload(router.config) == []
        await before.close()
    assert router.statistics().is_empty


async def test_a_certificate_that_is_none_is_an_error_at_the_start(files: Files) -> None:
    files.certificate.write_text("nothing")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", name="front", tls=files.tls())
    with pytest.raises(ConfigError, match=r"front\.tls"):
        async with Router(RouterConfig(listeners=(listener,))):
            pass


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ((), None),
        ((("commonName", "ada"),), "CN=ada"),
        ((("countryName", "GB"),), "C=GB"),
    ],
)
def test_a_subject_of_one_part(subject: tuple[tuple[str, str], ...], text: str | None) -> None:
    assert certificate_subject({"subject": (subject,) if subject else ()}) == text


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (((("countryName", "GB"),), (("organizationName", "Mill"),), (("commonName", "ada"),)), "CN=ada,O=Mill,C=GB"),
        (((("commonName", "ada"), ("userId", "7")),), "CN=ada+UID=7"),
        (((("commonName", "ada,O=Mill"),),), "CN=ada\\,O\\=Mill"),
        (((("commonName", ' "a\\b"; '),),), 'CN=\\ \\"a\\\\b\\"\\;\\ '),
        (((("commonName", "#1"),),), "CN=\\#1"),
        (((("commonName", " "),),), "CN=\\ "),
        (((("serialNumber", "1"),),), "serialNumber=1"),
    ],
)
def test_a_subject_is_written_as_rfc_4514_says(subject: tuple[object, ...], text: str) -> None:
    assert certificate_subject({"subject": subject}) == text
    assert certificate_subject(None) is None


class Shown:
    """A stream after its handshake. Args: context: of the handshake. certificate: the peer's, as its octets."""

    def __init__(self, certificate: bytes, verify_mode: ssl.VerifyMode = ssl.CERT_REQUIRED) -> None:
        self._certificate = certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = verify_mode
        self.was_read = False

    def getpeercert(self, binary_form: bool = False) -> object:
        if binary_form:
            return self._certificate
        self.was_read = True
        return {"subject": ((("commonName", "ada"),),)} if self.context.verify_mode else {}


def identity(stream: Any, name: str = "any") -> Identity:
    return Identity.of(stream, name)


@pytest.fixture
def _nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_read", {})


@pytest.mark.usefixtures("_nothing_read")
def test_a_certificate_that_comes_again_is_not_read_again() -> None:
    first, again, other_name = Shown(b"ada"), Shown(b"ada"), Shown(b"ada")
    assert identity(first) == identity(again) == Identity(b"ada", "ada", "CN=ada")
    assert identity(other_name, "uri").user is None
    assert (first.was_read, again.was_read, other_name.was_read) == (True, False, True)


@pytest.mark.usefixtures("_nothing_read")
def test_a_certificate_that_was_not_verified_is_nobodys_although_it_is_known() -> None:
    assert identity(Shown(b"ada")).user == "ada"
    assert identity(Shown(b"ada", ssl.CERT_NONE)) == Identity()


@pytest.mark.usefixtures("_nothing_read")
def test_few_and_short_certificates_are_remembered() -> None:
    for number in range(2 * REMEMBERED):
        identity(Shown(b"%d" % number))
    identity(Shown(bytes(LONGEST + 1)))
    assert sum(len(certificate) for certificate, _ in handshake._read) < REMEMBERED * 4
    last, first = Shown(b"%d" % (2 * REMEMBERED - 1)), Shown(b"0")
    identity(last)
    identity(first)
    assert (last.was_read, first.was_read) == (False, True)
