"""Hot frames: complete for peers that write complete frames, without trailing nulls for others."""

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.hot_frames import names_all_fields
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Flow, Open
from tests.support.worlds.network import Network, message

FULL = encode_composite(Open(container_id="azure"), full=True)
SHORT = encode_composite(Open(container_id="proton"))
OURS = encode_composite(Open(container_id="B", properties={Symbol("product"): "amqpmesh"}), full=True)


@pytest.mark.parametrize(("body", "full"), [(FULL, True), (SHORT, False)])
@pytest.mark.parametrize("wide", [False, True])
def test_an_open_that_names_all_fields_is_known(body: bytes, full: bool, wide: bool) -> None:
    if wide:
        count = body[5]
        body = body[:3] + b"\xd0" + (len(body) - 2).to_bytes(4, "big") + count.to_bytes(4, "big") + body[6:]
    assert names_all_fields(body) is full


@pytest.mark.parametrize(("body", "fields"), [(FULL, 11), (SHORT, 4), (OURS, 4)])
def test_transfers_to_a_peer_are_as_full_as_its_open(body: bytes, fields: int) -> None:
    network = Network()
    producer = network.client()
    core = network.core
    record = core.accept(network.listener, "127.0.0.1", network.now, secured=False)
    attach = Attach(
        name="r", handle=0, role=Role.RECEIVER, source=Source(address="q"), target=Target(), initial_delivery_count=None
    )
    flow = Flow(
        next_incoming_id=0,
        incoming_window=10,
        next_outgoing_id=0,
        outgoing_window=10,
        handle=0,
        delivery_count=0,
        link_credit=1,
    )
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    frames = [body, *(encode_composite(each) for each in (begin, attach, flow))]
    data = b"".join((len(each) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + each for each in frames)
    core.receive(record, b"AMQP\x00\x01\x00\x00" + data, network.now)
    core.data_to_send(record, network.now)
    producer.send(producer.sender("q"), message(), settled=False)
    transfer = core.data_to_send(record, network.now)
    assert transfer[8:12] == b"\x00\x53\x14\xc0"
    assert transfer[13] == fields
    core.receive_eof(record, network.now)
    network.leave()
