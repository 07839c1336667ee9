"""The screen of `amqpmesh demo`: the picture, and the lines above it."""

from __future__ import annotations

import io
import re

import pytest

from amqpmesh.router.cli.output.demo_screen import WIDTH, DemoScreen, MiddleRouter, View, picture

VIEW = View(MiddleRouter("B", "killed", 6_712), MiddleRouter("C", "", 13_288, 2_104.4), done=9_000, total=20_000)


class Terminal(io.StringIO):
    """A terminal, as far as anybody can see."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_the_picture_shows_both_ways_and_what_goes_by_each() -> None:
    lines = [text for text, _ in picture(VIEW)]
    assert lines[1] == "               ╭── B ──╮              6,712 relayed  killed"
    assert lines[2] == "   sender ─ A ─┤       ├─ D ─ E ─ receiver"
    assert lines[3] == "               ╰── C ──╯             13,288 relayed  2,104/s"
    assert re.fullmatch(r"   accepted:  45%\|█+.? +\| 9,000 of 20,000", lines[5])


@pytest.mark.parametrize("done", [0, 1, 10**12])
def test_the_picture_is_never_wider_than_it_may_be(done: int) -> None:
    ways = MiddleRouter("B", "starts", 10**9), MiddleRouter("C", "", 10**9, 10**6)
    assert max(len(text) for text, _ in picture(View(*ways, done, 10**12))) <= WIDTH


@pytest.mark.parametrize(
    ("way", "style"),
    [
        (MiddleRouter("B"), "faint"),
        (MiddleRouter("B", "", 5, 0.9), "faint"),
        (MiddleRouter("B", "", 5, 1.0), "good"),
        (MiddleRouter("B", "killed"), "bad"),
    ],
)
def test_a_way_is_drawn_as_it_stands(way: MiddleRouter, style: str) -> None:
    view = View(way, MiddleRouter("C"), 0, 1)
    assert dict(picture(view))[next(text for text, _ in picture(view) if " B " in text)] == style


def test_lines_stand_above_the_picture_which_moves(terminal: Terminal) -> None:
    stage = DemoScreen(terminal)
    stage.draw(VIEW)
    height = len(picture(VIEW))
    first = terminal.getvalue()
    assert first.count("\n") == height
    stage.say("something happens", "good")
    said = terminal.getvalue()[len(first) :]
    assert re.match(rf"\x1b\[{height}A\r\x1b\[J\x1b\[32m +0\.\d s  something happens\x1b\[0m\n", said)
    assert said.endswith(first)  # the picture again, below


def test_the_picture_stays_above_the_last_line(terminal: Terminal) -> None:
    stage = DemoScreen(terminal)
    stage.draw(VIEW)
    shown = terminal.getvalue()
    stage.conclude("all is well", good=True)
    assert terminal.getvalue() == f"{shown}\x1b[32mall is well\x1b[0m\n"


def test_the_picture_can_be_taken_away(terminal: Terminal) -> None:
    stage = DemoScreen(terminal)
    stage.draw(VIEW)
    shown = terminal.getvalue()
    stage.clear()
    assert terminal.getvalue() == f"{shown}\x1b[{len(picture(VIEW))}A\r\x1b[J"
    stage.clear()
    assert terminal.getvalue().count("\x1b[J") == 1


def test_no_colour_is_wanted_where_the_environment_says_so(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stage = DemoScreen(terminal)
    stage.draw(VIEW)
    stage.say("something happens", "good")
    assert "\x1b[3" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("variable", "value"), [("TERM", "dumb"), ("COLUMNS", str(WIDTH)), ("LINES", "8")], ids=["dumb", "narrow", "low"]
)
def test_a_terminal_that_has_no_room_for_it_has_lines_alone(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    stage = DemoScreen(terminal)
    stage.draw(VIEW)
    stage.say("something happens", "bad")
    stage.conclude("it was bad", good=False)
    assert re.fullmatch(r" +0\.\d s  something happens\nit was bad\n", terminal.getvalue())


def test_what_is_no_terminal_has_lines_alone() -> None:
    stream = io.StringIO()
    stage = DemoScreen(stream)
    stage.draw(VIEW)
    stage.say("something happens", "bad")
    stage.conclude("it was bad", good=False)
    assert re.fullmatch(r" +0\.\d s  something happens\nit was bad\n", stream.getvalue())
