"""The keys of tokens while a router runs: read at the start, again, from a file and over TLS."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext

import pytest
import trio
import trio.testing
import trustme

from amqpmesh import LinkDetachedError, Message, connect
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import ListenerConfig, PasswordConfig, TokenIssuerConfig
from amqpmesh.router.io.environment import OF_THIS_RUN, REAL
from amqpmesh.router.runtime import token_keys
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.token_keys import KeyReaders, KeysUnreadableError, TokenFiles, read
from amqpmesh.router.tokens.identity import NotYetError, TokenError
from amqpmesh.router.tokens.judge import Tokens
from amqpmesh.router.tokens.key_sets import PublicKey, parse_key_set
from tests.support.data.tokens import (
    ISSUER,
    bearer,
    content,
    issuer,
    key,
    key_set,
    named_key,
    shared_access,
    signed,
    tokens,
)
from tests.support.worlds.sibling_workers import address_at, clients, router_config, workers

ONE, TWO = (parse_key_set(key_set(key(name))) for name in ("one", "two"))


class Source:
    """The keys of an issuer, as a test changes them."""

    def __init__(self) -> None:
        self.reads: list[float] = []
        self.keys: tuple[PublicKey, ...] | Exception = ONE

    def read(self, _issuer: TokenIssuerConfig) -> tuple[PublicKey, ...]:
        self.reads.append(trio.current_time())
        if isinstance(self.keys, Exception):
            raise self.keys
        return self.keys


async def moment(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time pass, in steps, with turns for all tasks in each."""
    for _ in range(int(seconds)):
        clock.jump(1.0)
        await trio.testing.wait_all_tasks_blocked()


def judge_and_source() -> tuple[Tokens, Source]:
    """Return a judge whose issuer has no keys yet, and the source of its keys, which is read in no thread."""
    OF_THIS_RUN.set(replace(REAL))
    judge = tokens(issuer(refresh=60.0))
    judge.keys[ISSUER].replace(())
    return judge, Source()


