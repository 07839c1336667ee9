"""The syntax of `qdrouterd.conf` and `skrouterd.conf`, and the form in JSON that both routers read, too.

    listener {
        host: 0.0.0.0      # a comment
        port: amqp
    }

A section is a name and its attributes, one in a line. An attribute can be a map of its own, as `groups` of a `vhost`,
with names and values in quotation marks or without. `router-id` stands for `routerId`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

MOST_OCTETS: Final = 4 * 2**20
"""The largest file that is read, in octets."""

MOST_MAPS: Final = 16
"""The deepest nesting of maps. The two routers know three: a section, `groups`, and one group."""

_SECTION = re.compile(r"([\w.-]+)\s*\{$")
_MAP = re.compile(r'"?([\w$.*@-]+)"?\s*:\s*\{$')
_ATTRIBUTE = re.compile(r'"?([\w$.*@-]+)"?\s*:\s*(.*)$')
_HASHES_BELONG = frozenset({"pattern", "bindingKey", "hostname", "sourcePattern", "targetPattern"})
"""Attributes whose values can have a `#`, which begins a comment elsewhere."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A line of a file: the number is from 1. `position` is that of the file among those that are read together."""

    position: int
    number: int
    file: str

    def __str__(self) -> str:
        """Return `FILE:NUMBER`."""
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: its value as text, or the attributes of a map."""

    name: str
    value: str | Mapping[str, Attribute]
    line: Line

    @property
    def text(self) -> str:
        """The value as text; that of a map is empty."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The attributes of a map; none of a text."""
        return {} if isinstance(self.value, str) else self.value


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the file. `kind` is its name, such as `listener`."""

    kind: str
    attributes: Mapping[str, Attribute]
    line: Line


def sections(text: str, file: str, position: int = 0) -> list[Section]:
    """Return the sections of a file. Args: file: its name. position: its place among the files, for `Line`.

    Raises: CommandError: with the line and what is wrong there.
    """
    written = [line for line in text.splitlines() if not line.strip().startswith("#")]
    if next((line for line in written if line.strip()), "").lstrip().startswith("["):
        return _from_json(text, file, position)
    return list(_Lines(text.splitlines(), file, position).sections())


class _Lines:
    """The lines of a file that say something, in their order."""

    def __init__(self, lines: Iterable[str], file: str, position: int) -> None:
        stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
        self._lines = iter(
            [(Line(position, number, file), line) for number, line in stripped if line and not line.startswith("#")]
        )

    def sections(self) -> Iterator[Section]:
        for number, line in self._lines:
            begins = _SECTION.match(_without_comment(line))
            if begins is None:
                raise _error(number, "expected the name of a section and a brace")
            yield Section(_camel(begins[1]), self._attributes(number, 1), number)

    def _attributes(self, opened: Line, depth: int) -> dict[str, Attribute]:
        """Return the attributes as far as the closing brace. Args: opened: the line of the opening one."""
        if depth > MOST_MAPS:
            raise _error(opened, f"more than {MOST_MAPS} maps within each other")
        found: dict[str, Attribute] = {}
        for number, line in self._lines:
            bare = _without_comment(line)
            if bare.rstrip(",") == "}":
                return found
            map_begins, given = _MAP.match(bare), _ATTRIBUTE.match(line)
            if map_begins is not None:
                name = _named(map_begins[1], depth)
                found[name] = Attribute(name, self._attributes(number, depth + 1), number)
            elif given is not None:
                name = _named(given[1], depth)
                found[name] = self._attribute(name, given[2], number)
            else:
                raise _error(number, "expected an attribute and its value, or a closing brace")
        raise _error(opened, "the brace is not closed")

    def _attribute(self, name: str, value: str, line: Line) -> Attribute:
        if value.startswith(("{", '"', "[")):
            try:
                decoded, _ = json.JSONDecoder().raw_decode(self._whole(value))
            except (ValueError, RecursionError):
                raise _error(line, "the value is not valid JSON") from None
            return _plain(name, decoded, lambda _: line)
        return Attribute(name, (_first_word(value) if name in _HASHES_BELONG else _without_comment(value)), line)

    def _whole(self, value: str) -> str:
        """Return a JSON value with the further lines that belong to it."""
        parts, is_open = [value], value.count("{") - value.count("}")
        while is_open > 0 and (following := next(self._lines, None)) is not None:
            parts.append(following[1])
            is_open += following[1].count("{") - following[1].count("}")
        return "\n".join(parts)


def _error(line: Line, reason: str) -> CommandError:
    return CommandError(f"{line}: {reason}")


def _without_comment(line: str) -> str:
    return line.split("#")[0].strip()


def _first_word(value: str) -> str:
    return value.split()[0].rstrip(",") if value.split() else ""


def _named(written: str, depth: int) -> str:
    """Return the name of an attribute. Args: depth: 1 in a section; 2 in its map, where names are of groups."""
    return written if depth == 2 else _camel(written)


def _camel(name: str) -> str:
    """Return a name with hyphens as the routers know it: `sasl-mechanisms` is `saslMechanisms`."""
    first, *rest = name.split("-")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _from_json(text: str, file: str, position: int) -> list[Section]:
    """Return the sections of a file in JSON: a list of pairs, each a name and a map."""
    plain = "\n".join("" if line.strip().startswith("#") else line for line in text.splitlines())
    try:
        decoded = json.loads(plain)
    except json.JSONDecodeError as error:
        raise CommandError(f"{file}:{error.lineno}: {error.msg}") from None
    except RecursionError:
        raise CommandError(f"{file}: lists and maps are nested too deep") from None
    lines = _JsonLines(plain, file, position)
    found = []
    for each in decoded:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], dict)):
            raise CommandError(f"{file}: each section must be a list of its name and a map")
        kind, given = each
        line = lines.after(kind, "")
        attributes = {key: _plain(key, value, lines.of_key) for key, value in given.items()}
        found.append(Section(_camel(kind), attributes, line))
    return found


class _JsonLines:
    """The lines of the keys of a JSON text, which are asked for in their order."""

    def __init__(self, text: str, file: str, position: int) -> None:
        self._text = text
        self._at = 0
        self._line = Line(position, 1, file)

    def of_key(self, key: str) -> Line:
        return self.after(key, r"\s*:")

    def after(self, word: str, follows: str) -> Line:
        """Return the line of the next such word in quotation marks; if it is written with escapes, of the last one."""
        found = re.compile(re.escape(json.dumps(word, ensure_ascii=False)) + follows).search(self._text, self._at)
        if found is not None:
            passed = self._text.count("\n", self._at, found.start())
            self._line = replace(self._line, number=self._line.number + passed)
            self._at = found.start() + 1
        return self._line


def _plain(name: str, value: object, line_of: Callable[[str], Line], depth: int = 0) -> Attribute:
    """Return a JSON value as an attribute: a list becomes a text with commas, as the routers write lists.

    Args: line_of: returns the line of a key. It is asked once for each, in the order of the text.
    """
    line = line_of(name)
    if isinstance(value, dict) and depth < MOST_MAPS:
        return Attribute(name, {key: _plain(key, each, line_of, depth + 1) for key, each in value.items()}, line)
    if isinstance(value, list):
        return Attribute(name, ",".join(map(_scalar, value)), line)
    return Attribute(name, _scalar(value), line)


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
