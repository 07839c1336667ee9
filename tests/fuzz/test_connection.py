"""Random and mutated frames of intruders at a router that has other clients.

The router sends only frames that a peer can read, its other clients are not disturbed, and at the end nothing is left.
`connections/` holds histories that have found bugs, or nearly did; all are replayed. A long run:
`AMQPMESH_FUZZ=20000 pytest tests/fuzz/test_connection.py`.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.link import Receiver, Terminus
from amqpmesh.router.amqp.sasl.exchange import SaslInit
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target
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
from amqpmesh.router.amqp.standard.transactions import Coordinator
from tests.fuzz.histories import History
from tests.fuzz.players import Player, tampered
from tests.support.data.encodings import mutated
from tests.support.peers.engine_pair import Scripted
from tests.support.peers.scripted import AMQP, SASL, attached, begun, flow, frame
from tests.support.worlds.network import OUTCOMES, message

CORPUS = sorted((Path(__file__).parent / "connections").iterdir())
EXAMPLES = int(os.environ.get("AMQPMESH_FUZZ", "0"))

LIMITS = st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1])
FEW = st.integers(0, 4)
NUMBERS = FEW | FEW | FEW | LIMITS
CHANNELS = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 8])
HANDLES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8])
ADDRESSES = st.sampled_from(["a", "feed", "own", "own", "news@elsewhere", "$management", "x" * 600, None])
NAMES = st.sampled_from(["one", "two", "three", "four", "n" * 600])
ERRORS = st.none() | st.builds(Error, condition=st.just(Symbol("x:y")), description=st.none() | st.just("why" * 300))
STATES = st.one_of(
    st.none(),
    st.just(Accepted()),
    st.just(Released()),
    st.builds(Rejected, error=ERRORS),
    st.builds(
        Modified,
        delivery_failed=st.none() | st.booleans(),
        undeliverable_here=st.none() | st.booleans(),
        message_annotations=st.none() | st.just({Symbol("x-opt-a"): "b" * 700}),
    ),
    st.builds(Received, section_number=NUMBERS, section_offset=NUMBERS),
    st.just(TransactionalState(txn_id=b"t")),
)
PAYLOADS = st.one_of(
    st.sampled_from(
        [b"", message(), message(to="own"), message(to="nowhere"), message(ttl=1), message(body="b" * 900)]
    ),
    st.binary(max_size=20),
    mutated(message(ttl=5, to="own")),
)
SOURCES = st.none() | st.builds(
    Source,
    address=ADDRESSES,
    dynamic=st.sampled_from([False, False, True]),
    distribution_mode=st.sampled_from([None, DistributionMode.MOVE, DistributionMode.COPY]),
    default_outcome=st.sampled_from([None, Accepted(), Released()]),
)
TARGETS = st.one_of(
    st.builds(Target, address=ADDRESSES, dynamic=st.sampled_from([False, False, True])),
    st.builds(Target, address=ADDRESSES),
    st.sampled_from([None, Coordinator()]),
)

OPENS = st.builds(
    Open,
    container_id=st.sampled_from(["intruder", "producer"]),
    hostname=st.sampled_from([None, "host"]),
    max_frame_size=st.sampled_from([511, 512, 512, 600, 4096, 2**32 - 1]),
    channel_max=st.sampled_from([0, 1, 7, 65_535]),
    idle_time_out=st.sampled_from([None, 0, 1, 200, 5000]),
)
BEGINS = st.builds(
    Begin,
    remote_channel=st.sampled_from([None, None, None, 0]),
    next_outgoing_id=NUMBERS,
    incoming_window=NUMBERS,
    outgoing_window=NUMBERS,
    handle_max=st.sampled_from([0, 1, 7, 2**32 - 1]),
)
ATTACHES = st.builds(
    Attach,
    name=NAMES,
    handle=HANDLES,
    role=st.sampled_from(Role),
    snd_settle_mode=st.sampled_from(SenderSettleMode),
    rcv_settle_mode=st.sampled_from(ReceiverSettleMode),
    source=SOURCES,
    target=TARGETS,
    unsettled=st.sampled_from([None, {}, {b"t": None}]),
    initial_delivery_count=st.sampled_from([None, 0, 0, 2**32 - 1]),
    max_message_size=st.sampled_from([None, 0, 10]),
)
FLOWS = st.builds(
    Flow,
    next_incoming_id=st.none() | NUMBERS,
    incoming_window=NUMBERS | st.just(2**31 - 1),
    next_outgoing_id=NUMBERS,
    outgoing_window=NUMBERS,
    handle=st.none() | HANDLES,
    delivery_count=st.none() | NUMBERS,
    link_credit=st.none() | NUMBERS,
    available=st.none() | NUMBERS,
    drain=st.booleans(),
    echo=st.booleans(),
)
TRANSFERS = st.builds(
    Transfer,
    handle=HANDLES,
    delivery_id=st.none() | st.integers(0, 30),
    delivery_tag=st.none() | st.sampled_from([bytes((each,)) for each in range(30)]),
    message_format=st.sampled_from([None, 0, 0, 0, 1]),
    settled=st.none() | st.booleans(),
    more=st.booleans(),
    rcv_settle_mode=st.sampled_from([None, None, ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND]),
    state=st.none() | STATES,
    resume=st.sampled_from([False, False, False, True]),
    aborted=st.sampled_from([False, False, False, True]),
)
DISPOSITIONS = st.builds(
    Disposition,
    role=st.sampled_from(Role),
    first=NUMBERS,
    last=st.none() | NUMBERS,
    settled=st.booleans(),
    state=STATES,
)
DETACHES = st.builds(Detach, handle=HANDLES, closed=st.booleans(), error=ERRORS)
ENDS = st.builds(End, error=ERRORS)
CLOSES = st.builds(Close, error=ERRORS)


def framed(performatives: st.SearchStrategy[Performative]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda performative, payload, channel: frame(
            performative, payload if isinstance(performative, Transfer) else b"", channel=channel
        ),
        performatives,
        PAYLOADS,
        CHANNELS,
    )


#: Any frame; those that carry traffic are the most frequent, those that end an endpoint the rarest.
FRAMES = framed(
    st.one_of(
        *[TRANSFERS] * 5, *[DISPOSITIONS] * 4, *[FLOWS] * 3, *[ATTACHES] * 3, *[DETACHES] * 2, *[BEGINS] * 2,
        ENDS, CLOSES, OPENS,
    )
)  # fmt: skip
ILLEGAL = st.one_of(
    FRAMES.flatmap(mutated),
    st.binary(max_size=40),
    st.sampled_from(
        [EMPTY_FRAME, AMQP, SASL, frame(encode_composite(SaslInit(mechanism=Symbol("ANONYMOUS"))), type=1)]
    ),
)

#: Links of every kind, and the flows that a peer needs to use them.
LINKS: list[bytes] = [
    frame(attached(Role.SENDER, "a", handle=0)),
    frame(attached(Role.RECEIVER, "feed", handle=1)) + frame(flow(handle=1, delivery_count=0, link_credit=5)),
    frame(attached(Role.RECEIVER, "own", handle=2, rcv_settle_mode=ReceiverSettleMode.SECOND))
    + frame(flow(handle=2, delivery_count=0, link_credit=5)),
    frame(attached(Role.SENDER, "own", handle=3, rcv_settle_mode=ReceiverSettleMode.SECOND)),
    frame(attached(Role.SENDER, handle=4, name="any", target=Target())),
    frame(attached(Role.RECEIVER, handle=5, name="dynamic", source=Source(dynamic=True)))
    + frame(flow(handle=5, delivery_count=0, link_credit=2**32 - 1)),
    frame(
        attached(
            Role.RECEIVER, handle=6, name="see", source=Source(address="own", distribution_mode=DistributionMode.COPY)
        )
    )
    + frame(flow(handle=6, delivery_count=0, link_credit=1)),
]


@st.composite
def intrusions(draw: st.DrawFn) -> list[bytes]:
    """Draw the octets of an intruder, in pieces: often a legal beginning, then frames that may fit together."""
    pieces: list[bytes] = []
    number = 0
    if draw(st.integers(0, 9)):
        pieces += [AMQP, frame(draw(OPENS))]
        if draw(st.integers(0, 9)):
            start = Open(container_id="intruder", max_frame_size=draw(st.sampled_from([512, 4096])))
            pieces[-1] = frame(start) + frame(draw(st.just(begun()) | BEGINS)) + frame(begun(), channel=1)
            pieces += draw(st.lists(st.sampled_from(LINKS), unique=True, max_size=7))
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.integers(0, 9))
        if kind < 4:
            # A legal delivery, on a link that may exist.
            handle = draw(st.sampled_from([0, 3, 4, 0, 3, 4, 2]))
            settled = draw(st.sampled_from([None, True]))
            first = Transfer(
                handle=handle, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, settled=settled
            )
            number += 1
            if draw(st.booleans()):
                pieces.append(frame(first, draw(PAYLOADS)))
            else:
                more = Transfer(**{name: getattr(first, name) for name in first.__slots__ if name != "more"}, more=True)
                pieces.append(frame(more, draw(PAYLOADS)))
                if draw(st.integers(0, 4)):
                    last = Transfer(handle=handle, aborted=draw(st.sampled_from([False, False, True])))
                    pieces.append(frame(last, draw(PAYLOADS)))
        elif kind < 9:
            pieces.append(draw(FRAMES))
        else:
            pieces.append(draw(ILLEGAL))
    return pieces


OTHERS = [
    *["exchange", "feed", "feed", "stop", "go", "go", "grant 0", "grant 1", "grant 5"],
    *[f"settle {name}" for name in OUTCOMES],
    *["advance 0.1", "advance 1.5", "advance 20"],
]


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """Draw a history of one or two intruders, with actions of the bystanders in between."""
    pieces = {str(who): draw(intrusions()) for who in range(draw(st.integers(1, 2)))}
    lines = []
    while pieces:
        who = draw(st.sampled_from(sorted(pieces)))
        data = pieces[who].pop(0) if pieces[who] else b""
        if draw(st.integers(0, 9)) == 0 and len(data) > 1:
            cut = draw(st.integers(1, len(data) - 1))
            pieces[who].insert(0, data[cut:])
            data = data[:cut]
        if data:
            lines.append(f"{who} {data.hex()}")
        if not pieces[who]:
            del pieces[who]
            if draw(st.booleans()):
                lines.append(f"{who} gone")
        lines += draw(st.lists(st.sampled_from(OTHERS), max_size=2))
    return lines


def check(history: History, lines: Iterable[str]) -> None:
    try:
        for line in lines:
            history.do(line)
        history.end()
    except BaseException:
        note("\n".join(history.lines))
        raise


def played(history: History, random: Random) -> Iterator[str]:
    """Generate a history of two players, whose frames are altered, and of the bystanders."""
    players = {str(who): Player(random, history.now) for who in range(2)}
    for _ in range(random.randrange(5, 60)):
        who, player = random.choice(sorted(players.items()))
        for _ in range(random.randrange(1, 4)):
            player.step()
        data = tampered(random, player.frames(history.now))
        if data:
            yield f"{who} {data.hex()}"
        for name, each in players.items():
            if name in history.intruders:
                said = history.intruders[name].said
                each.receive(bytes(said), history.now)
                said.clear()
        if random.random() < 0.6:
            yield random.choice(OTHERS)
        if random.random() < 0.02:
            yield f"{who} gone"


@settings(max_examples=EXAMPLES or 120, derandomize=not EXAMPLES)
@given(histories())
def test_whatever_intruders_send_the_others_go_on_and_nothing_is_left(lines: list[str]) -> None:
    check(History(), lines)


@settings(max_examples=EXAMPLES or 120, derandomize=not EXAMPLES)
@given(st.booleans(), intrusions())
def test_an_engine_of_either_role_raises_nothing_whatever_comes(server: bool, pieces: list[bytes]) -> None:
    scripted = Scripted(server=server)
    if not server:
        # A client with links and credit under way; the server answers its begin.
        scripted.engine.open()
        session = scripted.engine.begin()
        for role in Role:
            link = session.attach(Terminus("one", role))
            if isinstance(link, Receiver):
                link.flow(5)
        pieces = [*pieces[:1], frame(Open(container_id="server")), frame(begun(0)), *pieces[1:]]
    for piece in pieces:
        scripted.peer.write(piece)
        scripted.advance(0.1)
        scripted.engine.data_to_send(scripted.now)
    scripted.engine.receive_eof()
    closed = scripted.end.take(events.ConnectionClosed)
    assert len(closed) <= 1, "the end is told once"


@settings(max_examples=EXAMPLES or 60, derandomize=not EXAMPLES)
@given(st.randoms(use_true_random=False))
def test_whatever_becomes_of_frames_on_their_way_the_others_go_on_and_nothing_is_left(random: Random) -> None:
    history = History()
    check(history, played(history, random))


@pytest.mark.parametrize(
    "path",
    [pytest.param(each, id=each.name) for each in CORPUS],
)
def test_what_once_was_worth_keeping_is_replayed(path: Path) -> None:
    check(History(), path.read_text().splitlines())