async def test_the_set_is_read_at_the_start_and_again_and_the_last_good_one_stays(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    judge, source = judge_and_source()
    readers = KeyReaders(judge._config, judge, source.read)
    async with trio.open_nursery() as nursery:
        readers.start(nursery.start_soon)
        await moment(mock_clock, 1)
        assert judge.judge(bearer()).user == "alice"
        await moment(mock_clock, 58)
        assert len(source.reads) == 1
        source.keys = KeysUnreadableError("the answer has the status 500")
        await moment(mock_clock, 4)
        assert len(source.reads) == 2
        assert judge.judge(bearer()).user == "alice"
        assert "keys not read" in caplog.text
        source.keys = TWO
        await moment(mock_clock, 21)
        assert len(source.reads) == 3, "a failed attempt is repeated sooner"
        with pytest.raises(TokenError):
            judge.judge(bearer())
        assert judge.judge(signed(content(), key("two"))).user == "alice"
        nursery.cancel_scope.cancel()


async def test_another_configuration_keeps_what_was_read_and_reads_what_is_new_and_nothing_that_is_gone(
    mock_clock: trio.testing.MockClock,
) -> None:
    judge, source = judge_and_source()
    readers = KeyReaders(judge._config, judge, source.read)
    async with trio.open_nursery() as nursery:
        readers.start(nursery.start_soon)
        await moment(mock_clock, 11)
        assert (len(source.reads), judge.judge(bearer()).user) == (1, "alice")
        source.keys = KeysUnreadableError("the answer has the status 500")
        # Its tokens mean something else now, and are not taken before all of the change is in force.
        other = tokens(issuer(user_prefix="x-"))._config
        assert judge.narrow(other, {})
        with pytest.raises(TokenError):
            judge.judge(bearer())
        judge.change(other, {})
        readers.change(other)  # type: ignore[arg-type]  # the tables of tokens are all that it reads
        await moment(mock_clock, 1)
        assert (len(source.reads), judge.judge(bearer()).user) == (2, "x-alice")
        none = tokens()._config
        assert judge.narrow(none, {})
        judge.change(none, {})
        readers.change(none)  # type: ignore[arg-type]
        await moment(mock_clock, 300)
        assert len(source.reads) == 2
        source.keys = ONE
        judge.change(other, {})
        readers.change(other)  # type: ignore[arg-type]
        await moment(mock_clock, 1)
        assert (len(source.reads), judge.judge(bearer()).user) == (3, "x-alice")
        nursery.cancel_scope.cancel()


async def test_invented_keys_cause_no_flood_of_reads(mock_clock: trio.testing.MockClock) -> None:
    judge, source = judge_and_source()
    async with trio.open_nursery() as nursery:
        KeyReaders(judge._config, judge, source.read).start(nursery.start_soon)
        await moment(mock_clock, 1)
        for second in range(30):
            for number in range(20):
                with pytest.raises(TokenError):
                    judge.judge(signed(content(), key("two"), kid=f"k{second}/{number}"))
            await moment(mock_clock, 1)
        assert 3 <= len(source.reads) <= 4
        gaps = [later - sooner for sooner, later in zip(source.reads, source.reads[1:], strict=False)]
        assert min(gaps) >= token_keys.PAUSE
        source.keys = ONE + TWO
        with pytest.raises(TokenError):
            judge.judge(signed(content(), key("two")))
        await moment(mock_clock, 11)
        assert judge.judge(signed(content(), key("two"))).user == "alice"
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------------ files and hosts


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(key("one")))
    assert [each.id for each in read(issuer(jwks=file))] == ["one"]
    file.write_bytes(b" " * 1024 + key_set(key("one")))
    with pytest.raises(KeysUnreadableError, match="1024 octets"):
        read(issuer(jwks=file, jwks_size=1024))
    with pytest.raises(KeysUnreadableError, match="No such file"):
        read(issuer(jwks=tmp_path / "none"))
    file.write_text("{}")
    with pytest.raises(KeysUnreadableError, match="no list of keys"):
        read(issuer(jwks=file))


