"""The page about the library: every piece of it runs and prints what is shown, and its tables are so."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Coroutine
from contextlib import redirect_stdout
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

import amqpmesh
from amqpmesh import AmqpMeshError, Connection, Message, Router, connect
from amqpmesh.router import message as message_module
from amqpmesh.router.amqp.codec import encode
from tests.docs.pages import ROOT, Block, blocks, steady
from tests.support.programs import ENVIRONMENT, PATIENCE

PAGE = "embedding.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
PUBLIC = {name: getattr(amqpmesh, name) for name in amqpmesh.__all__}


def pieces() -> list[tuple[Block, str]]:
    """Each piece of Python, and what it prints: the text below it."""
    row = [*blocks(PAGE, "python", "text"), Block("", "", "")]
    return [(a, b.text if b.language == "text" else "") for a, b in pairwise(row) if a.language == "python"]


def is_program(text: str) -> bool:
    return "trio.run(" in text or "asyncio.run(" in text


def is_test(text: str) -> bool:
    return "async def test_" in text


FRAGMENTS = [each for each in pieces() if not is_program(each[0].text) and not is_test(each[0].text)]
PROGRAMS = [each for each in pieces() if is_program(each[0].text)]


def test_every_block_is_run() -> None:
    assert TEXT.count("\n```") == 2 * len(blocks(PAGE, "python", "text"))
    assert len(FRAGMENTS) >= 7
    assert len(PROGRAMS) >= 2


def same(printed: str, shown: str) -> bool:
    """Whether it is what the page shows, but for names that are made up anew each time."""
    return re.sub(r"link=\S+", "link=ID", steady(printed)) == re.sub(r"link=\S+", "link=ID", steady(shown))


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
    code: CodeType = compile(text, PAGE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = FunctionType(code, {**PUBLIC, "trio": trio, "router": router, "connection": connection})()
    assert isinstance(done, Coroutine)
    await done


@pytest.mark.parametrize(("block", "shown"), PROGRAMS, ids=[block.heading for block, _ in PROGRAMS])
def test_a_program_prints_what_is_shown(block: Block, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert same(done.stdout, shown)


def test_the_test_passes(tmp_path: Path) -> None:
    ((text, _),) = [(block.text, shown) for block, shown in pieces() if is_test(block.text)]
    (tmp_path / "test_patience.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


# -------------------------------------------------------------------------------------------------------------- tables


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
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
