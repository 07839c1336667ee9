"""A neighbour of an older version: its messages, as a router of before recorded them, and what it can read of ours.

`older_neighbour.json` has the messages of a router B of revision c505af8e to its neighbour A, with their times: it
meets A, advertises two addresses, and drains. It also has the items of each body that this revision reads.
"""

from __future__ import annotations

import json
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.topology.changes import Dropped, NeighbourDown, NeighbourUp, Refused
from amqpmesh.topology.linkstate import Topology
from amqpmesh.topology.messages import TYPES
from amqpmesh.topology.records import AddressDelta, Addresses, LinkState
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Unsigned

RECORDED = json.loads((Path(__file__).parent / "older_neighbour.json").read_text(encoding="utf-8"))
MESSAGES = [(at, bytes.fromhex(data)) for at, data in RECORDED["messages"]]
DRAINED_AT = 2.0
FORMS = {form.TITLE: form for form in (*TYPES.values(), LinkState, Addresses, AddressDelta)}


class Meeting:
    """A router A of today, whose neighbour is the recorded one."""

    def __init__(self) -> None:
        self.a = Topology("A", Settings(), Unsigned(), Unsigned(), epoch=1000, now=0.0)
        self.changes: list[Any] = []
        self._take(self.a.connected("wire", 3, 0.0, expected="B"))

    def _take(self, step: Any) -> None:
        self.changes += step.changes

    def hear(self, *, until: float) -> None:
        """Take the messages up to a time."""
        for at, data in MESSAGES:
            if at < until:
                self._take(self.a.handle_timer(at))
                self._take(self.a.received("wire", data, at))
        self._take(self.a.handle_timer(min(until, MESSAGES[-1][0] + 0.5)))

    def told(self, kind: type) -> list[Any]:
        return [each for each in self.changes if isinstance(each, kind)]


def test_it_becomes_a_neighbour_and_its_addresses_are_known() -> None:
    meeting = Meeting()
    meeting.hear(until=DRAINED_AT)
    assert [each.router for each in meeting.told(NeighbourUp)] == ["B"]
    assert [meeting.told(kind) for kind in (NeighbourDown, Refused, Dropped)] == [[], [], []]
    assert meeting.a.distance("B") == 3
    assert {name: advert.consumers for name, advert in meeting.a.lookup("", "orders").items()} == {"B": 2}
    assert {name: str(advert.distribution) for name, advert in meeting.a.lookup("t", "news").items()} == {
        "B": "multicast"
    }


def test_its_drain_is_heard() -> None:
    meeting = Meeting()
    meeting.hear(until=float("inf"))
    assert meeting.told(Dropped) == []
    assert not meeting.a.graph.is_transit("B")
    assert (meeting.a.lookup("", "orders"), meeting.a.lookup("t", "news")) == ({}, {})


@pytest.mark.parametrize("title", sorted(RECORDED["forms"]))
def test_it_can_read_what_is_written_today(title: str) -> None:
    now = {item.key: item for item in FORMS[title].ITEMS}
    for key, (form, is_optional) in RECORDED["forms"][title].items():
        assert key in now or is_optional, "an item that it demands is always there"
        if key in now:
            assert now[key].form.describe() == form
            assert is_optional or now[key].default is MISSING
    # It ignores keys that it does not know; ours are there without them.
    assert all(item.default is not MISSING for key, item in now.items() if key not in RECORDED["forms"][title])
