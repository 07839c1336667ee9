"""A reader of the pages: saves files, types commands into terminals, and compares their output.

A `console` block is a terminal: commands after a dollar sign, and what each prints. A command that is shown again while
it has not ended is the same terminal, later. `...` stands for any lines, and `^C` for the key. A `python` block whose
first line is a comment with a name is that file.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT, Block, Command, commands, on_loopback, steady
from tests.support.processes.programs import ENVIRONMENT, Program, Programs

_ROUTER: Final = re.compile(r"make run|amqpmesh run\b.*")
_LASTING: Final = re.compile(r"amqpmesh receive (?!.*--count).*|python (receive|service|survivor)\.py")
"""Commands after which no new prompt comes, unless they are stopped; nor does it while one says that it waits."""

#: A URL of the page, for what the line that a router prints says about its own.
_URLS: Final = {"amqp": "amqp://127.0.0.1:5672", "amqps": "amqps://localhost"}

_VARIES: Final = (
    (re.compile(r" --url \S+"), ""),  # the page's router has the default port
    (re.compile(r"(?<=amqpmesh-)(send|receive|status)-\S+"), r"\1-ID"),
    (re.compile(r"\b[\d,.]+ (us|ms|s)\b"), "TIME"),
    (re.compile(r"\([\d,.]+/s\)"), "(RATE)"),
    (re.compile(r" +"), " "),
)

_AMQPMESH: Final = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from amqpmesh.router.cli.main import main
sys.exit(main())
"""


def plain(line: str) -> str:
    """Return a line of output without its variable parts."""
    line = steady(line)
    for pattern, word in _VARIES:
        line = pattern.sub(word, line)
    return line.rstrip()


class Terminal:
    """A command that was typed, and what it has said so far."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._said: list[str] = []
        self._may_say_more = False
        #: Ctrl-C was pressed.
        self.interrupted = False
        #: Its prompt is back.
        self.is_over = False

    def line(self, at: int) -> str:
        """Return a line of the output, counted from 0."""
        while len(self._said) <= at:
            self._said.append(self._program.line().rstrip("\r"))
        return self._said[at]

    def shows(self, output: list[str]) -> None:
        """Check that the program prints these lines, from its beginning."""
        at, skips = 0, False
        for shown in output:
            if shown == "...":
                skips = True
            elif shown == "^C":
                if not self.interrupted:
                    self._program.process.send_signal(signal.SIGINT)
                self.interrupted = True
            else:
                while plain(line := self.line(at)) != plain(shown):
                    assert skips, (self._program.name, line, shown)
                    at += 1
                at, skips = at + 1, False
        self._may_say_more = skips

    def end(self) -> None:
        """Wait until it has ended, with nothing more to say than was shown."""
        rest = [line for line in self._program.end() if line]
        assert self._may_say_more or not rest, (self._program.name, rest)
        self.is_over = True


class Reader:
    """Somebody who does what a page says, in a folder that looks like a checkout."""

    def __init__(self, folder: Path, start: Programs) -> None:
        self._folder = folder
        self._start = start
        self._terminals: dict[str, Terminal] = {}
        #: What the page's URLs are in truth.
        self._urls: dict[str, str] = {}
        scripts = folder / ".venv" / "bin"
        scripts.mkdir(parents=True)
        for name, text in (
            ("amqpmesh", _AMQPMESH),
            ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
            ("activate", f'PATH="{scripts}:$PATH"\n'),
        ):
            (scripts / name).write_text(text, encoding="utf-8")
            (scripts / name).chmod(0o755)
        on_loopback(folder / "examples" / "configurations")
        self.environment = {**ENVIRONMENT, "PATH": f"{scripts}:{os.environ['PATH']}"}

    def does(self, block: Block) -> None:
        """Do what a block says, and compare what it shows."""
        if block.language == "python":
            name = re.match(r"# (\w+\.py)\n", block.text)
            assert name, f"{block.heading}: a program has its name in its first line"
            (self._folder / name[1]).write_text(self._located(block.text), encoding="utf-8")
            return
        cwd = self._folder
        for command in commands(block):
            if command.line.startswith("cd "):
                cwd = self._folder / command.line.removeprefix("cd ")
            else:
                self._type(command, cwd)

    def _type(self, command: Command, cwd: Path) -> None:
        is_router = _ROUTER.fullmatch(command.line) is not None
        terminal = self._terminals.get(command.line)
        if terminal is None or terminal.is_over:
            terminal = self._terminals[command.line] = self._run(command.line, cwd)
            if is_router:
                self._meet(terminal.line(1))  # the first says which kernel runs
        terminal.shows(command.output)
        waits = command.output[-1:] and command.output[-1].startswith("waiting for credit")
        if terminal.interrupted or not (is_router or waits or _LASTING.fullmatch(command.line)):
            terminal.end()

    def _run(self, line: str, cwd: Path) -> Terminal:
        # What runs under its default is at a free port here, and at the same one again.
        listen = ("--listen", self._urls.get(_URLS["amqp"], "amqp://127.0.0.1:0"))
        if line == "make run":  # in a terminal that has not entered the virtual environment
            return Terminal(self._start(".venv/bin/amqpmesh", "run", *listen, cwd=cwd, terminal=True))
        if line == "amqpmesh run":
            return Terminal(self._start("amqpmesh", "run", *listen, cwd=cwd, env=self.environment))
        environment = {**self.environment, "AMQPMESH_URL": self._urls[_URLS["amqp"]]}
        script = self._located(line)
        if not script.startswith("."):
            script = f"exec {script}"  # a key that is pressed is for the command, not for the shell
        return Terminal(self._start("bash", "-euc", script, cwd=cwd, env=environment))

    def _meet(self, line: str) -> None:
        """Note the URL of a listener, from a line of a router's log."""
        found = re.search(r"url=(amqps?)://127\.0\.0\.1:(\d+)", line)
        assert found, line
        host = "localhost" if found[1] == "amqps" else "127.0.0.1"  # the name that the certificate has
        self._urls[_URLS[found[1]]] = f"{found[1]}://{host}:{found[2]}"

    def _located(self, text: str) -> str:
        for shown, true in self._urls.items():
            text = text.replace(shown, true)
        return text
