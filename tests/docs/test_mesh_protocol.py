"""The page on the mesh protocol, compared with the declarations."""

import re

from amqpmesh.topology.linkstate import Settings
from amqpmesh.topology.messages import TYPES
from amqpmesh.topology.records import BODIES, Kind
from docs.mesh_protocol import PAGE, filled, tables

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_declarations() -> None:
    assert filled(TEXT) == TEXT, "python -m docs.mesh_protocol writes them"


def test_every_body_and_the_settings_have_their_table() -> None:
    assert sorted(re.findall(r"<!-- (\w+) -->", TEXT)) == sorted([*tables(), *["end"] * len(tables())])


def test_bodies_stand_under_their_numbers() -> None:
    headings = re.findall(r"^### (\d): (\w+)$", TEXT, flags=re.MULTILINE)
    assert headings == [
        *((str(number), form.__name__) for number, form in TYPES.items()),
        *((str(int(kind)), form.__name__) for kind, form in BODIES.items()),
    ]
    rows = re.findall(r"^\| (\d) \| ", TEXT, flags=re.MULTILINE)
    assert rows == [str(int(kind)) for kind in Kind]


def test_the_numbers_in_the_text_are_the_defaults() -> None:
    settings = Settings()
    for said in (
        f"every {settings.max_age / 3:.0f} s; forgotten at an age of {settings.max_age:.0f} s",
        f"kept for another {2 * settings.max_age:.0f} s",
        f"Changes gather for {settings.delta_time * 1000:.0f} ms",
        f"Records gather for\n{settings.flood_time * 1000:.0f} ms",
        f"double: from {settings.link_time * 1000:.0f} ms and {settings.path_time * 1000:.0f} ms up to",
        f"{settings.pace_time * 1000} ms for each router",
        f"by themselves after {settings.acknowledge_time * 1000:.0f} ms",
        f"At most {settings.window // 1024} KiB",
        f"longer than {settings.compact // 1024} KiB",
    ):
        assert said in TEXT
