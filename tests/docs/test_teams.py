"""The tutorial on two teams, with two routers as processes: each command shows what the page says."""

from __future__ import annotations

import re
import shutil
import socket
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.docs.pages import CONFIGURATIONS, Command, blocks, commands
from tests.docs.reader import Reader, plain
from tests.support.processes.programs import PATIENCE, Programs, programs

PAGE: Final = "start/tutorial-teams.md"
COMMANDS: Final = [command for block in blocks(PAGE, "console") for command in commands(block)]
PORTS: Final = ("5670", "5672", "5673")
LASTING: Final = re.compile(r"amqpmesh (run|receive)\b")
#: Columns of the tables of `status` whose widths and values differ from run to run.
_VARIES: Final = re.compile(r"\b[\d.]+ (B|KiB|s)\b|(?<=amqpmesh-receive-)\S+")


def free_ports() -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return [str(each.getsockname()[1]) for each in sockets]


class Teams:
    """The folder of the page, at free ports, and a reader there."""

    def __init__(self, folder: Path, start: Programs) -> None:
        reader = Reader(folder, start)
        self._environment = reader.environment
        self._start = start
        self._ports = dict(zip(PORTS, free_ports(), strict=True))
        self._folder = folder / "teams"
        shutil.copytree(CONFIGURATIONS / "teams", self._folder)
        for file in self._folder.glob("?.toml"):
            file.write_text(self._at(file.read_text(encoding="utf-8")), encoding="utf-8")

    def _at(self, text: str) -> str:
        return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: self._ports[port[0]], text)

    def _plain(self, line: str) -> str:
        return plain(_VARIES.sub("X", line))

    def does(self, command: Command) -> None:
        """Type a command, and compare what it prints. `...` stands for any lines."""
        environment = {**self._environment, "AMQPMESH_URL": self._at("amqp://127.0.0.1:5672")}
        line = self._at(command.line)
        line = line if line.startswith(".") else f"exec {line}"
        program = self._start("bash", "-euc", line, cwd=self._folder, env=environment)
        skips = False
        for shown in command.output:
            if shown == "...":
                skips = True
                continue
            while self._plain(said := program.line()) != self._plain(shown):
                assert skips, (command.line, said, shown)
            skips = False
        if LASTING.match(command.line) is None:
            rest = [said for said in program.lines() if said]
            assert skips or not rest, rest
            assert program.process.wait(PATIENCE) == status(command)


def status(command: Command) -> int:
    """Return the exit status that fits what a command has printed."""
    last = command.output[-1]
    refused = {"amqpmesh: timed out": 4, "amqpmesh: the link was detached": 3}
    return next((number for text, number in refused.items() if last.startswith(text)), 5 if ": no:" in last else 0)


def test_ten_commands_lead_to_isolation(tmp_path: Path) -> None:
    assert len(COMMANDS) == 10
    with programs() as start:
        teams = Teams(tmp_path, start)
        for command in COMMANDS:
            teams.does(command)


def test_the_page_shows_a_part_of_the_policy() -> None:
    (shown,) = blocks(PAGE, "toml")
    policy = tomllib.loads((CONFIGURATIONS / "teams" / "policy.toml").read_text(encoding="utf-8"))
    for table, rows in tomllib.loads(shown.text).items():
        assert all(row in policy[table] for row in rows)
