"""The files of the page: whole, small, without markup from texts, and served so that nothing else can run in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amqpmesh.router.config.http import HttpConfig
from amqpmesh.router.http.connection import HttpConnection
from amqpmesh.router.http.page_files import KINDS, page_answer, page_files
from amqpmesh.router.http.requests import HttpError, Request

FOLDER = Path(__file__).parents[3] / "router" / "http" / "page"
FILES = {each.name: each.read_text(encoding="utf-8") for each in FOLDER.iterdir()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}


def test_every_file_is_served_as_what_it_is() -> None:
    assert {path.rpartition("/")[2] or "index.html" for path in page_files()} == set(FILES)
    for path, file in page_files().items():
        found = page_answer(Request("GET", path, {}, {}))
        assert found is not None
        assert (found.status, found.body, found.kind) == (
            200,
            file.body,
            KINDS[(path or "").rpartition(".")[2]] if path != "/" else KINDS["html"],
        )
    for path in ("/page/", "/page/../page.css", "/page/page.CSS", "/page", "//"):
        assert page_answer(Request("GET", path, {}, {})) is None


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    tag = page_files()["/page/page.js"].tag
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        found = page_answer(Request("GET", "/page/page.js", {}, {"if-none-match": known}))
        assert found is not None
        assert (found.status, found.body) == (304, b"")
        connection = HttpConnection(HttpConfig())
        connection.receive(b"GET /page/page.js HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.next_request() is not None
        head = connection.head(found).lower() + connection.part(found.body) + connection.end()
        assert b"content-length" not in head
        assert connection.begin_next()
    other = page_answer(Request("GET", "/page/page.js", {}, {"if-none-match": '"other"'}))
    assert other is not None
    assert other.status == 200
    with pytest.raises(HttpError):
        page_answer(Request("DELETE", "/", {}, {}))


def test_the_page_may_run_its_own_scripts_only() -> None:
    found = page_answer(Request("GET", "/", {}, {}))
    assert found is not None
    connection = HttpConnection(HttpConfig())
    connection.receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_request()
    head = connection.head(found).decode().lower().split("\r\n")
    (policy,) = [each for each in head if each.startswith("content-security-policy:")]
    for rule in (
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ):
        assert rule in policy
    assert "unsafe" not in policy
    assert head.count("x-content-type-options: nosniff") == head.count("referrer-policy: no-referrer") == 1
    assert [each for each in head if each.startswith("cache-control:")] == ["cache-control: no-cache"]


def test_no_script_makes_markup_of_a_text() -> None:
    for name, text in SCRIPTS.items():
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|javascript:", text
        )
        assert found is None, f"{name}: {found}"
        assert not re.search(r"(local|session)Storage|indexedDB|document\.cookie", text), name
    page = FILES["index.html"]
    assert re.findall(r"<script([^>]*)>(.*?)</script>", page) == [(' type="module" src="/page/page.js"', "")]
    assert not re.search(r"<style|\son\w+=|\sstyle=", page)


def test_nothing_is_loaded_from_elsewhere() -> None:
    for name, text in FILES.items():
        others = set(re.findall(r"https?://[^\"'\s)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not others, name
    for name, text in SCRIPTS.items():
        for imported in re.findall(r'^import .*from "([^"]+)"', text, re.MULTILINE):
            assert imported.startswith("./"), name
            assert imported[2:] in SCRIPTS, name
    for loaded in re.findall(r'(?:src|href)="(/page/[^"]+)"', FILES["index.html"]):
        assert loaded in page_files()


def test_each_file_is_short() -> None:
    for name, text in FILES.items():
        assert text.count("\n") <= 500, name
    assert sum(map(len, FILES.values())) < 120_000


def colours(text: str) -> dict[str, tuple[float, float, float]]:
    """Return the colours that a part of the style sheet names, each as red, green and blue from 0 to 1."""
    named = re.findall(r"--([a-z-]+): #([0-9a-f]{6});", text)
    return {name: tuple(int(value[at : at + 2], 16) / 255 for at in (0, 2, 4)) for name, value in named}  # type: ignore[misc]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """Return the contrast of two colours (WCAG 2.2, 1.4.3)."""

    def luminance(colour: tuple[float, float, float]) -> float:
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_all_text_can_be_read_in_the_light_and_in_the_dark() -> None:
    style = FILES["page.css"]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    dark, _, rest = dark.partition("\n}\n")
    assert not re.search(r": [^;]*#[0-9a-f]{3}", rest), "a colour without a name is the same in the dark"
    bright = colours(light)
    assert colours(dark).keys() == bright.keys(), "what is not said again is as in the light"
    for found in (bright, colours(dark)):
        for front, *backs in (
            ("text", "back", "plane", "faint"),
            ("soft", "back", "plane"),
            ("accent", "back", "plane"),
            ("on-accent", "accent"),
            ("bad", "back", "plane", "bad-back"),
            ("warn", "back", "plane"),
        ):
            for back in backs:
                assert contrast(found[front], found[back]) >= 4.5, (front, back)
