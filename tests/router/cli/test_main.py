"""The command line as a whole: arguments, exit statuses, interrupts."""

import os
import re
import signal
import subprocess
import sys

import pytest

from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConfigError,
    ConnectionClosedError,
    ConnectionRedirectError,
    InDoubtError,
    LinkRedirectError,
    SaslError,
    SessionEndedError,
)
from amqpmesh.router.cli.exit_status import Exit, RefusedError, StoppedError, TimedOutError, status_of
from amqpmesh.router.cli.main import main


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"amqpmesh \d+\.\d+\.\d+ \(kernel: (compiled|pure Python)\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments", [[], ["walk"], ["check"], ["user"], ["user", "add"], ["--vers"], ["send"], ["status", "--js"]]
)
def test_arguments_that_make_no_sense_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "usage: amqpmesh" in output.err


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "amqpmesh", "check", "/nowhere.toml"], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "amqpmesh: /nowhere.toml: file: No such file or directory\n"


@pytest.mark.parametrize(
    "command", [[], ["run"], ["check"], ["send"], ["receive"], ["status"], ["user", "add"], ["completion"]]
)
def test_help_is_on_standard_output(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.startswith(" ".join(["usage: amqpmesh", *command]))


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["send", "hello", "--bdoy", "hi"], "usage: amqpmesh send "),
        (["user", "add", "alice", "--fiel", "f"], "usage: amqpmesh user add "),
        (["check", "a.toml", "b.toml"], "usage: amqpmesh check "),
        (["--bdoy", "run"], "usage: amqpmesh "),
    ],
)
def test_an_unknown_argument_is_told_by_the_usage_of_its_command(
    command: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith(usage)
    assert output.err.splitlines()[-1].startswith(f"{usage.removeprefix('usage: ').strip()}: error: unrecognized")


def test_an_unknown_argument_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "a.toml", "\x1b]0;title\x07\u202e"])
    assert capsys.readouterr().err.endswith(r"\u001b]0;title\u0007\u202e" + "\n")


def test_help_is_there_before_the_library_is_read() -> None:
    check = (
        "import sys; from amqpmesh.router.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('trio', 'ssl', 'cryptography', 'scramp', 'networkx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("module", ["amqpmesh.router.cli.registry", "amqpmesh.router.cli.commands.send", "trio"])
def test_ctrl_c_while_modules_are_read_ends_it_at_once_and_quietly(module: str) -> None:
    """Some of them would hide it, or wrap it: it ends the process all the same."""
    interrupted = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                raise RuntimeError("it was hidden")

sys.meta_path.insert(0, Interrupting())
from amqpmesh.router.cli.main import main
sys.exit(main(["send", "hello", "--body", "hi", "--url", "amqp://127.0.0.1:1"]))
"""
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_that_is_ignored_stays_so_while_modules_are_read() -> None:
    """As under `nohup`, and for commands in the background of a script."""
    check = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
seen = []

class Looking:
    def find_spec(self, name, path=None, target=None):
        if name == "amqpmesh.router.cli.commands.check":
            seen.append(signal.getsignal(signal.SIGINT))

sys.meta_path.insert(0, Looking())
from amqpmesh.router.cli.main import main
main(["check", "/nowhere.toml"])
assert seen == [signal.SIG_IGN], seen
"""
    subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=120, check=True)


def test_ctrl_c_before_a_command_takes_the_signals_ends_it_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("amqpmesh.router.cli.configuration.load", interrupted)
    assert main(["check", "a.toml"]) == Exit.FAILED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommandError("x"), Exit.USAGE),
        (ConfigError("f", "k", "r"), Exit.USAGE),
        (SaslError("x"), Exit.UNREACHABLE),
        (ConnectionClosedError("x"), Exit.UNREACHABLE),
        (ConnectionRedirectError("x"), Exit.UNREACHABLE),
        (SessionEndedError("x"), Exit.UNREACHABLE),
        (LinkRedirectError("x"), Exit.UNREACHABLE),
        (InDoubtError("x"), Exit.UNREACHABLE),
        (RefusedError("x"), Exit.UNREACHABLE),
        (TimedOutError("x"), Exit.TIMED_OUT),
        (StoppedError("x"), Exit.FAILED),
        (AmqpMeshError("x"), Exit.FAILED),
    ],
)
def test_each_error_has_its_exit_status(error: AmqpMeshError, status: Exit) -> None:
    assert status_of(error) is status


def test_a_reader_that_has_enough_is_no_error_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "amqpmesh", "completion", "bash"], stdout=output, stderr=subprocess.PIPE, timeout=120
        )
    assert (done.returncode, done.stderr) == (1, b"")
