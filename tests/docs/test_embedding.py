"""The pages on embedding and messages: their code leaves nothing behind, and their tables equal the code's.

`test_blocks` runs their programs.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Coroutine
from contextlib import redirect_stdout
from decimal import Decimal
from io import StringIO
from types import CodeType, FunctionType
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

import amqpmesh
from amqpmesh import AmqpMeshError, Connection, Message, Router, connect
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.message import content as message_module
from tests.docs.pages import ROOT, Block, is_whole, pieces

PAGES = ("develop/embedding.md", "develop/messages.md")
TEXT = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
PUBLIC = {name: getattr(amqpmesh, name) for name in amqpmesh.__all__}


FRAGMENTS = [(block, shown) for page in PAGES for block, shown in pieces(page) if not is_whole(block.text)]


@pytest.mark.parametrize(("block", "shown"), FRAGMENTS, ids=[block.heading for block, _ in FRAGMENTS])
async def test_a_piece_prints_what_is_shown(
    block: Block, shown: str, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with Router() as router:

        async def open_stream(endpoint: object) -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(router.serve_stream, theirs)
            return ours

        output = StringIO()
        async with connect("amqp://router.example", open_stream=open_stream) as connection:
            with redirect_stdout(output), trio.fail_after(100):
                await execute(block.text, router, connection)
    assert output.getvalue() == shown
    assert router.statistics().is_empty


async def execute(text: str, router: Router, connection: Connection) -> None:
    """Run what stands inside an `async def`."""
    code: CodeType = compile(text, "a page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = FunctionType(code, {**PUBLIC, "trio": trio, "router": router, "connection": connection})()
    assert isinstance(done, Coroutine)
    await done


# -------------------------------------------------------------------------------------------------------------- tables


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    below = re.split(rf"^#+ {re.escape(heading)}$", TEXT, flags=re.MULTILINE)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_table_of_bodies_is_that_of_the_module() -> None:
    table = re.search(r"(?:^\|.*\n)+", inspect.getdoc(message_module) or "", re.MULTILINE)
    assert table
    assert table.group() in TEXT


#: The constructors of §1.6, by the name of the type.
CODES = {
    "null": (0x40,),
    "boolean": (0x41, 0x42, 0x56),
    "ubyte": (0x50,),
    "ushort": (0x60,),
    "uint": (0x43, 0x52, 0x70),
    "ulong": (0x44, 0x53, 0x80),
    "byte": (0x51,),
    "short": (0x61,),
    "int": (0x54, 0x71),
    "long": (0x55, 0x81),
    "float": (0x72,),
    "double": (0x82,),
    "decimal32": (0x74,),
    "decimal64": (0x84,),
    "decimal128": (0x94,),
    "char": (0x73,),
    "timestamp": (0x83,),
    "uuid": (0x98,),
    "binary": (0xA0, 0xB0),
    "string": (0xA1, 0xB1),
    "symbol": (0xA3, 0xB3),
    "list": (0x45, 0xC0, 0xD0),
    "map": (0xC1, 0xD1),
    "array": (0xE0, 0xF0),
    "described": (0x00,),
}


def test_the_table_of_types_has_every_type() -> None:
    assert [row[0] for row in rows("Types")] == list(CODES)


@pytest.mark.parametrize(("amqp", "python", "example"), rows("Types"), ids=[row[0] for row in rows("Types")])
async def test_a_value_comes_back_as_what_it_was(amqp: str, python: str, example: str) -> None:
    value = eval(example.strip("`"), {**PUBLIC, "UUID": UUID, "Decimal": Decimal})
    shown = "NoneType" if value is None else python.strip("`")
    assert type(value).__name__ == shown
    assert encode(value)[0] in CODES[amqp]

    async with Router() as router, router.receiver("q") as receiver, router.sender("q") as sender:
        await sender.transfer(Message([value]))
        async with await receiver.receive() as message:
            (back,) = message.body
    assert back == value
    assert type(back) is type(value)
    assert encode(back) == encode(value)


def test_the_table_of_errors_has_every_error_and_no_other() -> None:
    named = {name for row in rows("Errors") for name in re.findall(r"`(\w+Error)`", " ".join(row[1:]))}
    public = {name for name, value in PUBLIC.items() if isinstance(value, type) and issubclass(value, AmqpMeshError)}
    assert named == public - {"AmqpMeshError"} | {"OSError"}


def test_the_page_names_what_there_is() -> None:
    for name in re.findall(r"`(?:router|connection|requester|delivery|receiver)\.(\w+)", TEXT):
        owners = (Router, Connection, amqpmesh.Requester, amqpmesh.Delivery, amqpmesh.Receiver)
        assert any(hasattr(owner, name) for owner in owners) or f"self.{name}" in textwrap.dedent(
            "".join(inspect.getsource(owner) for owner in owners)
        ), name