class Answers(BaseHTTPRequestHandler):
    """A host of keys: each path is another answer."""

    released = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.released.wait(10)
            return
        self.send_response({"/moved": 302, "/none": 404}.get(self.path, 200))
        if self.path == "/moved":
            self.send_header("Location", "/keys?v=1")
        self.end_headers()
        self.wfile.write(b" " * (2**18 if self.path == "/large" else 0) + key_set(key("one")))

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def host(tmp_path: Path) -> Iterator[str]:
    """Run a host of keys over TLS; yield its URL."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = SSLContext(PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            Answers.released.set()
            server.shutdown()
            thread.join(10)


def test_a_set_is_fetched_over_tls_from_a_host_that_is_trusted(tmp_path: Path) -> None:
    with host(tmp_path) as url:
        settings = {"jwks": None, "trust": tmp_path / "ca.pem"}
        assert [each.id for each in read(issuer(jwks_url=f"{url}/keys?v=1", **settings))] == ["one"]
        for path, reason in (("/none", "status 404"), ("/moved", "status 302"), ("/large", "262144 octets")):
            with pytest.raises(KeysUnreadableError, match=reason):
                read(issuer(jwks_url=url + path, **settings))
        with pytest.raises(KeysUnreadableError, match="CERTIFICATE_VERIFY_FAILED"):
            read(issuer(jwks_url=url, jwks=None))
        with pytest.raises(KeysUnreadableError, match="timed out"):
            read(issuer(jwks_url=f"{url}/slow", time_out=0.2, **settings))


async def test_a_router_fetches_its_keys_and_lets_clients_in_meanwhile_with_others(tmp_path: Path) -> None:
    with host(tmp_path) as url:
        config = issuer(jwks=None, jwks_url=f"{url}/keys", trust=tmp_path / "ca.pem")
        listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("ANONYMOUS", "OAUTHBEARER"))
        async with Router(id="A", listeners=[listener], token_issuers=(config,)) as router:
            judge = router._started().context.tokens
            assert judge is not None
            with trio.fail_after(60):
                while True:
                    try:
                        assert judge.judge(bearer(router._wall())).user == "alice"
                        break
                    except NotYetError:
                        await trio.sleep(0.01)


# --------------------------------------------------------------------------------------------------------------- reload


async def test_a_reload_reads_secrets_and_keys_again_or_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secret = tmp_path / "keys.json", tmp_path / "secret"
    file.write_bytes(key_set(key("one")))
    secret.write_text("c2VjcmV0\n")
    named = named_key(keys=(PasswordConfig(file=secret),))
    async with Router(id="A", token_issuers=(issuer(jwks=file),), token_keys=(named,)) as router:
        judge = router._started().context.tokens
        assert judge is not None
        now = router._wall()
        sas = "servicebus.windows.net:sastoken"
        assert judge.judge_put(sas, shared_access(now + 60)).user == "sender"
        file.write_text("no keys")
        secret.write_text("other\n")
        with pytest.raises(ConfigError):
            router.reload()
        assert judge.judge(bearer(now)).user == "alice"
        assert judge.judge_put(sas, shared_access(now + 60)).user == "sender"
        file.write_bytes(key_set(key("two")))
        router.reload()
        with pytest.raises(TokenError):
            judge.judge(bearer(now))
        with pytest.raises(TokenError):
            judge.judge_put(sas, shared_access(now + 60))
        assert judge.judge_put(sas, shared_access(now + 60, secret=b"other")).user == "sender"


def test_without_the_extra_the_configuration_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "find_spec", lambda _: None)
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(key("one")))
    judge = tokens(issuer(jwks=file), named_key())
    monkeypatch.setenv("KEY", "c2VjcmV0")
    with pytest.raises(ConfigError, match=r"pip install 'amqpmesh\[oauth\]'"):
        TokenFiles.read(judge._config)
    alone = tokens(named_key())
    found = TokenFiles.read(alone._config)
    assert found is not None
    assert found.secrets == {"sender": (b"c2VjcmV0",)}
    assert "c2VjcmV0" not in repr(found)


# -------------------------------------------------------------------------------------------------------------- clients


async def test_a_connection_with_a_token_stays_with_the_worker_that_has_judged_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "c2VjcmV0")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", cbs=True)
    config = router_config(listeners=(listener,), token_keys=(named_key(),))
    async with workers(config, tmp_path) as (first, second), connect(first.listeners[0].url) as client:
        token = Message(
            shared_access(first._wall() + 60),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": "amqps://mesh.example/",
            },
        )
        async with client.sender("$cbs") as requests:
            with pytest.raises(LinkDetachedError):
                async with client.receiver(address_at(2)):
                    raise AssertionError("no token was put yet")
            await requests.send(token)
            async with client.receiver(address_at(2)):
                assert (clients(first), clients(second)) == (1, 0)
                assert "sender" in [each.user for each in first.statistics().connections]


async def test_frames_that_are_traced_show_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("KEY", "c2VjcmV0")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", cbs=True, trace_frames=True)
    async with Router(id="A", listeners=[listener], token_keys=(named_key(),)) as router:
        token = shared_access(router._wall() + 60)
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "x"}
        async with connect(router.listeners[0].url) as client, client.sender("$cbs") as requests:
            await requests.send(Message(token, application_properties=properties))
        lines = [record.getMessage() for record in caplog.records]
        assert any("$cbs" in str(record.__dict__) for record in caplog.records), "the frames are traced"
        for shown in (*lines, *(str(record.__dict__) for record in caplog.records)):
            assert "SharedAccessSignature" not in shown
            assert token[-20:] not in shown
