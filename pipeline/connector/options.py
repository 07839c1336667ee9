"""The options of the data source, in one table: the source of parsing, checks and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import MAX_CREDIT
from amqpmesh.router.config.urls import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Use(Flag):
    """The uses of an option."""

    STREAM = auto()
    BATCH = auto()
    WRITE = auto()
    READ = STREAM | BATCH
    ANY = READ | WRITE


class BodyFormat(Enum):
    """The formats of the column `body`."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"
    MSGPACK = "msgpack"


class Acquire(Enum):
    """The ways in which a batch read treats the messages that it reads."""

    BROWSE = "browse"
    ACCEPT = "accept"


class KeepPayload(Enum):
    """The cases in which the column `payload` is filled."""

    ERRORS = "errors"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    `parse` raises ValueError with the expected form. `default`: None: not set, unless it is `required`. `stands_for`:
    the meaning of an option that is not set.
    """

    name: str
    use: Use
    parse: Callable[[str], Any]
    meaning: str
    default: Any = None
    required: bool = False
    stands_for: str = ""


E = TypeVar("E", bound=Enum)

MIB: Final = 2**20


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(each.strip() for each in text.split(","))
    for url in urls:
        Endpoint.parse(url)
    return urls


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _file(text: str) -> Path:
    return Path(_text(text))


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is true or false")
    return text.lower() == "true"


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"is a whole number, {low} to {high}")
        return int(text)

    return parse


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"is a number of seconds, {low:g} to {high:g}")
        return value

    return parse


def _one_of(choices: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        try:
            return choices(text.lower())
        except ValueError:
            raise ValueError(f"is one of {', '.join(each.value for each in choices)}") from None

    return parse


MAX_BATCH_BYTES: Final = 100 * MIB
"""Spark hands a partition to an executor in one message, of 128 MiB at most by default (spark.rpc.message.maxSize)."""

TABLE: Final = (
    Option(
        "url", Use.ANY, _urls,
        "`amqp://HOST[:PORT]`, or `amqps://` for TLS. Several URLs, with commas, are tried in turn.",
        required=True,
    ),
    Option("address", Use.ANY, _text, "The address to receive from, or to send to.", required=True),
    Option("user", Use.ANY, _text, "The user name for a login with a password.", stands_for="none"),
    Option(
        "passwordFile", Use.ANY, _file,
        "A file whose first line is the password. There is no option for the password itself, because Spark shows "
        "options in plans and logs.",
        stands_for="none",
    ),
    Option(
        "mechanisms", Use.ANY, _names, "SASL mechanisms, with commas, in the order of preference.",
        stands_for="SCRAM or PLAIN with a user, else EXTERNAL or ANONYMOUS",
    ),
    Option("insecure", Use.ANY, _yes, "Allow the password to be sent to another machine without TLS.", default=False),
    Option(
        "trust", Use.ANY, _file,
        "A PEM file with trusted certificate authorities.",
        stands_for="the system's",
    ),
    Option(
        "certificate", Use.ANY, _file,
        "A PEM file with the client's certificate. Without `user`, it identifies the client.",
        stands_for="none"
    ),
    Option(
        "key", Use.ANY, _file, "A PEM file with the key of the certificate.", stands_for="the file of `certificate`",
    ),
    Option("hostname", Use.ANY, _text, "The virtual host for `open` and SASL.", stands_for="the host of the URL"),
    Option(
        "redirects", Use.ANY, _names,
        "Hosts, with commas, to which the peer may redirect, besides the host of the URL.",
        default=(),
        stands_for="none",
    ),
    Option(
        "connectTimeout", Use.ANY, _seconds(0.1, 3600),
        "Seconds for the first connection and its link. After that, the query or the job fails.", default=30.0,
    ),
    Option(
        "reconnectTimeout", Use.ANY, _seconds(0.1, 86_400),
        "Seconds for a lost connection or link to come back. After that, the query or the job fails.",
        default=300.0,
    ),
    Option(
        "body", Use.ANY, _one_of(BodyFormat),
        "The format of the column `body`: `binary`, `string`, `json` or `msgpack`; see [Bodies](#bodies).",
        default=BodyFormat.BINARY,
    ),
    Option(
        "payload", Use.READ, _one_of(KeepPayload),
        "The rows whose column `payload` is filled: `errors`, those with an `error`; or `always`, all.",
        default=KeepPayload.ERRORS,
    ),
    Option(
        "credit", Use.READ, _whole(1, MAX_CREDIT),
        "The most deliveries that are here or on their way, and not accepted. Less than two batches slows a stream "
        "down, because the next batch arrives while Spark processes the last one.",
        stands_for="twice `maxRowsPerBatch`; 1000 for batch reads",
    ),
    Option("maxRowsPerBatch", Use.STREAM, _whole(1, 10_000_000), "The most rows of a micro-batch.", default=100_000),
    Option(
        "maxBytesPerBatch", Use.STREAM, _whole(1, MAX_BATCH_BYTES),
        "The most octets of a micro-batch's messages. A single larger message is a batch of its own. While twice as "
        "many octets are on the driver's host and not accepted, the peer gets no credit and no window.",
        default=32 * MIB,
    ),
    Option(
        "maxMessageSize", Use.READ, _whole(1, MAX_BATCH_BYTES),
        "The most octets of a message. The peer refuses larger messages.",
        default=16 * MIB,
    ),
    Option(
        "partitions", Use.STREAM, _whole(1, 10_000),
        "The most tasks of a micro-batch; with several `links`, one more for each of them.", default=2,
    ),
    Option(
        "links", Use.STREAM, _whole(1, 64),
        "The links that receive from the address, each in a process of its own on the driver's host if there are "
        "several. They divide `credit` and `maxBytesPerBatch` equally.", default=1,
    ),
    Option(
        "quiet", Use.READ, _seconds(0.01, 3600),
        "Seconds without a message that end a batch read, or a stream with `availableNow`.", default=2.0,
    ),
    Option(
        "longest", Use.READ, _seconds(0.01, 86_400 * 7),
        "Seconds after which a batch read, or a stream with `availableNow`, ends although messages still arrive.",
        default=3600.0,
    ),
    Option(
        "acquire", Use.BATCH, _one_of(Acquire),
        "`browse`: leave the messages at the peer (distribution mode copy, §3.5.7), if the peer can; `accept`: take "
        "them, at most once from there on.", default=Acquire.BROWSE,
    ),
    Option(
        "maxRows", Use.BATCH, _whole(1, MAX_CREDIT),
        "The number of rows that ends a batch read.", stands_for="no limit",
    ),
    Option(
        "deliveryKey", Use.WRITE, str,
        "The application property for the key of each row, `QUERY/BATCH/PARTITION/ROW`; empty: no such property.",
        default="spark-delivery-key",
    ),
    Option(
        "attempts", Use.WRITE, _whole(1, 1000),
        "The most times that a row is sent, if it is released, modified, or in doubt after a lost connection.",
        default=5,
    ),
    Option(
        "retryPause", Use.WRITE, _seconds(0, 3600), "Seconds before such rows are sent again.", default=0.5
    ),
    Option(
        "inFlight", Use.WRITE, _whole(1, 1_000_000), "The most rows of a task without an outcome.",
        default=1000,
    ),
    Option(
        "sendTimeout", Use.WRITE, _seconds(0.1, 86_400),
        "Seconds without progress, while connected, after which the task fails: no receiver gives credit, or no "
        "outcome arrives.", default=60.0,
    ),
    Option(
        "deadLetterAddress", Use.WRITE, _text,
        "The address for rows that are rejected, or not accepted after all attempts.",
        stands_for="none: the task fails, and so does the batch",
    ),
)  # fmt: skip
"""Every option, by its name; Spark does not distinguish capitals."""

BY_NAME: Final = {option.name.lower(): option for option in TABLE}

SPARKS_OWN: Final = frozenset({"checkpointlocation"})
"""Options of Spark itself that it hands on."""


class Options:
    """The options of one read or write: `options["credit"]` is the value, parsed, or the default."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        """Read the given options.

        Raises: CommandError: an option is unknown, is not for this use, has an invalid value, or is missing; or two
            options contradict each other.
        """
        self._values: dict[str, Any] = {option.name: option.default for option in TABLE if option.use & use}
        for name, text in given.items():
            if name.lower() in SPARKS_OWN:
                continue
            option = BY_NAME.get(name.lower())
            if option is None:
                raise CommandError(_unknown(name))
            if not option.use & use:
                raise CommandError(f"option {option.name}: is for {_described(option.use)}, not for {_described(use)}")
            try:
                self._values[option.name] = option.parse(str(text))
            except ValueError as error:
                raise CommandError(f"option {option.name}: {text!r}: {error}") from None
        missing = [each.name for each in TABLE if each.required and each.use & use and self._values[each.name] is None]
        if missing:
            raise CommandError(f"option {missing[0]}: is missing")
        self._agree()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def _agree(self) -> None:
        if "links" in self._values and self.credit < self["links"]:
            raise CommandError(f"option links: {self['links']} links cannot divide a credit of {self.credit}")
        if (self["user"] is None) != (self["passwordFile"] is None):
            raise CommandError("options user and passwordFile: one is of no use without the other")
        if self["key"] is not None and self["certificate"] is None:
            raise CommandError("option key: is of no use without certificate")
        for name in ("trust", "certificate", "key"):
            if self[name] is not None and not any(url.startswith("amqps:") for url in self["url"]):
                raise CommandError(f"option {name}: is of no use without TLS: no URL is amqps://")

    @property
    def credit(self) -> int:
        """The link's credit: the option, else twice `maxRowsPerBatch`, else `BATCH_CREDIT`."""
        credit: int | None = self["credit"]
        if credit is not None:
            return credit
        return 2 * self["maxRowsPerBatch"] if "maxRowsPerBatch" in self._values else BATCH_CREDIT


BATCH_CREDIT: Final = 1000
"""Of a batch read, which accepts as it goes."""

_USES: Final = {Use.STREAM: "reading streams", Use.BATCH: "batch reads", Use.WRITE: "writing"}


_WORDS: Final = {Use.ANY: "all", Use.READ: "reading"}
"""Short words for several uses."""


def _described(use: Use) -> str:
    return " and ".join(text for each, text in _USES.items() if each & use)


def _unknown(name: str) -> str:
    if name.lower() == "password":
        return "option password: there is none, as Spark shows options in plans and logs: use passwordFile"
    known = ", ".join(option.name for option in TABLE)
    return f"option {name}: there is no such option; there are {known}"


def documented() -> str:
    """Return the table of the options for the documentation, in Markdown."""
    rows = ["| option | used by | default | meaning |", "|---|---|---|---|"]
    for option in TABLE:
        without = "required" if option.required else option.stands_for or f"`{_shown(option.default)}`"
        of = _WORDS.get(option.use) or _described(option.use)
        rows.append(f"| `{option.name}` | {of} | {without} | {option.meaning} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
