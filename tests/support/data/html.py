"""HTML as a strict reader sees it: elements, their contents, and whether all are closed."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Final

VOID: Final = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """The elements of a page. Args: text: the whole file."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        #: By element, all that is written directly in those of that name.
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, name: str) -> list[str]:
        """Return the values of an attribute, in any element."""
        return [each for _, attributes in self.elements for key, each in attributes.items() if key == name and each]


def whole(text: str) -> Page:
    """Assert what holds for any report: it is closed, needs no other file, and runs nothing."""
    read = Page(text)
    ids = read.values("id")
    assert len({*ids}) == len(ids)
    for link in read.values("href"):
        assert link.removeprefix("#") in ids
        assert link.startswith("#")
    for source in read.values("src"):
        kind, _, data = source.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG\r\n\x1a\n")
    assert all(each.get("alt") for each in read.all("img"))
    assert not {"script", "iframe", "object", "embed", "form", "base", "link"} & {tag for tag, _ in read.elements}
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert "style" not in {name for _, attributes in read.elements for name in attributes}
    style = read.texts["style"][0]
    assert not re.search(r"url\(|@import|//", style)
    (policy,) = (each["content"] for each in read.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    expected = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policy == expected
    return read
