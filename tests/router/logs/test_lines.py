"""Log lines: format, repeats, and limits."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.logs import event_log
from amqpmesh.router.logs.event_log import EventLog, LogFormat, RepeatFilter


class Written:
    """A configured log and what came out of it."""

    def __init__(self, format: LogFormat, level: str = "debug") -> None:
        self.stream = io.StringIO()
        self.handler = event_log.configure(level, format, self.stream)
        self.log = EventLog("amqpmesh.test")

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


class Kept(logging.Filter):
    """A filter that keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.records.append(record)
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger("amqpmesh")
    handlers, level, propagate = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    root.propagate = propagate


def test_a_line_is_time_level_event_and_fields() -> None:
    written = Written("text")
    written.log.info("listening", url="amqp://127.0.0.1:41234", name="amqp")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO listening url=amqp://127\.0\.0\.1:41234 name=amqp",
        written.lines[0],
    )


def test_json_has_the_same_and_keeps_numbers() -> None:
    written = Written("json")
    written.log.bind(connection=3).warning("sender waits", address="hello", reason="no receiver", open=True, none=None)
    line = json.loads(written.lines[0])
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING",
        "event": "sender waits",
        "connection": 3,
        "address": "hello",
        "reason": "no receiver",
        "open": True,
    }


def test_bound_fields_come_first_in_every_line_and_none_is_left_out() -> None:
    written = Written("text")
    log = written.log.bind(connection=1).bind(link=2, delivery=None)
    log.info("a", x=True)
    log.info("b", link=3)
    assert [line.split(" INFO ")[1] for line in written.lines] == [
        "a connection=1 link=2 x=true",
        "b connection=1 link=3",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain/with.dots", "plain/with.dots"),
        ("", '""'),
        ("no receiver anywhere", '"no receiver anywhere"'),
        ('a"b', '"a\\"b"'),
        ("a=b", '"a=b"'),
        ("line\nINFO forged", '"line\\nINFO forged"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("\u2028é", '"\\u2028\\u00e9"'),
        ("\x85", '"\\u0085"'),
        (b"\xff", "\"b'\\\\xff'\""),
        (1.5, "1.5"),
    ],
)
def test_what_is_not_plain_is_quoted_and_escaped(value: object, text: str) -> None:
    written = Written("text")
    written.log.info("event", value=value)
    assert written.lines[0].endswith(f" INFO event value={text}")


@given(st.text())
def test_whatever_a_peer_sends_stays_in_one_line_and_can_be_read_back(value: str) -> None:
    text = event_log.escaped(value)
    assert len(text.splitlines()) == 1
    assert text.isascii()
    shown = json.loads(text) if text.startswith('"') else text
    assert shown == (value if len(value) <= 256 else value[:256] + "...")


@pytest.mark.parametrize("format", ["text", "json"])
def test_values_are_cut_at_256_characters(format: LogFormat) -> None:
    written = Written(format)
    written.log.info("event", exact="x" * 256, long="y" * 257)
    assert "x" * 256 in written.lines[0]
    assert "x" * 256 + "..." not in written.lines[0]
    assert "y" * 256 + "..." in written.lines[0]


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_fault_of_ours_comes_with_its_traceback(format: LogFormat) -> None:
    written = Written(format)
    try:
        {}["missing"]
    except KeyError as error:
        written.log.error("a fault", exception=error, connection=1)
    output = written.stream.getvalue()
    assert "Traceback" in output
    assert "KeyError" in output
    if format == "json":
        assert json.loads(written.lines[0])["connection"] == 1


def test_below_the_level_nothing_is_written() -> None:
    written = Written("text", "warning")
    written.log.info("quiet")
    written.log.debug("quieter")
    written.log.warning("loud")
    written.log.error("louder")
    assert [line.split()[2] for line in written.lines] == ["loud", "louder"]


