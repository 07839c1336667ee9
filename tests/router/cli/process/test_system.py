"""The daemon's part of a service: the service manager, file limits, and garbage collection."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from amqpmesh.router.cli.process import system


def listening_at(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.settimeout(5)
    return manager


def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening_at(str(tmp_path / "notify")) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        system.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_the_service_manager_may_have_a_name_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening_at("\0amqpmesh-test-notify") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", "@amqpmesh-test-notify")
        system.notify("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


def test_a_service_manager_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/manager")
    with pytest.raises(FileNotFoundError, match=r"NOTIFY_SOCKET: No such file or directory: '/nonexistent/manager'"):
        system.notify("READY=1")


def test_without_a_service_manager_no_socket_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise AssertionError("a socket is made")

    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", refuse)
    system.notify("READY=1")


def test_the_soft_limit_of_files_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        system.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_there_when_a_daemon_begins_is_not_looked_at_for_garbage_again() -> None:
    program = """
import gc
from amqpmesh.router.cli.process import system
before = gc.get_threshold()
kept = [[] for _ in range(100)]
system.collect_garbage_less_often()
assert not any(each is kept[0] for each in gc.get_objects())
assert gc.get_threshold()[0] > before[0]
begun = []
begun.append(begun)
assert any(each is begun for each in gc.get_objects())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
