"""Protocol headers and security layers, before the first AMQP frame (§2.2, part 5)."""

from collections.abc import Mapping
from itertools import repeat

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.frames import EMPTY_FRAME, SASL_FRAME
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslCode, SaslInit, SaslMechanisms, SaslOutcome, SaslServer
from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.performatives import Begin, Open
from amqpmesh.router.amqp.states import ConnectionState
from amqpmesh.router.kernel import FrameReader
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, SASL, TLS, begun, frame

SASL_FRAMES: Registry[SaslMechanisms | SaslOutcome] = Registry(SaslMechanisms, SaslOutcome)


class Users:
    """An authenticator that knows Ada."""

    iterations = (4096,)

    def verify_plain(self, user: str, password: str) -> bool:
        return (user, password) == ("ada", "lovelace")

    def scram_keys(self, user: str, mechanism: str) -> ScramKeys | None:
        return None


def sasl_server(*mechanisms: str) -> SaslServer:
    return SaslServer(mechanisms or ("PLAIN", "ANONYMOUS"), Users())


def server(**layers: object) -> Scripted:
    return Scripted(negotiation=Negotiation(server=True, **layers))  # type: ignore[arg-type]  # the names are the tests'


def sasl_frame(body: bytes, *, extended: bytes = b"") -> bytes:
    size = 8 + len(extended) + len(body)
    return size.to_bytes(4, "big") + bytes((2 + len(extended) // 4, SASL_FRAME, 0, 0)) + extended + body


ANONYMOUS = sasl_frame(encode_composite(SaslInit(mechanism=Symbol("ANONYMOUS"))))


def said(scripted: Scripted) -> bytes:
    return bytes(scripted.engine.data_to_send(scripted.now))


def sasl_said(data: bytes) -> list[SaslMechanisms | SaslOutcome]:
    reader = FrameReader(512)
    reader.feed(data)
    found = []
    while (frame := reader.next_frame()) is not None:
        assert frame.type == SASL_FRAME
        found.append(decode_composite(SASL_FRAMES, frame.body)[0])
    return found


# A server.


def test_a_server_waits_for_the_header_before_it_sends_its_own() -> None:
    scripted = server()
    assert said(scripted) == b""
    scripted.peer.write(AMQP)
    assert said(scripted) == AMQP
    assert scripted.engine.state is ConnectionState.HDR_EXCH
    assert not scripted.engine.finished


PASSWORDS_ONLY: Mapping[str, object] = {"sasl_required": True}


@pytest.mark.parametrize(
    ("header", "layers", "answer"),
    [
        pytest.param(b"AMQP\x00\x00\x09\x01", {}, AMQP, id="version 0.9.1"),
        pytest.param(b"AMQP\x00\x01\x00\x01", {}, AMQP, id="another revision"),
        pytest.param(b"AMQP\x00\x02\x00\x00", {}, AMQP, id="version 2"),
        pytest.param(b"AMQP\x01\x01\x00\x00", {}, AMQP, id="an unknown protocol id"),
        pytest.param(TLS, {}, AMQP, id="TLS that is not offered"),
        pytest.param(SASL, {}, AMQP, id="SASL that is not offered"),
        pytest.param(AMQP, PASSWORDS_ONLY, SASL, id="AMQP where SASL is demanded"),
        pytest.param(b"AMQP\x00\x00\x09\x01", PASSWORDS_ONLY, SASL, id="version 0.9.1 where SASL is demanded"),
        pytest.param(b"AMQP\x03\x01\x01\x00", PASSWORDS_ONLY, SASL, id="another version of SASL"),
        pytest.param(b"AMQP\x02\x01\x00\x01", {"tls": True}, AMQP, id="another version of TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", {}, AMQP, id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", {}, AMQP, id="TLS without header"),
    ],
)
def test_a_header_that_is_not_acceptable_gets_one_that_is_and_the_end(
    header: bytes, layers: Mapping[str, object], answer: bytes
) -> None:
    sasl = sasl_server() if layers.get("sasl_required") else None
    scripted = server(sasl=sasl, **layers)
    scripted.peer.write(header + b"whatever comes then")
    assert said(scripted) == answer
    assert scripted.engine.finished
    closed = scripted.end.take_one(events.ConnectionClosed)
    assert not closed.by_peer
    assert closed.error is not None
    assert "protocol header" in str(closed.error.description)
    scripted.peer.write(AMQP, Open(container_id="too late"))
    assert said(scripted) == b""
    assert scripted.end.events == []


def test_garbage_is_answered_at_its_first_wrong_octet() -> None:
    for octet in set(range(256)) - {ord("A")}:
        scripted = server()
        scripted.peer.write(bytes((octet,)))
        assert said(scripted) == AMQP
        assert scripted.engine.finished


def test_everything_up_to_begin_may_come_in_one_piece() -> None:
    scripted = server(sasl=sasl_server())
    scripted.peer.write(SASL + ANONYMOUS + AMQP, Open(container_id="hasty"), begun())
    assert scripted.end.take_one(events.ConnectionOpened).open.container_id == "hasty"
    scripted.end.take_one(events.SessionBegun)


def test_a_server_that_offers_sasl_and_does_not_demand_it_takes_either() -> None:
    for first in (AMQP, SASL):
        scripted = server(sasl=sasl_server())
        scripted.peer.write(first)
        assert said(scripted).startswith(first)
        assert not scripted.engine.finished


def test_tls_is_handed_over_with_what_came_behind_its_header() -> None:
    scripted = server(tls=True, sasl=sasl_server(), sasl_required=True)
    scripted.peer.write(TLS + b"client hello")
    assert said(scripted) == TLS
    assert scripted.end.take_one(events.TlsRequested).rest == b"client hello"
    scripted.peer.write(SASL)
    assert said(scripted) == b"", "nothing of this layer may come before the other is in place"
    assert scripted.end.events == []
    scripted.engine.secured()
    assert said(scripted) == b""
    scripted.peer.write(b"")
    assert said(scripted).startswith(SASL)


def test_there_is_one_tls_layer_and_not_on_top_of_sasl() -> None:
    twice = server(tls=True)
    twice.peer.write(TLS)
    twice.engine.secured()
    said(twice)
    twice.peer.write(TLS)
    assert said(twice) == AMQP
    assert twice.engine.finished

    late = server(tls=True, sasl=sasl_server())
    late.peer.write(SASL + ANONYMOUS)
    said(late)
    late.peer.write(TLS)
    assert said(late) == AMQP
    assert late.engine.finished


def test_an_authenticated_peer_goes_on_with_amqp_and_nothing_else() -> None:
    scripted = server(sasl=sasl_server(), sasl_required=True)
    scripted.peer.write(SASL + ANONYMOUS)
    assert said(scripted).startswith(SASL)
    scripted.peer.write(SASL)
    assert said(scripted) == AMQP
    assert scripted.engine.finished


def test_a_wrong_password_is_told_by_the_outcome_and_then_the_stream_ends() -> None:
    scripted = server(sasl=sasl_server("PLAIN"), sasl_required=True)
    wrong = sasl_frame(encode_composite(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0ada\0byron")))
    scripted.peer.write(SASL + wrong + AMQP, Open(container_id="sneaky"))
    data = said(scripted)
    assert data.startswith(SASL)
    outcome = sasl_said(data[8:])[-1]
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code is SaslCode.AUTH
    assert scripted.engine.finished
    (closed,) = scripted.end.events
    assert isinstance(closed, events.ConnectionClosed)
    assert closed.error is not None
    assert closed.error.description == scripted.engine.negotiation.refusal
    assert closed.error.description


@pytest.mark.parametrize(
    "illegal",
    [
        pytest.param(frame(Open(container_id="early")), id="an AMQP frame"),
        pytest.param(EMPTY_FRAME, id="an empty AMQP frame"),
        pytest.param(sasl_frame(b""), id="an empty SASL frame"),
        pytest.param(sasl_frame(b"\x00\x53\x41" + bytes(502)), id="a SASL frame of more than 512 octets"),
        pytest.param(sasl_frame(b"\x00\x53\x41", extended=bytes(504)), id="one that is so by its extended header"),
        pytest.param(sasl_frame(encode_composite(Open(container_id="x"))), id="an AMQP performative in a SASL frame"),
        pytest.param(sasl_frame(b"\xff" * 10), id="nothing that could be decoded"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00\x00\x00", id="no frame"),
    ],
)
def test_an_error_in_the_sasl_exchange_ends_the_stream_without_a_frame(illegal: bytes) -> None:
    # No error can be sent: `close` belongs to a layer that has not begun (§5.3.2).
    scripted = server(sasl=sasl_server(), sasl_required=True)
    scripted.peer.write(SASL)
    said(scripted)
    scripted.peer.write(illegal)
    assert said(scripted) == b""
    assert scripted.engine.finished
    assert [type(event) for event in scripted.end.events] == [events.ConnectionClosed]


def test_a_sasl_frame_of_512_octets_is_taken_and_its_extended_header_ignored() -> None:
    body = encode_composite(SaslInit(mechanism=Symbol("ANONYMOUS"), initial_response=bytes(300)))
    scripted = server(sasl=sasl_server())
    padding = bytes((512 - 8 - len(body)) // 4 * 4)
    scripted.peer.write(SASL + sasl_frame(body, extended=padding) + AMQP)
    assert said(scripted).endswith(AMQP)
    assert scripted.engine.state is ConnectionState.HDR_EXCH


def test_sasl_frames_have_no_channel_and_no_extended_header() -> None:
    scripted = server(sasl=sasl_server())
    scripted.peer.write(SASL + ANONYMOUS)
    data = said(scripted).removeprefix(SASL)
    while data:
        size = int.from_bytes(data[:4], "big")
        assert data[4:8] == b"\x02\x01\x00\x00"
        data = data[size:]


def test_frames_are_as_large_as_agreed_once_amqp_has_begun() -> None:
    scripted = Scripted(negotiation=Negotiation(server=True, sasl=sasl_server()), max_frame_size=4096)
    large = Open(container_id="x" * 3000)
    scripted.peer.write(SASL + ANONYMOUS + AMQP, large)
    assert scripted.end.take_one(events.ConnectionOpened).open == large


def test_a_peer_that_does_not_come_as_far_as_open_is_given_up() -> None:
    for start in (b"", b"AMQ", SASL):
        scripted = Scripted(
            negotiation=Negotiation(server=True, sasl=sasl_server()), open_time_out=10.0, idle_time_out=3.0
        )
        scripted.peer.write(start)
        assert scripted.engine.next_timer() == 110.0
        scripted.advance(9.9)
        assert not scripted.engine.finished
        scripted.advance(0.1)
        assert scripted.engine.finished
        assert scripted.end.take_one(events.ConnectionClosed).error is not None


# A client.


def test_a_client_speaks_first() -> None:
    scripted = Scripted(server=False)
    assert said(scripted) == AMQP
    assert scripted.engine.state is ConnectionState.HDR_SENT


@pytest.mark.parametrize("answer", [SASL, TLS, b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400", b"\x15"])
def test_a_client_that_is_offered_something_else_goes_away(answer: bytes) -> None:
    scripted = Scripted(server=False)
    said(scripted)
    scripted.peer.write(answer)
    assert said(scripted) == b""
    assert scripted.engine.finished
    assert scripted.end.take_one(events.ConnectionClosed).error is not None


def test_a_client_goes_through_tls_and_sasl_to_amqp_and_then_opens() -> None:
    negotiation = Negotiation(server=False, tls=True, sasl=SaslClient(["PLAIN"], "ada", "lovelace"))
    client = Scripted(server=False, negotiation=negotiation)
    client.engine.open()
    with pytest.raises(CommandError):
        client.engine.open()
    with pytest.raises(CommandError):
        client.engine.begin()
    assert said(client) == TLS
    client.peer.write(TLS)
    client.end.take_one(events.TlsRequested)
    client.engine.secured()
    assert said(client) == SASL

    served = server(sasl=sasl_server("PLAIN"), sasl_required=True)
    served.peer.write(SASL)
    while data := said(served):
        client.peer.write(data)
        served.peer.write(said(client))
    assert served.engine.user == client.engine.user == "ada"
    assert served.end.take_one(events.ConnectionOpened).open.container_id == "client"
    client.end.take_one(events.ConnectionOpened)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize(("user", "code"), [("ada", SaslCode.OK), ("eve", SaslCode.AUTH)])
def test_two_of_ours_negotiate_in_chunks_of_any_size(size: int, user: str, code: SaslCode) -> None:
    client = SaslClient(["PLAIN"], user, "lovelace")
    pair = Pair(
        client={"negotiation": Negotiation(server=False, sasl=client)},
        server={"negotiation": Negotiation(server=True, sasl=sasl_server("PLAIN"), sasl_required=True)},
        sizes=repeat(size),
    )
    pair.client.engine.open()
    pair.run()
    assert client.outcome is code
    if code is SaslCode.OK:
        assert pair.client.engine.state is pair.server.engine.state is ConnectionState.OPENED
        assert pair.server.engine.user == "ada"
    else:
        for end in (pair.client, pair.server):
            assert isinstance(end.take_one(events.ConnectionClosed).error, Error)
            assert end.engine.finished


def test_a_client_pipelines_open_and_begin_behind_its_header() -> None:
    pair = Pair()
    session = pair.open()
    begin = pair.server.take_one(events.SessionBegun).session.remote
    assert begin is not None
    assert begin.remote_channel is None, "it answers nothing"
    assert pair.client.take_one(events.SessionBegun).session is session


def test_a_client_pipelines_everything_up_to_close() -> None:
    client = Scripted(server=False)
    client.engine.open()
    session = client.engine.begin()
    session.end()
    client.engine.close()
    assert client.engine.state is ConnectionState.OC_PIPE
    client.peer.write(AMQP)
    assert client.engine.state is ConnectionState.CLOSE_PIPE
    client.peer.write(Open(container_id="server"))
    assert client.engine.state is ConnectionState.CLOSE_SENT
    client.peer.write(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert client.end.events == []
    served = Scripted()
    served.peer.write(said(client))
    assert [type(event).__name__ for event in served.end.events] == [
        "ConnectionOpened",
        "SessionBegun",
        "SessionEnded",
        "ConnectionClosed",
    ]
