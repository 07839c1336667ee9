"""The page on management, compared with the entities and attributes that there are; `test_blocks` runs its program."""

import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import ListenerConfig, Reason, Router
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Open
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.users import add_user
from amqpmesh.router.logs.event_log import TextFormatter
from amqpmesh.router.logs.frame_trace import NAME
from amqpmesh.router.management.entities import TYPES
from tests.docs.pages import ROOT, blocks, log_lines, steady
from tests.support.peers.scripted_stream import AMQP, attached, begun, connected
from tests.support.processes.router_thread import Served

PAGE = "operate/management.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
ENTITIES = [
    (ROOT / "docs" / "operate" / name).read_text(encoding="utf-8")
    for name in ("entities.md", "client-entities.md", "mesh-entities.md")
]


def test_every_type_is_there_with_its_attributes_in_order_and_their_types() -> None:
    tables = [page.split("\n## Types and attributes\n")[1].split("\n## ")[0] for page in ENTITIES]
    sections = [section for table in tables for section in table.split("\n### ")[1:]]
    documented = {
        section.split("`")[1]: re.findall(r"^\| `(\w+)` \| (\w+) \| \S.* \|$", section, re.MULTILINE)
        for section in sections
    }
    assert documented == {
        name: [(attribute, primitive.value) for attribute, primitive in kind.attributes.items()]
        for name, kind in TYPES.items()
    }


def test_every_reason_is_explained() -> None:
    table = TEXT.split("\n## Why nothing moves on a link\n")[1].split("\n## ")[0]
    rows = re.findall(r"^- \*(.+?)\* \((?:senders|receivers|lanes|both)\): \S", table, re.MULTILINE)
    assert rows == [reason.value for reason in Reason]


async def test_the_lines_of_a_trace_are_such_as_a_router_writes(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, NAME)
    async with Router(id="A") as router:
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name="amqp", trace_frames=True)
        peer = connected(nursery, router, listener)
        await peer.write(AMQP, Open(container_id="shop"), begun())
        await peer.write(attached(Role.SENDER, "orders", name="orders-out"))
        assert await peer.expect_header() == AMQP
        for kind in (Open, Begin, Attach):
            await peer.expect(kind)
        await peer.close()
    written = {steady(TextFormatter().format(record)) for record in caplog.records if record.name == NAME}
    assert log_lines(PAGE) <= written


def test_the_commands_of_the_page_on_changes_change_a_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_users, of_tables = blocks("operate/changing.md", "sh")
    add_user(tmp_path / "users.toml", "eve", "secret", 4096)
    (tmp_path / "ada.password").write_text("correct horse\n")
    monkeypatch.chdir(tmp_path)
    own = ListenerConfig(url="amqp://127.0.0.1:0", name="amqp", manage=True)
    door = replace(own, name="door", sasl=("SCRAM-SHA-256",), users=tmp_path / "users.toml")
    served = Served(listeners=[own, door])
    try:
        monkeypatch.setenv("AMQPMESH_URL", served.url)
        assert [main(shlex.split(line)[1:]) for line in of_users.text.splitlines()] == [0] * 4
        statuses = [main(shlex.split(line)[1:]) for line in of_tables.text.splitlines()]
        assert statuses == [0, 0, 0, 0, 5], "no connection has that number"
        assert (served.router.config.drain, served.router.listeners[0].config.connections) == (10.0, 500)
    finally:
        served.end()