def test_repeats_of_a_peer_are_suppressed_for_ten_seconds_and_then_counted() -> None:
    now = 0.0
    written = Written("text")
    written.handler.filters[:] = [RepeatFilter(clock=lambda: now)]
    for n in range(413):
        written.log.warning("frame refused", peer="10.0.0.1:5", n=n)
    written.log.warning("frame refused", peer="10.0.0.2:5")
    written.log.warning("link refused", peer="10.0.0.1:5")
    now = 9.9
    written.log.warning("frame refused", peer="10.0.0.1:5")
    now = 10.0
    written.log.warning("frame refused", peer="10.0.0.1:5")
    now = 20.0
    written.log.warning("frame refused", peer="10.0.0.1:5")
    assert [line.split(" WARNING ")[1] for line in written.lines] == [
        "frame refused peer=10.0.0.1:5 n=0",
        "frame refused peer=10.0.0.2:5",
        "link refused peer=10.0.0.1:5",
        "frame refused peer=10.0.0.1:5 suppressed=413",
        "frame refused peer=10.0.0.1:5",
    ]


def test_a_repeat_is_counted_without_a_record_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(event_log, "RepeatFilter", lambda: RepeatFilter(clock=lambda: now))
    written, made = Written("text"), Kept()
    logger = logging.getLogger("amqpmesh.test")
    monkeypatch.setattr(logger, "filters", [made])
    for n in range(5):
        written.log.info("connection opened", peer="10.0.0.1", n=n)
    now = 10.0
    written.log.info("connection opened", peer="10.0.0.1", n=5)
    assert [line.split(" INFO ")[1] for line in written.lines] == [
        "connection opened peer=10.0.0.1 n=0",
        "connection opened peer=10.0.0.1 n=5 suppressed=4",
    ]
    assert len(made.records) == 2


@pytest.mark.parametrize("where", ["amqpmesh", "amqpmesh.test"])
def test_a_handler_of_the_program_gets_each_repeat(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written, handler, kept = Written("text"), logging.NullHandler(), Kept()
    logger = logging.getLogger(where)
    handler.addFilter(kept)
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
    monkeypatch.setattr(handler, "handle", handler.filter)
    for _ in range(3):
        written.log.info("connection opened", peer="10.0.0.1")
    assert (len(written.lines), len(kept.records)) == (1, 3)


def test_lines_without_a_peer_are_never_suppressed() -> None:
    written = Written("text")
    for _ in range(3):
        written.log.info("listening", url="amqp://127.0.0.1:1")
    assert len(written.lines) == 3


def test_what_a_neighbour_passes_on_and_is_not_taken_is_told_once_for_each_reason() -> None:
    now = 0.0
    written = Written("text")
    written.handler.filters[:] = [RepeatFilter(clock=lambda: now)]
    for n in range(50):
        for reason in ("untrusted", "malformed"):
            written.log.warning("advertisement dropped", origin=f"R{n}", router="M", reason=reason)
    written.log.warning("advertisement dropped", origin="R1", router="B", reason="malformed")
    now = 10.0
    written.log.warning("advertisement dropped", origin="Q", router="M", reason="malformed")
    assert [line.split(" WARNING ")[1] for line in written.lines] == [
        "advertisement dropped origin=R0 router=M reason=untrusted",
        "advertisement dropped origin=R0 router=M reason=malformed",
        "advertisement dropped origin=R1 router=B reason=malformed",
        "advertisement dropped origin=Q router=M reason=malformed suppressed=49",
    ]


def test_lines_of_connections_that_the_router_opened_are_never_suppressed() -> None:
    written = Written("text")
    for _ in range(3):
        written.log.info("connection opened", peer="10.0.0.1", connector="broker")
    assert len(written.lines) == 3


def test_the_memory_of_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_REMEMBERED", 2)
    written = Written("text")
    for peer in ("a", "b", "c", "a"):
        written.log.info("refused", peer=peer)
    assert len(written.lines) == 4  # "a" was forgotten for "c"


def test_no_more_is_remembered_of_a_name_than_is_written() -> None:
    written = Written("text")
    repeats = RepeatFilter()
    written.handler.filters[:] = [repeats]
    for last in "ab":
        written.log.warning("advertisement dropped", router="M" * 60_000 + last, reason="malformed")
    assert len(written.lines) == 1, "so they count as one"
    assert sum(len(text) for key in repeats._seen for text in key) < 400


def test_other_libraries_lines_are_written_in_the_same_form() -> None:
    written = Written("text")
    logging.getLogger("amqpmesh.other").warning("took %d ms", 5)
    assert written.lines[0].endswith(" WARNING took 5 ms")


def test_nothing_is_written_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    written = Written("text")
    written.log.error("only here")
    assert capsys.readouterr().err == ""
