import os
import re
import subprocess
import sys

import pytest

from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    ConfigError,
    ConnectionClosedError,
    InDoubtError,
    LinkRedirectError,
    SaslError,
    SessionEndedError,
)
from amqpmesh.router.cli.exits import Exit, RefusedError, StoppedError, TimedOutError, status_of
from amqpmesh.router.cli.main import main


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"amqpmesh \d+\.\d+\.\d+\n", capsys.readouterr().out)


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
    ("error", "status"),
    [
        (CommandError("x"), Exit.USAGE),
        (ConfigError("f", "k", "r"), Exit.USAGE),
        (SaslError("x"), Exit.UNREACHABLE),
        (ConnectionClosedError("x"), Exit.UNREACHABLE),
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
            [sys.executable, "-m", "amqpmesh", "completion", "bash"], stdout=output, stderr=subprocess.PIPE, timeout=30
        )
    assert (done.returncode, done.stderr) == (1, b"")
