"""The frame trace: a line for each frame, with all but bodies and secrets."""

import logging
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.sasl.exchange import (
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Modified, Rejected
from amqpmesh.router.amqp.standard.messaging import DeleteOnNoLinks, Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
)
from amqpmesh.router.logs.event_log import TextFormatter, fields_of
from amqpmesh.router.logs.frame_trace import NAME, FrameTracer
from tests.support.peers.scripted import AMQP, SASL, TLS, frame


class Lines(logging.Handler):
    """The lines of the trace without their times."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._formatter = TextFormatter()

    def emit(self, record: logging.LogRecord) -> None:
        _time, level, line = self._formatter.format(record).split(" ", 2)
        assert level == "INFO"
        assert "peer" not in fields_of(record), "repeats would be suppressed"
        self.lines.append(line)

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def lines() -> Iterator[Lines]:
    yield from listening()


def listening() -> Iterator[Lines]:
    handler = Lines()
    log = logging.getLogger(NAME)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    log.propagate = before


def sasl(body: object) -> bytes:
    encoded = encode_composite(body)
    return (len(encoded) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + encoded


FRAMES: list[tuple[Performative, bytes, str]] = [
    (
        Open(container_id="a b", hostname="h", max_frame_size=512, properties={Symbol("product"): "x"}),
        b"",
        'frame=open container_id="a b" hostname=h max_frame_size=512 properties="{product: x}"',
    ),
    (
        Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=6, remote_channel=1),
        b"",
        "frame=begin remote_channel=1 next_outgoing_id=0 incoming_window=5 outgoing_window=6",
    ),
    (
        Attach(
            name="x",
            handle=0,
            role=Role.RECEIVER,
            source=Source(address="q", expiry_policy=TerminusExpiryPolicy.NEVER, outcomes=(Symbol("amqp:x"),)),
            target=Target(dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnNoLinks()}),
        ),
        b"",
        (
            "frame=attach name=x handle=0 role=receiver"
            ' source="source(address=q, expiry_policy=never, outcomes=[amqp:x])"'
            ' target="target(dynamic=true, dynamic_node_properties={lifetime-policy: delete-on-no-links()})"'
        ),
    ),
    (
        Flow(next_incoming_id=1, incoming_window=2, next_outgoing_id=3, outgoing_window=4, handle=0, drain=True),
        b"",
        "frame=flow next_incoming_id=1 incoming_window=2 next_outgoing_id=3 outgoing_window=4 handle=0 drain=true",
    ),
    (
        Transfer(handle=0, delivery_id=7, delivery_tag=b"\x00\x01", message_format=0, more=True),
        b"secret body",
        "frame=transfer handle=0 delivery_id=7 delivery_tag=0x0001 message_format=0 more=true payload=11",
    ),
    (
        Disposition(role=Role.SENDER, first=0, last=3, settled=True, state=Modified(delivery_failed=True)),
        b"",
        'frame=disposition role=sender first=0 last=3 settled=true state="modified(delivery_failed=true)"',
    ),
    (
        Disposition(
            role=Role.RECEIVER, first=0, state=Rejected(error=Error(condition=AmqpCondition.NOT_FOUND, info={}))
        ),
        b"",
        'frame=disposition role=receiver first=0 state="rejected(error=error(condition=amqp:not-found, info={}))"',
    ),
    (Detach(handle=1, closed=True), b"", "frame=detach handle=1 closed=true"),
    (End(), b"", "frame=end"),
    (
        Close(error=Error(condition=Symbol("a:b"), description="line\nbreak")),
        b"",
        'frame=close error="error(condition=a:b, description=line\\nbreak)"',
    ),
]


@pytest.mark.parametrize(("performative", "payload", "line"), FRAMES)
def test_a_frame_is_a_line_with_the_fields_that_are_set(
    lines: Lines, performative: Performative, payload: bytes, line: str
) -> None:
    tracer = FrameTracer(connection=3)
    tracer.received(AMQP)
    assert lines.take() == ["in connection=3 frame=header protocol=AMQP version=1.0.0"]
    tracer.received(frame(performative, payload, channel=9))
    assert lines.take() == [f"in connection=3 channel=9 {line}"]


def test_empty_frames_and_both_directions_are_traced(lines: Lines) -> None:
    tracer = FrameTracer()
    tracer.sent(AMQP + EMPTY_FRAME)
    tracer.received(AMQP + EMPTY_FRAME)
    assert lines.take() == [
        "out frame=header protocol=AMQP version=1.0.0",
        "out channel=0 frame=empty",
        "in frame=header protocol=AMQP version=1.0.0",
        "in channel=0 frame=empty",
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            SaslMechanisms(sasl_server_mechanisms=(Symbol("PLAIN"), Symbol("ANONYMOUS"))),
            'frame=sasl-mechanisms sasl_server_mechanisms="[PLAIN, ANONYMOUS]"',
        ),
        (
            SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0ada\0sesame", hostname="h"),
            'frame=sasl-init mechanism=PLAIN initial_response="11 octets" hostname=h',
        ),
        (SaslChallenge(challenge=b"sesame"), 'frame=sasl-challenge challenge="6 octets"'),
        (SaslResponse(response=b"sesame"), 'frame=sasl-response response="6 octets"'),
        (
            SaslOutcome(code=SaslCode.SYS_TEMP, additional_data=b"sesame"),
            'frame=sasl-outcome code=sys-temp additional_data="6 octets"',
        ),
    ],
)
def test_of_a_sasl_exchange_only_sizes_are_told(lines: Lines, value: object, line: str) -> None:
    tracer = FrameTracer()
    tracer.received(SASL + sasl(value))
    assert lines.take() == ["in frame=header protocol=SASL version=1.0.0", f"in {line}"]


def test_a_value_is_cut_at_256_characters(lines: Lines) -> None:
    FrameTracer().received(AMQP + frame(Open(container_id="x" * 1000)))
    assert lines.take()[-1] == f"in channel=0 frame=open container_id={'x' * 256}..."


def test_a_frame_with_very_many_values_is_traced_without_them(lines: Lines) -> None:
    properties = {Symbol("p"): [[]] * 5000}
    FrameTracer().received(AMQP + frame(Open(container_id="x", hostname="b.example", properties=properties)))
    assert lines.take()[-1] == 'in channel=0 frame=open container_id=x hostname=b.example values="more than 256"'
    unsettled = {b"%d" % number: None for number in range(5000)}
    FrameTracer().received(AMQP + frame(Attach(name="n", handle=0, role=Role.RECEIVER, unsettled=unsettled)))
    assert lines.take()[-1] == 'in channel=0 frame=attach name=n handle=0 role=receiver unsettled="5000 entries"'


def test_within_tls_it_begins_anew(lines: Lines) -> None:
    tracer = FrameTracer()
    tracer.received(TLS + b"\x16\x03\x01 a ClientHello, sent at once")
    tracer.sent(TLS)
    tracer.received(b"more of the handshake")
    tracer.secured()
    tracer.received(AMQP + frame(End()))
    tracer.sent(AMQP)
    assert lines.take() == [
        "in frame=header protocol=TLS version=1.0.0",
        "out frame=header protocol=TLS version=1.0.0",
        "in frame=header protocol=AMQP version=1.0.0",
        "in channel=0 frame=end",
        "out frame=header protocol=AMQP version=1.0.0",
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no protocol header"),
        (AMQP + b"\x00\x00\x00\x07\x02\x00\x00\x00", "frame of size 7"),
        (AMQP + AMQP, "data offset 0"),
        (AMQP + b"\x00\x00\x00\x08\x02\x05\x00\x00", "unknown type 5"),
        (AMQP + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45", "descriptor"),
        (SASL + b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x10\x45", "descriptor"),
    ],
)
def test_what_is_no_frame_ends_the_trace_of_its_direction(lines: Lines, data: bytes, reason: str) -> None:
    tracer = FrameTracer()
    tracer.received(data)
    tracer.received(AMQP + EMPTY_FRAME)
    *before, last = lines.take()
    assert len(before) == data.startswith(b"AMQP")
    assert last.startswith("in frame=malformed reason=")
    assert reason in last
    tracer.sent(AMQP)
    assert lines.take() == ["out frame=header protocol=AMQP version=1.0.0"]


@given(st.data())
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: st.DataObject) -> None:
    stream = b"".join(
        [
            SASL,
            sasl(SaslInit(mechanism=Symbol("ANONYMOUS"))),
            AMQP,
            *(frame(performative, payload) for performative, payload, _ in FRAMES),
            EMPTY_FRAME,
        ]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    def traced(parts: Iterable[bytes]) -> list[str]:
        for handler in listening():
            tracer = FrameTracer()
            for part in parts:
                tracer.received(part)
            return handler.take()
        raise AssertionError

    whole = traced([stream])
    assert len(whole) == 3 + len(FRAMES) + 1
    assert traced(pieces) == whole


@given(st.binary(max_size=200))
def test_whatever_comes_nothing_is_raised(data: bytes) -> None:
    for _handler in listening():
        for prefix in (b"", AMQP, SASL, TLS):
            FrameTracer().received(prefix + data)
