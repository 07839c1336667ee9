"""Output on terminals only: progress, and hints what to type next."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from amqpmesh.router.cli.output.hints import first_steps
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.config.file import ListenerConfig, TlsConfig
from tests.support.processes.router_thread import PATIENCE, Command, Served
from tests.support.processes.terminal import Terminal

ROOT = Path(__file__).parents[4]


def test_a_bar_shows_how_far_sending_is_and_gives_way_to_the_summary(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.receive("hello")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert command("send", "hello", "--count", "3000").status == 0
    shown = terminal.shown()
    assert re.search(r"sent: +\d+%\|", shown)
    assert "| 0/3000 [" in shown
    assert shown.splitlines()[-1].lstrip().startswith("sent 3,000 in ")


def test_one_message_has_no_bar(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.receive("hello")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert command("send", "hello", "--body", "hi").status == 0
    assert re.fullmatch(r"accepted by receiver in \d+\.\d ms\r\n", terminal.shown())


def test_json_has_no_bar(served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    served.receive("hello")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert command("send", "hello", "--count", "10", "--json").status == 0
    assert terminal.shown().startswith('{"sent": 10, ')


def test_a_bar_shows_how_far_receiving_is_where_bodies_go_elsewhere(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.send("hello", "a", "b")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    said = command("receive", "hello", "--count", "2")
    assert (said.status, said.out) == (0, "a\nb\n")
    assert "| 0/2 [" in terminal.shown()


def test_a_bar_does_not_stand_among_bodies(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.send("hello", "a", "b")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    assert command("receive", "hello", "--count", "2").status == 0
    assert terminal.shown().startswith("a\r\nb\r\nreceived 2 in ")


def test_what_is_said_meanwhile_stands_in_a_line_of_its_own(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert command("send", "hello", "--count", "5", "--timeout", "2").status == 4
    lines = re.split(r"\r\n|\r", terminal.shown())
    assert 'waiting for credit on "hello": no receiver anywhere' in lines


def test_lines_are_typed_without_a_bar(
    served: Served, command: Command, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard, typed = os.openpty()

    def decide(delivery: Delivery) -> None:
        delivery.accept()
        os.write(keyboard, b"\x04")  # end of input

    came = served.receive("hello", decide)
    os.write(keyboard, b"one\n")
    with os.fdopen(typed) as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        monkeypatch.setattr(sys, "stderr", terminal.stream)
        assert command("send", "hello").status == 0
    os.close(keyboard)
    assert [message.body for message in came] == ["one"]
    first, second = terminal.shown().splitlines()
    assert first == "each line is a message; Ctrl-D ends the input"
    assert second.startswith("sent 1 in ")


# ---------------------------------------------------------------------------------------------------- what to type next


def ran(tmp_path: Path, stderr: int, config: str = "", **environment: str) -> "subprocess.Popen[bytes]":
    (tmp_path / "a.toml").write_text(config)
    return subprocess.Popen(
        [sys.executable, "-m", "amqpmesh", "run", "a.toml", "--listen", "amqp://127.0.0.1:0"],
        stderr=stderr,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_a_router_on_a_terminal_says_what_to_type_next_and_it_works(tmp_path: Path) -> None:
    master, slave = os.openpty()
    router = ran(tmp_path, stderr=slave)
    os.close(slave)
    alarm = threading.Timer(PATIENCE, router.kill)
    alarm.start()
    try:
        with os.fdopen(master, encoding="utf-8") as shown:
            lines = [next(shown).strip() for _ in range(9)]
            assert " INFO started kernel=" in lines[0]
            assert " INFO listening url=amqp://127.0.0.1:" in lines[1]
            receive, send, status = (line for line in lines if line.startswith(sys.executable))
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            receiver = subprocess.Popen(
                [*receive.split(), "--count", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            sent = subprocess.run(send.split(), capture_output=True, env=environment, timeout=PATIENCE, check=True)
            assert receiver.communicate(timeout=PATIENCE)[0] == b"hi\n"
            assert sent.stderr.splitlines()[-1].startswith(b"accepted by receiver in ")
            told = subprocess.run(status.split(), capture_output=True, env=environment, timeout=PATIENCE, check=True)
            assert told.stdout.startswith(b"router ")
            router.terminate()  # while the terminal is there: it says that it ends
            assert router.wait(PATIENCE) == 0
    finally:
        alarm.cancel()
        router.kill()
        router.wait(PATIENCE)


@pytest.mark.parametrize("log", ["[log]\nformat = 'json'\n", "[log]\nlevel = 'warning'\n"])
def test_a_router_that_is_to_say_less_does_not(tmp_path: Path, log: str) -> None:
    master, slave = os.openpty()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        router = ran(tmp_path, stderr=slave, config=log, NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            assert manager.recv(100) == b"READY=1"  # what would be said has been said
        finally:
            router.terminate()
            router.wait(PATIENCE)
    os.write(slave, b"end\n")
    os.close(slave)
    shown = b""
    while not shown.endswith(b"end\r\n"):
        shown += os.read(master, 4096)
    os.close(master)
    assert b"receive hello" not in shown


def listener(url: str, **settings: object) -> tuple[str, ListenerConfig]:
    return url, ListenerConfig(url=url, **settings)  # type: ignore[arg-type]  # any of them


SECURE = listener("amqps://127.0.0.1:5671", tls=TlsConfig(certificate=Path("a.pem"), key=Path("a.key")))
GUARDED = listener("amqp://127.0.0.1:5672", sasl=("SCRAM-SHA-256",), users=Path("users.toml"))
OPEN = listener("amqp://127.0.0.1:5672")
ELSEWHERE = listener("amqp://127.0.0.1:6000")


def commands(steps: list[str]) -> list[str]:
    return [line.strip() for line in steps if line.startswith("    ")]


def test_where_the_default_is_listened_at_no_url_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMQPMESH_URL", raising=False)
    monkeypatch.setattr(sys, "argv", [".venv/bin/amqpmesh", "run"])
    assert commands(first_steps([SECURE, GUARDED, OPEN, ELSEWHERE])) == [
        ".venv/bin/amqpmesh receive hello",
        ".venv/bin/amqpmesh send hello --body hi",
        ".venv/bin/amqpmesh status",
    ]


def test_another_url_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/a folder/amqpmesh"])
    assert commands(first_steps([ELSEWHERE])) == [
        "'/a folder/amqpmesh' receive hello --url amqp://127.0.0.1:6000",
        "'/a folder/amqpmesh' send hello --body hi --url amqp://127.0.0.1:6000",
        "'/a folder/amqpmesh' status --url amqp://127.0.0.1:6000",
    ]


def test_the_default_is_said_where_the_variable_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQPMESH_URL", "amqp://elsewhere")
    assert commands(first_steps([OPEN]))[2].endswith(" status --url amqp://127.0.0.1:5672")


def test_a_program_on_the_path_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "amqpmesh"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("AMQPMESH_URL", raising=False)
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert commands(first_steps([OPEN]))[2] == "amqpmesh status"


def test_nothing_is_said_where_a_password_is_needed() -> None:
    assert first_steps([SECURE, GUARDED]) == []
