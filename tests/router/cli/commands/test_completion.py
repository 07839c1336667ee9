"""`amqpmesh completion`: the scripts, tried in the installed shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes.router_thread import Command

TRY = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p amqpmesh | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, command: Command) -> Path:
    file = tmp_path / "amqpmesh.bash"
    file.write_text(command("completion", "bash").out)
    return file


def completed(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", TRY, "bash", str(script), *words], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["s"], ["send", "set", "status"]),
        (["send", "--co"], ["--count"]),
        (["receive", "hello", "--outcome", "re"], ["reject", "release"]),
        (["user", ""], ["add", "list", "remove", "disable", "enable", "groups"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["check", "--p"], ["--print"]),
    ],
)
def test_bash_completes_commands_options_and_choices(script: Path, words: list[str], offered: list[str]) -> None:
    assert completed(script, "amqpmesh", *words) == offered


@pytest.mark.parametrize("words", [["check"], ["run"], ["send", "--password-file"], ["user", "add", "--file"]])
def test_bash_completes_files_where_files_are_wanted(script: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "some.toml").touch()
    assert completed(script, "amqpmesh", *words, str(tmp_path / "so")) == [str(tmp_path / "some.toml")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_that_shell(shell: str, command: Command) -> None:
    said = command("completion", shell)
    assert (said.status, said.err) == (0, "")
    assert "receive" in said.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", "/dev/stdin"], input=said.out, text=True, check=True, timeout=120)


def test_another_shell_ends_with_2(command: Command) -> None:
    assert command("completion", "cmd").status == 2
