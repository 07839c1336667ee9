"""Changed sources of rights, and another audit log, put in force in a router that runs."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from amqpmesh import (
    Accepted,
    ConfigError,
    Connection,
    ConnectionClosedError,
    LinkDetachedError,
    Message,
    Receiver,
    Router,
    Sender,
    connect,
)
from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.file import (
    AuditConfig,
    ListenerConfig,
    MeshConfig,
    PolicyConfig,
    RouterConfig,
    TokenKeyConfig,
)
from amqpmesh.router.config.oauth import TokensConfig
from amqpmesh.router.runtime.http_listeners import HttpListeners
from amqpmesh.topology.authority import Authority, certificate_pem, key_pem
from tests.support.data.tokens import RESOURCE, named_key, shared_access
from tests.support.tasks.until import until
from tests.support.worlds.audited import strictly_read
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LOOPBACK = "amqp://127.0.0.1:0"


def taken() -> tuple[socket.socket, ListenerConfig]:
    """Return a socket that listens, and a listener that wants its port."""
    blocking = socket.create_server(("127.0.0.1", 0))
    return blocking, ListenerConfig(url=f"amqp://127.0.0.1:{blocking.getsockname()[1]}", name="in the way")


# --------------------------------------------------------------------------------------------------------------- tokens


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        monkeypatch.setenv(name.upper(), name)


def key(name: str, **settings: Any) -> TokenKeyConfig:
    return named_key(name=name, keys=(PasswordConfig(env=name.upper()),), **settings)


def config(*keys: TokenKeyConfig, **settings: Any) -> RouterConfig:
    listener = ListenerConfig(url=LOOPBACK, name="amqp", cbs=bool(keys), sasl=("ANONYMOUS",))
    return RouterConfig(id="A", listeners=(listener,), token_keys=keys, **settings)


async def status(client: Connection, name: str, **settings: Any) -> int:
    """Put a token by a key of a name. Returns: the status of the answer."""
    token = shared_access(time.time() + 3600, name=name, secret=name.encode(), **settings)
    properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": RESOURCE}
    async with client.receiver("$cbs") as answers, client.sender("$cbs") as requests:
        await requests.send(Message(token, message_id="m", application_properties=properties))
        answer = await answers.receive()
        found: int = answer.message.application_properties["status-code"]
        return found


@pytest.mark.usefixtures("secrets")
async def test_connections_that_came_by_a_key_that_is_gone_end_and_those_of_others_stay() -> None:
    async with Router(config(key("one"), key("two"))) as router:
        url = router.listeners[0].url
        async with connect(url) as first, connect(url) as second:
            assert (await status(first, "one"), await status(second, "two")) == (202, 202)
            applied = await router.apply(config(key("two")))
            assert [(each.key, str(each.effect)) for each in applied.differences] == [("token_key[one]", "at once")]
            with pytest.raises((ConnectionClosedError, LinkDetachedError), match="not permitted"):
                async with first.receiver("q") as receiver:
                    await receiver.receive()
            async with second.receiver("q"):
                pass
            assert await status(second, "two") == 202
        async with connect(url) as again:
            assert await status(again, "one") == 401
            assert await status(again, "two") == 202


@pytest.mark.usefixtures("secrets")
async def test_a_key_whose_tokens_mean_something_else_ends_its_connections_and_its_times_do_not() -> None:
    async with Router(config(key("one"))) as router, connect(router.listeners[0].url) as client:
        assert await status(client, "one") == 202
        assert not (await router.apply(config(key("one", leeway=20.0, lifetime=7200.0)))).waiting
        async with client.receiver("q") as receiver:
            await router.apply(config(key("one", user="other")))
            with pytest.raises((ConnectionClosedError, LinkDetachedError), match="not permitted"):
                await receiver.receive()


@pytest.mark.usefixtures("secrets")
async def test_the_first_key_and_its_limits_come_while_the_router_runs_and_go_again() -> None:
    async with Router(config()) as router:
        assert not (await router.apply(config(key("one")))).waiting
        url = router.listeners[0].url
        async with connect(url) as client:
            assert await status(client, "one") == 202
        assert not (await router.apply(config(key("one"), tokens=TokensConfig(size=256)))).waiting
        async with connect(url) as client:
            assert await status(client, "one", resource=f"{RESOURCE}/{'x' * 300}") == 401
        async with connect(url) as client:
            assert await status(client, "one") == 202
            await router.apply(config())
            with pytest.raises((ConnectionClosedError, LinkDetachedError), match="not permitted"):
                async with client.receiver("q") as receiver:
                    await receiver.receive()
        async with connect(url) as client, client.receiver("q"):
            pass  # the listener takes no tokens any more


@pytest.mark.usefixtures("secrets")
async def test_a_failed_change_takes_no_keys_away_and_brings_none() -> None:
    blocking, listener = taken()
    async with Router(config(key("one"))) as router:
        url = router.listeners[0].url
        with blocking:
            wanted = config(key("two"))
            with pytest.raises(OSError, match="in the way|use") as error:
                await router.apply(replace(wanted, listeners=(*wanted.listeners, listener)))
            assert error.value.errno == errno.EADDRINUSE
        for name, answer in (("one", 202), ("two", 401)):
            async with connect(url) as client:
                assert await status(client, name) == answer
        await router.apply(config(key("two")))
        for name, answer in (("one", 401), ("two", 202)):
            async with connect(url) as client:
                assert await status(client, name) == answer


# ---------------------------------------------------------------------------------------------------------- the policy


def policy(file: Path, receive: str) -> PolicyConfig:
    file.write_text(f'[[group]]\nname = "g"\nsend = ["q"]\nreceive = ["{receive}"]\n')
    return PolicyConfig(file=file)


def ruled(*listeners: ListenerConfig, **settings: Any) -> RouterConfig:
    return RouterConfig(id="A", listeners=(ListenerConfig(url=LOOPBACK, name="amqp"), *listeners), **settings)


async def test_a_policy_in_another_file_is_in_force_at_once_and_read_there_from_then_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    async with (
        Router(ruled(policy=policy(one, "q"))) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q") as receiver,
    ):
        applied = await router.apply(ruled(policy=policy(two, "r")))
        assert [(each.key, str(each.effect)) for each in applied.differences] == [("policy.file", "at once")]
        with pytest.raises(LinkDetachedError, match="not permitted"):
            await receiver.receive()
        assert router.statistics().policies[0].file == str(two)
        policy(one, "s")
        policy(two, "t")
        router.reload()
        async with client.receiver("t"):
            pass


async def test_a_policy_in_a_file_that_is_not_valid_changes_nothing(tmp_path: Path) -> None:
    held = policy(tmp_path / "one.toml", "q")
    (tmp_path / "two.toml").write_text("[[group]")
    async with Router(ruled(policy=held)) as router, connect(router.listeners[0].url) as client:
        for broken in ("two.toml", "none.toml"):
            with pytest.raises(ConfigError):
                await router.apply(ruled(policy=PolicyConfig(file=tmp_path / broken)))
        async with client.receiver("q"):
            pass
        assert router.config.policy == held


@pytest.mark.parametrize(("before", "after"), [("#", "mine"), ("mine", "#")])
async def test_a_failed_change_leaves_the_policy_of_before_in_force_for_messages_that_pass_meanwhile(
    tmp_path: Path, before: str, after: str
) -> None:
    """The other policy permits less, and more."""
    blocking, listener = taken()
    held, wanted = policy(tmp_path / "one.toml", before), policy(tmp_path / "two.toml", after)
    for each in (held, wanted):
        each.file.write_text(each.file.read_text().replace('["q"]', '["#"]'))
    over = trio.Event()
    came: list[object] = []

    async def receive(receiver: Receiver) -> None:
        with suppress(LinkDetachedError):  # once the change is made
            async for delivery in receiver:
                came.append(delivery.message.body)
                delivery.accept()

    async def send(sender: Sender) -> None:
        while not over.is_set():
            sent = await sender.transfer("x")
            assert await sent.outcome() == Accepted()

    async def may_receive(address: str) -> bool:
        try:
            async with client.receiver(address):
                return True
        except LinkDetachedError:
            return False

    async with (
        Router(ruled(policy=held)) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q" if before == "#" else "mine") as receiver,
        client.sender("q" if before == "#" else "mine") as sender,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(receive, receiver)
        async with trio.open_nursery() as sending:
            sending.start_soon(send, sender)
            await until(lambda: len(came) > 3)
            for _ in range(3):
                with pytest.raises(OSError, match="use"):
                    await router.apply(ruled(listener, policy=wanted))
                with pytest.raises(ConfigError, match="audit.file"):
                    none = AuditConfig(file=tmp_path / "none" / "x.jsonl")
                    await router.apply(ruled(policy=wanted, audit=none))
                assert router.config == ruled(policy=held)
                (told,) = router.statistics().policies
                assert told.file == str(held.file)
                assert await may_receive("other") is (before == "#")
                so_far = len(came)
                await until(lambda so_far=so_far: len(came) > so_far + 3)
            router.reload()
            assert await may_receive("other") is (before == "#")
            over.set()
        blocking.close()
        await router.apply(ruled(listener, policy=wanted))
        assert await may_receive("other") is (after == "#")
        assert [each.name for each in router.listeners] == ["amqp", "in the way"]
        nursery.cancel_scope.cancel()


async def test_the_first_policy_and_the_end_of_it_wait_for_a_restart_and_say_why(tmp_path: Path) -> None:
    held = policy(tmp_path / "one.toml", "q")
    for before, after in ((None, held), (held, None), (held, replace(held, push=True))):
        async with Router(ruled(policy=before)) as router:
            (waiting,) = (await router.apply(ruled(policy=after))).waiting
            assert waiting.reason.startswith("tenants, and policies that are pushed")
            assert router.config.policy == before


# -------------------------------------------------------------------------------------------------------- the audit log


def changes(file: Path) -> list[tuple[str, str]]:
    """Return the changes of the configuration in an audit log, and the connections: their event and key."""
    found = strictly_read(file.read_bytes())
    told = ("configuration changed", "connection opened")
    return [(each["event"], each.get("key", "")) for each in found if each["event"] in told]


OPENED = ("connection opened", "")


async def test_an_audit_log_begins_goes_to_another_file_and_ends_without_a_restart(tmp_path: Path) -> None:
    one, two = (AuditConfig(file=tmp_path / name) for name in ("one.jsonl", "two.jsonl"))

    def told(key: str) -> tuple[str, str]:
        return "configuration changed", key

    async with Router(ruled()) as router:

        async def come() -> None:
            async with connect(router.listeners[0].url):
                pass

        await come()
        for wanted in (one, replace(one, keep=2), two, None):
            applied = await router.apply(ruled(audit=wanted))
            assert not applied.waiting
            await come()
        await router.apply(ruled(audit=one))
    moved = [told("audit.file"), told("audit.keep")]
    assert changes(one.file) == [told("audit"), OPENED, told("audit.keep"), OPENED, *moved, told("audit")]
    assert changes(two.file) == [*moved, OPENED, told("audit")]


async def test_an_audit_log_that_is_named_in_another_way_goes_on(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").symlink_to(tmp_path)
    one = AuditConfig(file=tmp_path / "one.jsonl")
    async with Router(ruled(audit=one)) as router:
        for name in ("x/../one.jsonl", "y/one.jsonl", "one.jsonl"):
            assert not (await router.apply(ruled(audit=AuditConfig(file=tmp_path / name)))).waiting
            async with connect(router.listeners[0].url):
                pass
    assert changes(one.file) == [("configuration changed", "audit.file"), OPENED] * 3


async def test_an_audit_log_that_cannot_be_opened_changes_nothing_and_listens_nowhere(tmp_path: Path) -> None:
    one, none = AuditConfig(file=tmp_path / "one.jsonl"), AuditConfig(file=tmp_path / "none" / "x.jsonl")
    blocking, listener = taken()
    with blocking:
        free = ListenerConfig(url=LOOPBACK, name="free")
        async with Router(ruled(audit=one)) as router:
            with pytest.raises(ConfigError, match="audit.file"):
                await router.apply(ruled(free, audit=none))
            with pytest.raises(OSError, match="use"):
                await router.apply(ruled(listener, audit=AuditConfig(file=tmp_path / "two.jsonl")))
            assert router.config == ruled(audit=one)
            # The file that was opened in vain is free again: only one router writes a file.
            async with Router(ruled(audit=AuditConfig(file=tmp_path / "two.jsonl"))):
                pass
            async with connect(router.listeners[0].url):
                pass
            await until(lambda: changes(one.file) == [OPENED])


async def test_a_certificate_of_another_router_changes_nothing_and_leaves_nothing_open(tmp_path: Path) -> None:
    authority = Authority.create("m", time.time())
    mesh = MeshConfig(certificate=tmp_path / "A.pem", key=tmp_path / "A.key", trust=tmp_path / "ca.pem")

    def certify(router: str) -> None:
        key = Ed25519PrivateKey.generate()
        assert mesh.certificate is not None
        assert mesh.key is not None
        mesh.certificate.write_bytes(certificate_pem(authority.issue(router, key.public_key(), time.time())))
        mesh.key.write_bytes(key_pem(key))

    assert mesh.trust is not None
    mesh.trust.write_bytes(certificate_pem(authority.certificate))
    certify("A")
    one, two = (AuditConfig(file=tmp_path / name) for name in ("one.jsonl", "two.jsonl"))
    async with Router(ruled(audit=one, mesh=mesh)) as router:
        for _ in range(2):
            certify("B")
            with pytest.raises(ConfigError, match="certificate of 'B'"):
                await router.apply(ruled(ListenerConfig(url=LOOPBACK, name="free"), audit=two, mesh=mesh))
            assert router.config == ruled(audit=one, mesh=mesh)
            certify("A")
            await router.apply(ruled(audit=one, mesh=mesh))  # lines still go to the file that is configured
            async with connect(router.listeners[0].url):
                pass
        certify("B")
        with pytest.raises(ConfigError, match="certificate of 'B'"):
            await router.apply(ruled(audit=two, mesh=mesh))
        certify("A")
        await router.apply(ruled(audit=two, mesh=mesh))  # nobody else writes it
    moved = ("configuration changed", "audit.file")
    assert changes(one.file) == [OPENED, OPENED, moved]
    assert changes(two.file) == [moved]


async def test_an_audit_log_that_begins_is_there_before_anything_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = trio.Event()
    one, two = (AuditConfig(file=tmp_path / name) for name in ("one.jsonl", "two.jsonl"))
    async with trio.open_nursery() as nursery:
        async with Router(ruled(audit=one)) as router:
            monkeypatch.setattr(HttpListeners, "settled", lambda _: over.wait())
            nursery.start_soon(router.apply, ruled(audit=two))
            await until(lambda: router.config.audit == two)
        over.set()  # the router has ended meanwhile
        monkeypatch.undo()
    assert changes(one.file) == changes(two.file) == [("configuration changed", "audit.file")]
    async with Router(ruled(audit=two)):
        pass  # nobody writes it any more
