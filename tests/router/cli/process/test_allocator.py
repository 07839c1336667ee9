"""The allocator of a daemon: the C library's by default, which returns free memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from amqpmesh.router.cli.main import main
from amqpmesh.router.cli.process import system
from tests.support.processes.daemon import PATIENCE, Daemon

ORDER = ("run", "--listen", "amqp://127.0.0.1:0")
#: As a process that Python has started with these arguments.
ARGUMENTS = ["python", "-X", "utf8", "-m", "amqpmesh", *ORDER]


ROOT = Path(__file__).parents[4]
#: Called by another name, an interpreter finds what is installed beside it by this.
HOME = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}


class Begun(BaseException):
    """In place of what would be there in our place, and never return."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[str], Mapping[str, str]]]:
    found: list[tuple[str, Sequence[str], Mapping[str, str]]] = []

    def begin(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        found.append((path, arguments, environment))
        raise Begun

    monkeypatch.delenv(system.ALLOCATOR, raising=False)
    monkeypatch.setattr(sys, "argv", ["amqpmesh", *ORDER])
    monkeypatch.setattr(sys, "orig_argv", ARGUMENTS)
    monkeypatch.setattr(os, "confstr", {"CS_GNU_LIBC_VERSION": "glibc 2.36"}.get)
    monkeypatch.setattr(os, "execve", begin)
    return found


def test_a_daemon_begins_anew_as_it_was_begun(begun: list[tuple[str, Sequence[str], Mapping[str, str]]]) -> None:
    with pytest.raises(Begun):
        main()
    assert begun == [("/proc/self/exe", ARGUMENTS, os.environ | {"PYTHONMALLOC": "malloc"})]


@pytest.mark.parametrize("said", ["malloc", "pymalloc", "debug"])
def test_the_environment_goes_before(
    said: str, begun: list[tuple[str, Sequence[str], Mapping[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONMALLOC", said)
    system.use_c_allocator()
    assert not begun


def test_where_the_c_library_keeps_what_is_free_there_is_nothing_to_gain(
    begun: list[tuple[str, Sequence[str], Mapping[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ValueError, OSError):

        def unknown(name: str, error: type[Exception] = error) -> str:
            raise error(name)

        monkeypatch.setattr(os, "confstr", unknown)
        system.use_c_allocator()
    monkeypatch.setattr(os, "confstr", {"CS_GNU_LIBC_VERSION": None}.get)
    system.use_c_allocator()
    assert not begun


def test_where_it_cannot_begin_anew_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(path: str, *_: object) -> None:
        tried.append(path)
        raise PermissionError(path)

    monkeypatch.delenv(system.ALLOCATOR, raising=False)
    monkeypatch.setattr(os, "confstr", {"CS_GNU_LIBC_VERSION": "glibc 2.36"}.get)
    monkeypatch.setattr(os, "execve", refused)
    system.use_c_allocator()
    assert tried == ["/proc/self/exe"]


def test_other_commands_and_other_programs_do_not_begin_anew(
    begun: list[tuple[str, Sequence[str], Mapping[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    monkeypatch.setattr(sys, "argv", ["amqpmesh", "status", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert not begun
    assert capsys.readouterr().out.count("usage: ") == 2


@pytest.mark.skipif(not system._trims(), reason="the C library is not GNU's")
@pytest.mark.parametrize(
    ("environment", "is_there"), [({}, b"malloc"), ({"PYTHONMALLOC": "pymalloc"}, b"pymalloc")], ids=["default", "said"]
)
def test_the_process_is_the_one_that_was_started(
    environment: dict[str, str], is_there: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    with ExitStack() as stack:
        router = Daemon(*ORDER[1:], cwd=tmp_path, **environment)
        stack.callback(router.close)
        router.port()
        assert Path(f"/proc/{router.process.pid}/comm").read_text() == "amqpmesh\n"
        variables = Path(f"/proc/{router.process.pid}/environ").read_bytes().split(b"\0")
        assert [each for each in variables if each.startswith(b"PYTHONMALLOC=")] == [b"PYTHONMALLOC=" + is_there]
        router.send(signal.SIGTERM)
        assert router.ended() == 0


@pytest.mark.skipif(not system._trims(), reason="the C library is not GNU's")
def test_it_is_the_same_program_whatever_that_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager may name it as it likes, and a program of that name may lie in the path."""
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    other = tmp_path / "amqpmesh"
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    done = subprocess.run(
        ["amqpmesh", "-m", "amqpmesh", "run", "--id", "A", str(tmp_path / "none.toml")],
        executable=sys.executable,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **HOME},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "none.toml" in done.stderr


def test_what_was_read_from_standard_input_is_not_read_again(
    begun: list[tuple[str, Sequence[str], Mapping[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-", *ORDER])
    system.use_c_allocator()
    assert not begun
