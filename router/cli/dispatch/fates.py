"""An account of a configuration's lines: what became of each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from amqpmesh.router.cli.dispatch.conf_syntax import Attribute

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.conf_syntax import Line, Section


class Fate(StrEnum):
    """The fate of a line of the old file."""

    KEPT = "kept"
    """It says the same here."""
    CHANGED = "changed"
    """It was written, and means something a little different here, or more is to be done."""
    NEEDLESS = "not needed"
    """This router does without it."""
    MISSING = "missing"
    """There is nothing like it here, so nothing was written."""

    @property
    def needs_a_look(self) -> bool:
        """True if somebody has to look at it before the new configuration is used."""
        return self in (Fate.CHANGED, Fate.MISSING)


@dataclass(frozen=True, slots=True)
class LineFate:
    """The fate of one line. `key` is that of the old file, such as `listener.port`; `line` is its line there."""

    line: Line
    key: str
    fate: Fate
    words: str


@dataclass(slots=True)
class Account:
    """The account of a whole file."""

    fates: list[LineFate] = field(default_factory=list)

    def say(self, line: Line, key: str, fate: Fate, words: str) -> None:
        """Say what became of a line."""
        self.fates.append(LineFate(line, key, fate, words))

    def of_section(self, section: Section, fate: Fate, words: str) -> None:
        """Say what became of the line that begins a section."""
        self.say(section.line, section.kind, fate, words)

    def all_of(self, section: Section, fate: Fate, words: str) -> None:
        """Say that the same became of a section and of each of its attributes."""
        self.all_in(section.kind, Attribute(section.kind, section.attributes, section.line), fate, words)

    def all_in(self, key: str, given: Attribute, fate: Fate, words: str) -> None:
        """Say that the same became of a map and of each of its attributes. Args: key: of the map."""
        self.say(given.line, key, fate, words)
        for name, each in given.attributes.items():
            self.all_in(f"{key}.{name}", each, fate, words)

    def in_order(self) -> list[LineFate]:
        """Return the fates by line."""
        return sorted(self.fates, key=lambda fate: fate.line)


class Reading:
    """The attributes of a section, or of a map in one, while they are translated.

    Each attribute that is asked for by `text` and the like has to be answered by one of `kept`, `changed`, `needless`
    or `missing`. `close` answers the rest: nobody here knows them.
    """

    def __init__(self, account: Account, where: str, attributes: dict[str, Attribute]) -> None:
        """Args: where: the first words of the keys, such as `listener`."""
        self._account = account
        self._where = where
        self._attributes = attributes
        self._answered: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._attributes

    def text(self, name: str, default: str = "") -> str:
        """Return a value, or the default if it is absent or empty."""
        given = self._attributes.get(name)
        return (given.text if given is not None else "") or default

    def is_true(self, name: str, *, default: bool = False) -> bool:
        """Tell whether a value is true: the two routers take `yes`, `true`, `on` and `1`."""
        return self.text(name, "yes" if default else "no").lower() in ("yes", "true", "on", "1")

    def number(self, name: str) -> int | None:
        """Return a value as a number, or None if it is absent, or none: then `close` says so."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    def words(self, name: str) -> list[str]:
        """Return the words of a list that is separated by commas or spaces."""
        return self.text(name).replace(",", " ").split()

    def maps(self, name: str) -> dict[str, Attribute]:
        """Return the maps in an attribute, by their names."""
        given = self._attributes.get(name)
        return {} if given is None else dict(given.attributes)

    def kept(self, name: str, words: str) -> None:
        """Say that an attribute means the same here. Without such an attribute, nothing is said; so below."""
        self._say(name, Fate.KEPT, words)

    def changed(self, name: str, words: str) -> None:
        """Say that an attribute means something else here."""
        self._say(name, Fate.CHANGED, words)

    def needless(self, name: str, words: str) -> None:
        """Say that an attribute is not needed here."""
        self._say(name, Fate.NEEDLESS, words)

    def missing(self, name: str, words: str) -> None:
        """Say that there is nothing like an attribute here."""
        self._say(name, Fate.MISSING, words)

    def close(self) -> None:
        """Say of all further attributes that nothing is known of them."""
        for name in self._attributes:
            if name not in self._answered:
                self._say(name, Fate.MISSING, "this attribute, or this value of it, is not known here")

    def _say(self, name: str, fate: Fate, words: str) -> None:
        given = self._attributes.get(name)
        if given is not None and name not in self._answered:
            self._answered.add(name)
            self._account.say(given.line, f"{self._where}.{name}", fate, words)
