"""The SASL exchange with proton's engine at the other end, in memory."""

import proton
import pytest

from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslCode, SaslServer
from tests.support.peers.sasl import ALL, Users


def proton_transport(mode: int, mechanisms: str) -> proton.Transport:
    transport = proton.Transport(mode)
    transport.sasl().allowed_mechs(mechanisms)
    transport.sasl().allow_insecure_mechs = True
    return transport


def bodies_of(transport: proton.Transport) -> list[bytes]:
    """Take the output of proton. Returns: the bodies of its SASL frames, without protocol headers."""
    data = b""
    while (pending := transport.pending()) > 0:
        data += transport.peek(pending) or b""
        transport.pop(pending)
    found = []
    while data:
        if data.startswith(b"AMQP"):
            data = data[8:]
            continue
        size = int.from_bytes(data[:4], "big")
        assert data[5] == 1
        found.append(data[8:size])
        data = data[size:]
    return found


def push(transport: proton.Transport, *said: bytes) -> None:
    for body in said:
        transport.push((len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body)


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
@pytest.mark.parametrize(("password", "code"), [("lovelace", SaslCode.OK), ("byron", SaslCode.AUTH)])
def test_a_proton_client_comes_in_with_the_right_password(mechanism: str, password: str, code: SaslCode) -> None:
    transport = proton_transport(proton.Transport.CLIENT, mechanism)
    connection = proton.Connection()
    connection.user, connection.password = "ada", password
    transport.bind(connection)
    assert bodies_of(transport) == []
    transport.push(b"AMQP\x03\x01\x00\x00")
    server = SaslServer(ALL, Users())
    push(transport, *server.start())
    (body,) = bodies_of(transport)
    push(transport, *server.receive(body))
    expected = SaslCode.OK if mechanism == "ANONYMOUS" else code
    assert server.outcome is expected
    assert server.mechanism == mechanism
    assert transport.sasl().outcome == expected
    assert server.user == ("ada" if mechanism == "PLAIN" and code is SaslCode.OK else None)


@pytest.mark.skipif(
    proton.SASL.extended(), reason="proton with Cyrus takes EXTERNAL over TLS only, where the interop tests have it"
)
@pytest.mark.parametrize("user", [None, "ada"])
def test_a_proton_client_comes_in_with_a_certificate(user: str | None) -> None:
    transport = proton_transport(proton.Transport.CLIENT, "EXTERNAL")
    connection = proton.Connection()
    if user is not None:
        connection.user = user
    transport.bind(connection)
    bodies_of(transport)
    transport.push(b"AMQP\x03\x01\x00\x00")
    server = SaslServer(ALL, Users(), external_user="ada")
    push(transport, *server.start())
    (body,) = bodies_of(transport)
    push(transport, *server.receive(body))
    assert server.user == "ada"
    assert transport.sasl().outcome == proton.SASL.OK


def test_a_proton_client_without_a_certificate_is_not_led_into_external() -> None:
    transport = proton.Transport(proton.Transport.CLIENT)
    transport.sasl()  # proton chooses its favourite of the offered mechanisms
    transport.bind(proton.Connection())
    bodies_of(transport)
    transport.push(b"AMQP\x03\x01\x00\x00")
    server = SaslServer(ALL, Users())
    push(transport, *server.start())
    (body,) = bodies_of(transport)
    push(transport, *server.receive(body))
    assert server.mechanism == "ANONYMOUS"
    assert transport.sasl().outcome == proton.SASL.OK


def test_our_client_comes_into_a_proton_server() -> None:
    transport = proton_transport(proton.Transport.SERVER, "ANONYMOUS")
    transport.bind(proton.Connection())
    transport.push(b"AMQP\x03\x01\x00\x00")
    client = SaslClient(ALL)
    client.start()
    (offer,) = bodies_of(transport)
    push(transport, *client.receive(offer))
    (end,) = bodies_of(transport)
    client.receive(end)
    assert client.succeeded
    assert transport.sasl().outcome == proton.SASL.OK
