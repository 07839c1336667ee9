"""The picture in the README: a recording of a run of today's command."""

import html
import re

from docs.capture import COMMAND, FILE, screen_of
from tests.docs.pages import ROOT
from tests.support.processes.demo_story import check


def shown() -> list[str]:
    """Return the lines of the picture, from top to bottom."""
    lines: dict[float, str] = {}
    for y, text in re.findall(
        r'<text class="[\w-]+" x="[\d.]+" y="([\d.]+)"[^>]*>(.*?)</text>', FILE.read_text("utf-8")
    ):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return [lines[y] for y in sorted(lines)]


def test_the_picture_is_of_a_run_in_which_nothing_was_lost() -> None:
    first, *rest = shown()
    assert first == f"$ {COMMAND}"
    check([line for line in rest if re.match(r" *\d+\.\d s  |sent ", line)])
    assert "   sender ─ A ─┤       ├─ D ─ E ─ receiver" in rest


def test_the_readme_begins_with_it() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index(f"]({FILE.relative_to(ROOT)})") < text.index("\n## ")


def test_it_fetches_nothing() -> None:
    assert re.findall(r"https?://[^\"]+", FILE.read_text("utf-8")) == ["http://www.w3.org/2000/svg"]


def test_what_was_drawn_over_is_not_on_the_screen() -> None:
    assert screen_of("one\r\ntwo\r\n") == ["one", "two"]
    assert screen_of("said\r\n\r\npicture\r\n\x1b[2A\r\x1b[Jsaid too\r\n\r\nanother\r\n") == [
        "said",
        "said too",
        "",
        "another",
    ]
