"""A router's audit log in memory, each line read as strictly as any reader of JSON may."""

from __future__ import annotations

import json
from typing import Any

from amqpmesh.router.audit.trail import SECOND, AuditTrail
from amqpmesh.router.core import Core

MOST = 2**15
"""Octets of a line that no peer's texts can exceed."""


class Audited:
    """The lines of one router, and room for as many octets as the test permits."""

    def __init__(self, core: Core, *, room: int = 2**30) -> None:
        self.room = room
        self.data = bytearray()
        context = core.context
        self.trail = context.audit = AuditTrail(
            self._take,
            lambda steps: context.schedule(context.now + SECOND, lambda: context.chores.put_off(steps())),
            context.wall_clock,
            router=context.id,
        )

    def _take(self, line: bytes) -> bool:
        if len(line) > self.room:
            return False
        self.room -= len(line)
        self.data += line
        return True

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the lines so far, or those of one event."""
        found = strictly_read(bytes(self.data))
        return [each for each in found if event in (None, each["event"])]


def strictly_read(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of lines, each of them whole, in ASCII, without half a surrogate pair or a key twice."""
    assert data.endswith(b"\n") or not data
    found = []
    for line in data.split(b"\n")[:-1]:
        assert len(line) <= MOST
        assert all(0x20 <= octet < 0x7F for octet in line)
        read = json.loads(line, object_pairs_hook=_once, parse_constant=_no_constant)
        assert isinstance(read, dict)
        json.dumps(read, ensure_ascii=False).encode()  # half a pair cannot be encoded
        found.append(read)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a key stands twice"
    return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
