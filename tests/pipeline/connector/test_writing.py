"""Writing, called as Spark calls it in a task, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from amqpmesh import Data, Delivery, Message, Timestamp, UInt
from amqpmesh.pipeline.connector.columns import arrow_schema
from amqpmesh.pipeline.connector.datasource import AmqpDataSource
from amqpmesh.pipeline.connector.offers import CARRIED
from amqpmesh.pipeline.connector.options import BodyFormat, Options, Use
from amqpmesh.pipeline.connector.rows import Shape, batch
from amqpmesh.pipeline.connector.sending import RowError
from amqpmesh.pipeline.connector.writer import AmqpBatchWriter
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from tests.support.processes.router_thread import Served


def table(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def write(served: Served, *batches: pa.RecordBatch, **options: str) -> Any:
    """Write the rows, and return their outcomes."""
    given = {"url": served.url, "address": "q", "body": "string", "retryPause": "0.05", **options}
    return AmqpBatchWriter(Options(given, Use.WRITE)).write(iter(batches)).tally


def numbers(count: int) -> pa.RecordBatch:
    return table(body=[str(number) for number in range(count)])


def test_a_task_ends_when_each_row_is_accepted_and_each_has_a_key(served: Served) -> None:
    came = served.receive("q")
    tally = write(served, numbers(250), numbers(250), inFlight="20")
    assert (tally.accepted, tally.dead, tally.repeated) == (500, 0, 0)
    assert [message.body for message in came] == [str(number) for number in range(250)] * 2
    keys = [message.application_properties["spark-delivery-key"].split("/") for message in came]
    assert len({key[0] for key in keys}) == 1
    assert [key[1:] for key in keys] == [["0", "0", str(number)] for number in range(500)]


def test_an_attempt_that_is_made_again_gives_rows_the_same_keys(served: Served) -> None:
    came = served.receive("q")
    writer = AmqpBatchWriter(Options({"url": served.url, "address": "q", "body": "string"}, Use.WRITE))
    for _ in range(2):
        writer.write(iter([numbers(3)]))
    keys = [message.application_properties["spark-delivery-key"] for message in came]
    assert keys[:3] == keys[3:]


def test_without_a_key_nothing_is_added(served: Served) -> None:
    came = served.receive("q")
    write(served, numbers(1), deliveryKey="")
    assert came[0].application_properties == {}


@pytest.mark.parametrize("decline", [Delivery.release, lambda delivery: delivery.modify(delivery_failed=True)])
def test_what_is_released_or_modified_is_sent_again(decline: Callable[[Delivery], Any], served: Served) -> None:
    met: set[Any] = set()

    def decide(delivery: Delivery) -> None:
        if delivery.message.body in met:
            delivery.accept()
        else:
            met.add(delivery.message.body)
            decline(delivery)

    came = served.receive("q", decide)
    tally = write(served, numbers(5))
    assert tally.accepted == 5
    assert sorted(message.body for message in came)[:2] == ["0", "0"]


def test_it_is_not_sent_more_often_than_the_option_says(served: Served) -> None:
    came = served.receive("q", lambda delivery: delivery.modify(delivery_failed=True, undeliverable_here=False))
    with pytest.raises(RowError, match=r"row \w+/0/0/0: modified, after 3 attempts"):
        write(served, numbers(1), attempts="3")
    assert len(came) >= 3


def refuse(delivery: Delivery) -> None:
    if delivery.message.body in ("1", "3"):
        delivery.reject("amqp:invalid-field", "bad taste")
    else:
        delivery.accept()


def test_a_rejected_row_fails_the_task_and_is_named(served: Served) -> None:
    came = served.receive("q", refuse)
    with pytest.raises(RowError, match=r"row \w+/0/0/1: rejected: amqp:invalid-field: bad taste"):
        write(served, numbers(5))
    assert [message.body for message in came] == ["0", "1", "2", "3", "4"]  # and what is rejected is not sent again


def test_rejected_rows_go_to_the_address_for_dead_letters(served: Served) -> None:
    served.receive("q", refuse)
    dead = served.receive("dead")
    tally = write(served, numbers(5), deadLetterAddress="dead")
    assert (tally.accepted, tally.dead) == (3, 2)
    assert [message.body for message in dead] == ["1", "3"]


def test_where_dead_letters_are_rejected_the_task_fails(served: Served) -> None:
    served.receive("q", refuse)
    served.receive("dead", lambda delivery: delivery.reject("amqp:not-allowed", "nor here"))
    with pytest.raises(RowError, match=r"row .*/1: rejected: .*; and at 'dead': rejected: amqp:not-allowed: nor here"):
        write(served, numbers(5), deadLetterAddress="dead")


def test_where_nobody_receives_it_ends_in_time(served: Served) -> None:
    with pytest.raises(RowError, match=r"'q': no credit for 0\.3 s"):
        write(served, numbers(1), sendTimeout="0.3")


def test_where_nobody_decides_it_ends_in_time(served: Served) -> None:
    served.receive("q", lambda delivery: None)
    with pytest.raises(RowError, match=r"'q': 2 rows without an outcome for 0\.3 s"):
        write(served, numbers(2), sendTimeout="0.3")


def test_a_peer_that_is_not_there_is_an_error_in_time(served: Served) -> None:
    with pytest.raises(AmqpMeshError, match=r"'q' at amqp://127\.0\.0\.1:1: no connection .* within 0\.3 s"):
        write(served, numbers(1), url="amqp://127.0.0.1:1", connectTimeout="0.3")


def test_a_task_without_rows_needs_no_peer(served: Served) -> None:
    assert write(served, url="amqp://127.0.0.1:1").accepted == 0


def test_a_row_that_is_too_large_for_the_peer_is_named() -> None:
    from amqpmesh import ListenerConfig

    served = Served(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", max_message_size=1000)])
    try:
        served.receive("q")
        with pytest.raises(RowError, match=r"row .*/0: a message of \d+ octets: the peer takes 1000"):
            write(served, table(body=["x" * 2000]))
    finally:
        served.end()


FULL = Message(
    b"tea", durable=True, priority=9, ttl=60.5, delivery_count=3, message_id=7, user_id=b"me", to="there", subject="s",
    reply_to="here", correlation_id="c", content_type="text/plain", creation_time=Timestamp(1_700_000_000_123),
    group_id="g", group_sequence=5, application_properties={"n": UInt(5), "t": "x", "none": None},
    message_annotations={"x-opt-a": 1}, footer={"x-f": b"f"},
)  # fmt: skip


def test_rows_as_they_are_read_are_written_as_they_were(served: Served) -> None:
    came = served.receive("q")
    carried = pa.record_batch([[FULL.encode()], [b"t"], [0]], schema=CARRIED)
    rows = batch(carried, Shape(tuple(arrow_schema(BodyFormat.BINARY).names)), epoch="e", first=0)
    write(served, rows, body="binary", deliveryKey="")
    (copy,) = came
    copy.ttl = FULL.ttl  # less what the router took
    copy.delivery_count = FULL.delivery_count
    assert copy == FULL
    assert type(copy.application_properties["n"]) is UInt


def test_a_row_has_the_message_id_that_it_names_or_its_key(served: Served) -> None:
    came = served.receive("q")
    kind = pa.struct([("type", pa.string()), ("value", pa.string())])
    ids = pa.array(
        [{"message_id": None}, {"message_id": {"type": "ulong", "value": "7"}}], pa.struct([("message_id", kind)])
    )
    write(served, pa.record_batch([pa.array(["a", "b"]), ids], ["body", "properties"]))
    keys = [message.application_properties["spark-delivery-key"] for message in came]
    assert [message.message_id for message in came] == [keys[0], 7]


def test_a_payload_is_written_octet_by_octet(served: Served) -> None:
    came = served.receive("q")
    two = Message((Data(value=b"a"), Data(value=b"b")))
    write(served, table(payload=[two.encode(), None], body=[None, "text"]))
    assert [message.body for message in came] == [two.body, "text"]


@pytest.mark.parametrize(
    ("body", "given", "wanted"),
    [
        ("binary", b"x", b"x"),
        ("binary", None, None),
        ("string", "x", "x"),
        ("json", '{"a": 1}', b'{"a": 1}'),
        ("json", None, None),
        ("msgpack", '{"a":[1,null]}', msgpack.packb({"a": [1, None]})),
    ],
)
def test_a_body_is_written_as_its_format_says(body: str, given: Any, wanted: Any, served: Served) -> None:
    came = served.receive("q")
    column = pa.array([given], pa.binary() if body == "binary" else pa.string())
    write(served, pa.record_batch([column], ["body"]), body=body)
    assert [message.body for message in came] == [wanted]


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ({"body": ["{"]}, {"body": "json"}, "body: no JSON: "),
        ({"body": [str(2**64)]}, {"body": "msgpack"}, "body: no JSON that msgpack could hold: "),
        ({"body": ["a"], "message_format": [7]}, {}, "message_format: 7 is not written here"),
        ({"body": ["a"], "header": [{"priority": 256}]}, {}, "priority"),
        ({"body": ["a"], "header": [{"ttl": -1}]}, {}, "ttl"),
        ({"body": ["a"], "properties": [{"message_id": {"type": "uuid", "value": "x"}}]}, {},
         "properties.message_id: 'x' is no uuid"),
        ({"body": ["a"], "properties": [{"message_id": {"type": "long", "value": "-1"}}]}, {}, "message-id"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_message_is_named(
    columns: dict[str, list[Any]], options: dict[str, str], complaint: str, served: Served
) -> None:
    with pytest.raises(RowError, match=rf"row \w+/0/0/0: .*{complaint}"):
        write(served, table(**columns), **options)


def kind(**columns: Any) -> StructType:
    return StructType([StructField(name, each) for name, each in columns.items()])


TEXT, OCTETS = StringType(), BinaryType()


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (kind(colour=TEXT), "column colour: there is none; there are body, "),
        (kind(body=TEXT), "column body: is binary, not string, with body=binary"),
        (kind(error=TEXT), "there is neither a column body nor a column payload"),
        (
            kind(body=OCTETS, properties=kind(colour=TEXT)),
            "column properties: is .*, not struct<colour:string>",
        ),
        (kind(body=OCTETS, properties=kind(subject=OCTETS)), "column properties: is struct<"),
        (kind(body=OCTETS, footer=MapType(TEXT, OCTETS)), "column footer: is map<"),
    ],
)
def test_columns_that_cannot_be_written_are_told_before_any_row_is(schema: StructType, complaint: str) -> None:
    source = AmqpDataSource({"url": "amqp://127.0.0.1", "address": "q"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(CommandError, match=complaint):
            writer(schema, False)


def test_some_fields_of_a_struct_and_plain_strings_will_do(served: Served) -> None:
    schema = kind(
        body=OCTETS, properties=kind(subject=TEXT, message_id=TEXT), application_properties=MapType(TEXT, TEXT)
    )
    AmqpDataSource({"url": served.url, "address": "q"}).writer(schema, False)
    came = served.receive("q")
    columns = pa.record_batch(
        [pa.array([b"a"]), pa.array([{"subject": "s", "message_id": "id"}]),
         pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))],
        ["body", "properties", "application_properties"],
    )  # fmt: skip
    write(served, columns, body="binary", deliveryKey="")
    assert (came[0].subject, came[0].message_id, came[0].application_properties) == ("s", "id", {"k": "v"})


def test_what_was_sent_cannot_be_overwritten() -> None:
    source = AmqpDataSource({"url": "amqp://127.0.0.1", "address": "q"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(CommandError, match="what was sent cannot be overwritten"):
            writer(kind(body=OCTETS), True)
