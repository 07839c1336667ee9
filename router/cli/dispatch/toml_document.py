"""A TOML document with comments that say where its tables come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqpmesh.router.cli.output.terminal import printable
from amqpmesh.router.config.tables import toml

if TYPE_CHECKING:
    from collections.abc import Iterator

Value = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]


@dataclass(slots=True)
class TomlTable:
    """A table: `heading` is `router` or, for one of several, `[listener]`; `comment` stands above it."""

    heading: str
    comment: str = ""
    keys: dict[str, Value] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        if self.comment:
            yield f"# {printable(self.comment)}"
        yield f"[{self.heading}]"
        for key, value in self.keys.items():
            yield f"{key} = {toml(value)}"


@dataclass(slots=True)
class TomlDocument:
    """A document. `first` are lines of comment at its beginning."""

    first: Sequence[str] = ()
    tables: list[TomlTable] = field(default_factory=list)

    def table(self, heading: str, comment: str = "") -> TomlTable:
        """Return the table with a heading, which is made if there is none."""
        found = next((each for each in self.tables if each.heading == heading), None)
        return found or self.add(heading, comment)

    def add(self, heading: str, comment: str = "") -> TomlTable:
        """Return a new table."""
        made = TomlTable(heading, comment)
        self.tables.append(made)
        return made

    def order(self, *headings: str) -> None:
        """Put the tables in the order of their headings. Those of one heading stay as they are."""
        self.tables.sort(key=lambda table: headings.index(table.heading))

    def text(self) -> str:
        """Return the document. Tables without a key are in it, too: a table can say something by being there."""
        parts = ["\n".join(f"# {line}" for line in self.first)] if self.first else []
        return "\n\n".join([*parts, *("\n".join(table.lines()) for table in self.tables)]) + "\n"
