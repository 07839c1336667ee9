"""Options of the Spark connector: parsing, defaults, and errors."""

import pytest

from amqpmesh.pipeline.connector.options import TABLE, Acquire, BodyFormat, Options, Use, documented
from amqpmesh.router.amqp.errors import CommandError

LEAST = {"url": "amqp://127.0.0.1", "address": "orders"}


def test_without_more_than_url_and_address_each_option_has_its_default() -> None:
    options = Options(LEAST, Use.STREAM)
    assert options["url"] == ("amqp://127.0.0.1",)
    assert options["body"] is BodyFormat.BINARY
    assert options["maxRowsPerBatch"] == 100_000
    assert options.credit == 200_000
    assert Options(LEAST, Use.BATCH)["acquire"] is Acquire.BROWSE


def test_capitals_do_not_matter_as_spark_does_not_keep_them() -> None:
    assert Options({**LEAST, "MAXROWSPERBATCH": "7"}, Use.STREAM)["maxRowsPerBatch"] == 7


def test_credit_is_two_batches_unless_it_is_said() -> None:
    assert Options({**LEAST, "maxRowsPerBatch": "10"}, Use.STREAM).credit == 20
    assert Options({**LEAST, "maxRowsPerBatch": "10", "credit": "3"}, Use.STREAM).credit == 3


def test_several_urls_are_tried_in_turn() -> None:
    assert Options({**LEAST, "url": "amqp://a, amqps://b:5673"}, Use.WRITE)["url"] == ("amqp://a", "amqps://b:5673")


@pytest.mark.parametrize(
    ("given", "use", "complaint"),
    [
        ({"colour": "red"}, Use.STREAM, "option colour: there is no such option; there are url, address"),
        ({"password": "geheim"}, Use.STREAM, "option password: there is none, as Spark shows .* use passwordFile"),
        ({"acquire": "browse"}, Use.STREAM, "option acquire: is for batch reads, not for reading streams"),
        ({"attempts": "3"}, Use.BATCH, "option attempts: is for writing, not for batch reads"),
        ({"credit": "many"}, Use.STREAM, "option credit: 'many': is a whole number, 1 to 2147483647"),
        ({"credit": "0"}, Use.STREAM, "option credit: '0': is a whole number, 1 to"),
        ({"quiet": "nan"}, Use.STREAM, "option quiet: 'nan': is a number of seconds"),
        ({"body": "xml"}, Use.STREAM, "option body: 'xml': is one of binary, string, json, msgpack"),
        ({"insecure": "yes"}, Use.STREAM, "option insecure: 'yes': is true or false"),
        ({"url": "http://a"}, Use.STREAM, "option url: 'http://a': "),
        ({"url": "amqp://me:secret@a"}, Use.STREAM, "option url: "),
        ({"address": ""}, Use.STREAM, "option address: '': is empty"),
        ({"user": "me"}, Use.STREAM, "options user and passwordFile: one is of no use without the other"),
        ({"passwordFile": "f"}, Use.STREAM, "options user and passwordFile"),
        ({"url": "amqps://a", "key": "f"}, Use.STREAM, "option key: is of no use without certificate"),
        ({"trust": "f"}, Use.STREAM, "option trust: is of no use without TLS"),
        ({"maxBytesPerBatch": str(2**30)}, Use.STREAM, "option maxBytesPerBatch: "),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_option(given: dict[str, str], use: Use, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        Options({**LEAST, **given}, use)


@pytest.mark.parametrize("missing", ["url", "address"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(CommandError, match=f"option {missing}: is missing"):
        Options({name: text for name, text in LEAST.items() if name != missing}, Use.READ)


def test_what_spark_keeps_for_itself_is_let_pass() -> None:
    options = Options({**LEAST, "checkpointLocation": "/somewhere"}, Use.WRITE)
    assert (options["url"], options["address"]) == (("amqp://127.0.0.1",), "orders")


def test_every_default_is_a_value_that_could_be_given() -> None:
    for option in TABLE:
        if option.default not in (None, (), ""):
            text = str(getattr(option.default, "value", option.default)).lower()
            assert option.parse(text if option.name != "deliveryKey" else option.default) == option.default


def test_the_table_for_people_has_a_line_for_each() -> None:
    lines = documented().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == [option.name for option in TABLE]
