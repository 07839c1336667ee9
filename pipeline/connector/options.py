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
        "url", Use.ANY, _urls, "`amqp://HOST[:PORT]`, or `amqps://` for TLS; several, with commas, are tried in turn.",
        required=True,
    ),
    Option("address", Use.ANY, _text, "The address to receive from, or to send to.", required=True),
    Option("user", Use.ANY, _text, "Who we are, by a password.", stands_for="nobody, or the certificate"),
    Option(
        "passwordFile", Use.ANY, _file,
        "The password is this file's first line. It is read where the connection is made: on the driver's host by a "
        "stream that is read, on the executors' hosts by all others. There is no option for the password itself: Spark "
        "shows options in plans and logs.",
        stands_for="none",
    ),
    Option(
        "mechanisms", Use.ANY, _names, "SASL mechanisms, with commas, the best liked first.",
        stands_for="SCRAM or PLAIN with a user, else EXTERNAL or ANONYMOUS",
    ),
    Option("insecure", Use.ANY, _yes, "Without TLS, let another machine see the password.", default=False),
    Option(
        "trust", Use.ANY, _file,
        "PEM, the authorities to believe; a file where the connection is made, as those below.",
        stands_for="the system's",
    ),
    Option(
        "certificate", Use.ANY, _file, "PEM, shown to the peer; without `user` it says who we are.", stands_for="none"
    ),
    Option("key", Use.ANY, _file, "PEM, the certificate's key.", stands_for="in the file of the certificate"),
    Option("hostname", Use.ANY, _text, "The virtual host that is wanted, in `open` and SASL.", stands_for="the URL's"),
    Option(
        "redirects", Use.ANY, _names, "Hosts, with commas, that the peer may send us to beside the URL's.", default=(),
        stands_for="none",
    ),
    Option(
        "connectTimeout", Use.ANY, _seconds(0.1, 3600),
        "Seconds until the first connection and its link are there; then the query or the job fails.", default=30.0,
    ),
    Option(
        "reconnectTimeout", Use.ANY, _seconds(0.1, 86_400),
        "Seconds that a lost connection, or link, may take to come back; then the query or the job fails.",
        default=300.0,
    ),
    Option(
        "body", Use.ANY, _one_of(BodyFormat),
        "What the column `body` holds: `binary`, `string`, `json` or `msgpack`; see below.", default=BodyFormat.BINARY,
    ),
    Option(
        "payload", Use.READ, _one_of(KeepPayload),
        "When the column `payload` is filled: `errors`, where `error` is; or `always`.", default=KeepPayload.ERRORS,
    ),
    Option(
        "credit", Use.READ, _whole(1, MAX_CREDIT),
        "Deliveries that may be here or on their way, and not accepted. Less than two batches slows a stream down: the "
        "next one gathers while the last one is worked off.",
        stands_for="two batches of `maxRowsPerBatch`; of a batch read, 1,000",
    ),
    Option("maxRowsPerBatch", Use.STREAM, _whole(1, 10_000_000), "Rows of a micro-batch, at most.", default=100_000),
    Option(
        "maxBytesPerBatch", Use.STREAM, _whole(1, MAX_BATCH_BYTES),
        "Octets of a micro-batch's messages, at most, but one message, however large. When twice as many are on the "
        "driver's host and not accepted, the peer is given no more credit, and no window.",
        default=32 * MIB,
    ),
    Option(
        "maxMessageSize", Use.READ, _whole(1, MAX_BATCH_BYTES),
        "Octets of a message; larger ones are refused by the peer.",
        default=16 * MIB,
    ),
    Option(
        "partitions", Use.STREAM, _whole(1, 10_000), "Tasks that a micro-batch is cut into, at most.", default=2
    ),
    Option(
        "quiet", Use.READ, _seconds(0.01, 3600),
        "Seconds without a message after which nothing more is there: that ends a batch read, and a stream with "
        "`availableNow`.", default=2.0,
    ),
    Option(
        "longest", Use.READ, _seconds(0.01, 86_400 * 7),
        "Seconds after which a batch read, or a stream with `availableNow`, takes no more, though messages still come.",
        default=3600.0,
    ),
    Option(
        "acquire", Use.BATCH, _one_of(Acquire),
        "`browse`: leave the messages where they are (distribution mode copy, §3.5.7), as far as the peer can; "
        "`accept`: take them, at most once from there on.", default=Acquire.BROWSE,
    ),
    Option("maxRows", Use.BATCH, _whole(1, MAX_CREDIT), "Rows after which a batch read ends.", stands_for="no limit"),
    Option(
        "deliveryKey", Use.WRITE, str,
        "The application property with the key of each row, `QUERY/BATCH/PARTITION/ROW`; empty: none is added.",
        default="spark-delivery-key",
    ),
    Option(
        "attempts", Use.WRITE, _whole(1, 1000),
        "How often a row is sent that is released, modified, or in doubt because its connection was lost.", default=5,
    ),
    Option(
        "retryPause", Use.WRITE, _seconds(0, 3600), "Seconds before such rows are sent again.", default=0.5
    ),
    Option(
        "inFlight", Use.WRITE, _whole(1, 1_000_000), "Rows of a task that are sent and have no outcome yet, at most.",
        default=1000,
    ),
    Option(
        "sendTimeout", Use.WRITE, _seconds(0.1, 86_400),
        "Seconds without any outcome, while there is a connection, after which the task fails: nobody receives, or "
        "nobody decides.", default=60.0,
    ),
    Option(
        "deadLetterAddress", Use.WRITE, _text,
        "Where rows go that are rejected, or still not accepted after all attempts.",
        stands_for="nowhere: the task fails, and so does the batch",
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
        if (self["user"] is None) != (self["passwordFile"] is None):
            raise CommandError("options user and passwordFile: one is of no use without the other")
        if self["key"] is not None and self["certificate"] is None:
            raise CommandError("option key: is of no use without certificate")
        for name in ("trust", "certificate", "key"):
            if self[name] is not None and not any(url.startswith("amqps:") for url in self["url"]):
                raise CommandError(f"option {name}: is of no use without TLS: no URL is amqps://")

    @property
    def credit(self) -> int:
        """As the option, or what it stands for."""
        credit: int | None = self["credit"]
        if credit is not None:
            return credit
        return 2 * self["maxRowsPerBatch"] if "maxRowsPerBatch" in self._values else BATCH_CREDIT


BATCH_CREDIT: Final = 1000
"""Of a batch read, which accepts as it goes."""

_USES: Final = {Use.STREAM: "reading streams", Use.BATCH: "batch reads", Use.WRITE: "writing"}


_WORDS: Final = {Use.ANY: "all", Use.READ: "all that reads"}
"""Words for readers in place of a list."""


def _described(use: Use) -> str:
    return " and ".join(text for each, text in _USES.items() if each & use)


def _unknown(name: str) -> str:
    if name.lower() == "password":
        return "option password: there is none, as Spark shows options in plans and logs: use passwordFile"
    known = ", ".join(option.name for option in TABLE)
    return f"option {name}: there is no such option; there are {known}"


def documented() -> str:
    """Return the table of the options for the documentation, in Markdown."""
    rows = ["| option | of | without it | |", "|---|---|---|---|"]
    for option in TABLE:
        without = "it is an error" if option.required else option.stands_for or f"`{_shown(option.default)}`"
        of = _WORDS.get(option.use) or _described(option.use)
        rows.append(f"| `{option.name}` | {of} | {without} | {option.meaning} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
