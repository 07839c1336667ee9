"""The daemon as a process: its log, its signals, and its end."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trustme

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.cli.commands import run
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.runtime.reload import ConfigSource
from tests.support.peers.scripted_stream import Peer, credit
from tests.support.processes.daemon import PATIENCE, Daemon, StartDaemon

HEADER = b"AMQP\x00\x01\x00\x00"


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_listens_where_it_says_and_ends_with_0_on_a_signal(daemon: StartDaemon, number: signal.Signals) -> None:
    router = daemon("--listen", "amqp://127.0.0.1:0")
    with connected(router.port()) as client:
        client.sendall(HEADER)
        assert client.recv(8, socket.MSG_WAITALL) == HEADER
    router.send(number)
    assert router.ended() == 0


def test_frames_are_traced_where_that_is_asked_for(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "quiet.toml").write_text('[log]\nlevel = "error"\n')
    router = daemon("quiet.toml", "--listen", "amqp://127.0.0.1:0", "--trace-frames")
    with connected(router.port()) as client:
        client.sendall(HEADER)
        assert client.recv(8, socket.MSG_WAITALL) == HEADER
        router.said(r" INFO in connection=1 listener=amqp frame=header protocol=AMQP version=1\.0\.0$")
        router.said(r" INFO out connection=1 listener=amqp frame=header protocol=AMQP version=1\.0\.0$")
    router.send(signal.SIGTERM)
    assert router.ended() == 0


def test_every_listener_has_a_line(daemon: StartDaemon) -> None:
    router = daemon("--listen", "amqp://127.0.0.1:0", "--listen", "amqp://127.0.0.1:0", "--id", "A")
    first, second = router.port(), router.port()
    assert first != second
    for port in (first, second):
        connected(port).close()


def test_a_port_in_use_ends_with_1(daemon: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        router = daemon("--listen", f"amqp://127.0.0.1:{other.getsockname()[1]}")
        assert router.ended() == 1
    assert "in use" in router.lines[-1]
    assert not any("Traceback" in line for line in router.lines)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "amqp://0.0.0.0:0"), "loopback only"),
        (("--listen", "ftp://127.0.0.1"), "must begin with amqp://"),
        (("--id", "a@b", "--listen", "amqp://127.0.0.1:0"), "must be without @"),
        (("missing.toml",), "missing.toml: file: No such file"),
    ],
)
def test_a_wrong_configuration_ends_with_2(daemon: StartDaemon, arguments: tuple[str, ...], reason: str) -> None:
    router = daemon(*arguments)
    assert router.ended() == 2
    assert len(router.lines) == 1
    assert reason in router.lines[0]


def test_an_idle_client_is_closed_and_does_not_prolong_the_end(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[router]\ndrain = 100\n[[listener]]\nurl = 'amqp://127.0.0.1:0'\n")
    router = daemon("a.toml")
    with connected(router.port()) as client:
        client.sendall(HEADER)
        assert client.recv(8, socket.MSG_WAITALL) == HEADER
        router.send(signal.SIGTERM)
        assert router.ended() == 0  # long before the 100 s: otherwise the alarm would have ended it
        while client.recv(4096):
            pass


async def with_a_delivery_on_its_way(daemon: StartDaemon, folder: Path) -> tuple[Daemon, Peer, Peer, Transfer]:
    """Start a router, and end it while a receiver has an unsettled delivery."""
    (folder / "a.toml").write_text("[router]\ndrain = 100\n[[listener]]\nurl = 'amqp://127.0.0.1:0'\n")
    router = daemon("a.toml")
    port = router.port()
    receiver, sender = [Peer(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(2)]
    await receiver.attach(Role.RECEIVER, "hello")
    await receiver.write(credit(1))
    await sender.attach(Role.SENDER, "hello")
    await sender.send(0, b"hi")
    transfer = await receiver.expect(Transfer)
    router.send(signal.SIGTERM)
    router.said(" INFO draining signal=SIGTERM seconds=100")
    return router, sender, receiver, transfer


async def test_what_is_unsettled_is_waited_for(daemon: StartDaemon, tmp_path: Path) -> None:
    router, sender, receiver, transfer = await with_a_delivery_on_its_way(daemon, tmp_path)
    await receiver.accept(transfer)
    assert (await sender.expect(Disposition)).state == Accepted()
    async with sender.stream, receiver.stream:
        assert router.ended() == 0  # before the end of the 100 s: otherwise the alarm would have ended it
    assert "stopped drained=true" in router.lines[-1]


async def test_a_second_signal_ends_it_at_once(daemon: StartDaemon, tmp_path: Path) -> None:
    router, sender, receiver, _ = await with_a_delivery_on_its_way(daemon, tmp_path)
    router.send(signal.SIGTERM)
    async with sender.stream, receiver.stream:
        assert router.ended() == 1
    assert "stopped drained=false" in router.lines[-1]
    assert not any("Traceback" in line for line in router.lines)


def test_the_service_manager_hears_when_all_listeners_are_bound_and_when_it_ends(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        router = daemon("--listen", "amqp://127.0.0.1:0", NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert manager.recv(100) == b"READY=1"
        connected(router.port()).close()
        router.send(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert router.ended() == 0


def test_logs_may_be_json(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[log]\nformat = 'json'\n[[listener]]\nurl = 'amqp://127.0.0.1:0'\n")
    router = daemon("a.toml")
    found = router.said(r'^\{"time": "[^"]+", "level": "INFO", "event": "listening", "url": "amqp://127.0.0.1:(\d+)"')
    connected(int(found.group(1))).close()


def test_sighup_reads_users_and_certificates_again_and_a_bad_file_changes_nothing(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    authority = trustme.CA()
    for name in ("old", "new"):
        certificate = authority.issue_cert(f"{name}.example", "127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))

    def use(name: str) -> None:
        for kind in ("pem", "key"):
            (tmp_path / f"a.{kind}").write_bytes((tmp_path / f"{name}.{kind}").read_bytes())

    use("old")
    add_user(tmp_path / "users.toml", "alice", "secret")
    text = (
        "[[listener]]\nurl = 'amqps://127.0.0.1:0'\nsasl = ['PLAIN']\nusers = 'users.toml'\n"
        "tls = { certificate = 'a.pem', key = 'a.key' }\n"
    )
    config = tmp_path / "a.toml"
    config.write_text(text)
    router = daemon("a.toml")
    port = router.port()
    assert b"old.example" in shown_by(port)

    (tmp_path / "users.toml").write_text("broken")
    use("new")
    router.send(signal.SIGHUP)
    router.said(r" ERROR reload failed .*users")
    assert b"old.example" in shown_by(port)

    (tmp_path / "users.toml").unlink()
    add_user(tmp_path / "users.toml", "bob", "secret")
    router.send(signal.SIGHUP)
    router.said(r" INFO reloaded")
    assert b"new.example" in shown_by(port)

    config.write_text(f"[router]\nid = 'B'\n{text}[[address]]\npattern = 'a'\n")
    router.send(signal.SIGHUP)
    router.said(r" WARNING restart required key=router\.id from=.* to=")
    router.said(r" INFO configuration changed key=address\[a\] to=.* effect=\"at once\"")
    config.write_text(f"{text}[log]\nlevel = 'debug'\nformat = 'json'\n")
    router.send(signal.SIGHUP)
    router.said(r'"event": "reloaded"')
    router.send(signal.SIGTERM)
    assert router.ended() == 0


async def test_a_fault_while_it_reads_again_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    left = [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]
    ended: list[bool] = []

    def next_signal(_: object = None) -> None:
        os.kill(os.getpid(), left.pop(0))

    def reload_config() -> RouterConfig:
        next_signal()
        raise RuntimeError("of ours")

    stage = run.DaemonHooks(
        source=ConfigSource(None, reload_config, lambda _: None),
        begun=next_signal,
        ending=lambda: None,
        ended=ended.append,
    )
    with trio.fail_after(PATIENCE):
        assert await run.serve(RouterConfig(id="A", drain=0.0), stage) == 0
    faults = [each.exc_info[1] for each in caplog.records if each.exc_info is not None]
    assert [str(each) for each in faults] == ["of ours"] * 2
    assert (left, ended) == ([], [True])


def shown_by(port: int) -> bytes:
    """Return the certificate that a TLS client gets from the router, in DER."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connected(port) as plain, context.wrap_socket(plain) as client:
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def test_a_connector_of_the_file_connects_to_another_router_and_comes_back(daemon: StartDaemon, tmp_path: Path) -> None:
    far = daemon("--id", "B", "--listen", "amqp://127.0.0.1:0")
    port = far.port()
    (tmp_path / "a.toml").write_text(
        f"""
        [router]
        id = "A"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        [[connector]]
        name = "b"
        url = "amqp://127.0.0.1:{port}"
        role = "container"
        """
    )
    near = daemon("a.toml")
    own = near.port()
    assert near.said(r" INFO connection opened connection=1 peer=127\.0\.0\.1 container=B connector=b$")
    shown = status(own)
    assert re.search(rf"^b +container +connected +amqp://127\.0\.0\.1:{port} +0 +-$", shown, re.MULTILINE), shown
    assert re.search(r"^B +127\.0\.0\.1 +- +out +b +container +-", shown, re.MULTILINE), shown
    assert re.search(r"^A +127\.0\.0\.1 +- +in +amqp +normal +-", status(port), re.MULTILINE)
    far.send(signal.SIGTERM)
    assert far.ended() == 0
    assert near.said(r" INFO connection closed connection=1 .* connector=b ")
    assert near.said(
        rf" WARNING connector retrying connector=b url=amqp://127\.0\.0\.1:{port} reason=\"the peer closed"
    )
    daemon("--id", "B", "--listen", f"amqp://127.0.0.1:{port}")
    assert near.said(r" INFO connection opened connection=\d+ peer=127\.0\.0\.1 container=B connector=b$")
    near.send(signal.SIGTERM)
    assert near.ended() == 0


def status(port: int) -> str:
    """Return the output of `amqpmesh status`."""
    return subprocess.run(
        [sys.executable, "-m", "amqpmesh", "status", "--url", f"amqp://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "COLUMNS": "140"},
    ).stdout
