"""The messages between two neighbours, as declarations: each is one msgpack map of at most 64 KiB.

Besides its items a message has `t`, its type. A message is trusted because its connection is authenticated; the records
in it, because their origins signed them.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from amqpmesh.policies.policy_version import LARGEST, MAX_NUMBER, PolicyVersion
from amqpmesh.topology.records import AREA, COST, EPOCH, MAX_BODY, MAX_ID, ROUTER_ID, SEQUENCE, SignedRecord
from amqpmesh.topology.schema import (
    Array,
    Binary,
    Body,
    Boolean,
    Integer,
    Nullable,
    Row,
    Text,
    UnreadableError,
    body,
    item,
    pack,
    read,
    to_map,
    unpack,
)

MAX_MESSAGE: Final = 64 * 1024
"""The most octets of a message; longer ones are not read."""

KEY_ID: Final = Binary(64)
KIND: Final = Integer(0, 255)
SIGNATURE: Final = Binary(512)
NUMBER: Final = Integer(0, 2**62 - 1)
AGE_MS: Final = Integer(0, 2**53 - 1)
ANY_ID: Final = Text(MAX_ID, words="router id or empty")
MAX_CERTIFICATES: Final = 8
"""Certificates of one origin in a summary: the one in use, its successor, and those that overlap with them."""
PIECE: Final = 16 * 1024
"""Octets of a piece of a policy: on a slow link it delays a HELLO by little."""
POLICY_NUMBER: Final = Integer(1, MAX_NUMBER)
DIGEST: Final = Binary(32)


class SeenRouter(NamedTuple):
    """A router that was heard in HELLOs."""

    router: str
    epoch: int


class SummaryEntry(NamedTuple):
    """A row of a summary: the records that a router has of an origin."""

    origin: str
    epoch: int
    links: int
    addresses: int
    key_ids: tuple[bytes, ...]


class ListVersion(NamedTuple):
    """The list of revocations that a router has of an authority."""

    authority: bytes
    number: int


class RequestEntry(NamedTuple):
    """A record, or the records, that a router asks for."""

    kind: int
    origin: str
    key_id: bytes


class AgedRecord(NamedTuple):
    """A signed record on its way, with its age, which is outside the signature."""

    age_ms: int
    kind: int
    key_id: bytes
    body: bytes
    signature: bytes

    @property
    def signed(self) -> SignedRecord:
        """The record without its age."""
        return SignedRecord(self.kind, self.key_id, self.body, self.signature)


HELD: Final = Row(
    SummaryEntry,
    (
        ("origin", ROUTER_ID),
        ("epoch", EPOCH),
        ("link state's sequence", SEQUENCE),
        ("addresses' sequence", SEQUENCE),
        ("its certificates' key ids", Array(KEY_ID, MAX_CERTIFICATES)),
    ),
)


class _AgedRecordRow(Row):
    """A row that is checked in one go: most of the octets of a flood are such rows."""

    def read(self, value: Any) -> AgedRecord:
        """Read a row; see `ValueType`."""
        if type(value) is list and len(value) == len(self.places):
            age_ms, kind, key_id, body, signature = value
            if (
                type(age_ms) is type(kind) is int
                and type(key_id) is type(body) is type(signature) is bytes
                and 0 <= age_ms <= AGE_MS.high
                and 0 <= kind <= KIND.high
                and len(key_id) <= KEY_ID.longest
                and len(body) <= MAX_BODY
                and len(signature) <= SIGNATURE.longest
            ):
                return AgedRecord._make(value)
        carried: AgedRecord = super().read(value)  # it has more elements, or it is malformed
        return carried

    def read_all(self, values: Sequence[Any]) -> Sequence[AgedRecord]:
        """Read rows; see `ValueType`. Most messages hold a few."""
        return [self.read(value) for value in values]


AGED_RECORD: Final = _AgedRecordRow(
    AgedRecord,
    (
        ("age, milliseconds", AGE_MS),
        ("kind", KIND),
        ("key id", KEY_ID),
        ("body", Binary(MAX_BODY)),
        ("signature", SIGNATURE),
    ),
)


@body("Hello", "finds a neighbour and keeps the adjacency alive; the adjacency is up once both sides are heard")
class Hello(Body):
    """A message of type 1, by which neighbours find each other and show that they live."""

    router: str = item("r", ROUTER_ID, "the sender")
    epoch: int = item(
        "e", EPOCH, "the epoch that the sender started with; unlike the one in its records, it never changes"
    )
    hold_ms: int = item(
        "h", Integer(1, 2**32 - 1), "the silence, in milliseconds, after which the sender is taken for dead"
    )
    seen: SeenRouter | None = item(
        "n",
        Nullable(Row(SeenRouter, (("router", ROUTER_ID), ("epoch", EPOCH)))),
        "the router that the sender hears on this connection, and accepts as a neighbour",
        default=None,
    )
    area: str = item("a", AREA, "the area; adjacencies are within one area", default="")
    policy: PolicyVersion | None = item(
        "p",
        Nullable(Row(PolicyVersion, (("version", POLICY_NUMBER), ("SHA-256 of the file", DIGEST)))),
        "the policy that the sender can give",
        default=None,
    )
    cost: int | None = item(
        "c",
        Nullable(COST),
        "the cost of sending on this connection, if the sender's configuration has one; it is that of the other "
        "direction, too, unless the receiver has its own",
        default=None,
    )


@body("Summary", "lists the sender's records; the receiver sends those that are newer, or not in it")
class Summary(Body):
    """A message of type 2. Several of them describe all origins, each for a range of ids."""

    after: str = item("f", ANY_ID, "the range begins after this origin id; empty: with the first", default="")
    through: str | None = item(
        "l", Nullable(ROUTER_ID), "the last origin id of the range; nil: to the end", default=None
    )
    held: tuple[SummaryEntry, ...] = item("n", Array(HELD, 4096), "the records of each origin in the range", default=())
    lists: tuple[ListVersion, ...] = item(
        "x",
        Array(Row(ListVersion, (("authority's key id", KEY_ID), ("number", SEQUENCE))), 64),
        "the sender's lists of revocations",
        default=(),
    )
    answer: bool = item("q", Boolean(), "whether the receiver is to answer with its own summary", default=False)
    area: str = item("a", AREA, "as in Hello", default="")


@body("Request", "asks for missing records; a receiver that has them sends them")
class Request(Body):
    """A message of type 3, which asks for missing records."""

    wanted: tuple[RequestEntry, ...] = item(
        "n",
        Array(Row(RequestEntry, (("kind", KIND), ("origin", ANY_ID), ("key id, of a certificate", KEY_ID))), 256),
        "kind 2: an origin's addresses, the full state and deltas; kind 4: a certificate",
    )
    area: str = item("a", AREA, "as in Hello", default="")


@body("Records", "carries signed records, which are flooded")
class Records(Body):
    """A message of type 4, which carries signed records."""

    number: int = item("s", NUMBER, "the number to acknowledge once all the records are handled")
    records: tuple[AgedRecord, ...] = item("n", Array(AGED_RECORD, 1024), "the records", default=())
    acknowledged: tuple[int, ...] = item("k", Array(NUMBER, 1024), "as in Acknowledgement", default=())
    area: str = item("a", AREA, "as in Hello", default="")


@body("Acknowledgement", "lists Records messages that have arrived; others are sent again")
class Acknowledgement(Body):
    """A message of type 5, which lists the messages with records that have arrived."""

    acknowledged: tuple[int, ...] = item("k", Array(NUMBER, 1024), "their numbers")
    area: str = item("a", AREA, "as in Hello", default="")


@body("PolicyRequest", "asks for the next piece of a policy that the receiver offers in its Hello")
class PolicyRequest(Body):
    """A message of type 6, which asks for a piece of a policy."""

    digest: bytes = item("d", DIGEST, "SHA-256 of the policy's file")
    offset: int = item("o", Integer(0, LARGEST), "the octets that the sender has")
    area: str = item("a", AREA, "as in Hello", default="")


@body("PolicyPiece", "answers a PolicyRequest")
class PolicyPiece(Body):
    """A message of type 7, which carries a piece of a policy."""

    digest: bytes = item("d", DIGEST, "as in PolicyRequest")
    offset: int = item("o", Integer(0, LARGEST), "as in PolicyRequest")
    total: int = item("n", Integer(1, LARGEST), "the octets of the whole file")
    data: bytes = item("b", Binary(PIECE), "the octets from the offset on")
    area: str = item("a", AREA, "as in Hello", default="")


Message: TypeAlias = Hello | Summary | Request | Records | Acknowledgement | PolicyRequest | PolicyPiece

TYPES: Final[dict[int, type[Message]]] = {
    1: Hello,
    2: Summary,
    3: Request,
    4: Records,
    5: Acknowledgement,
    6: PolicyRequest,
    7: PolicyPiece,
}
"""The messages by their type."""

_NUMBERS: Final = {form: number for number, form in TYPES.items()}


def write_message(message: Message) -> bytes:
    """Encode a message."""
    return pack({"t": _NUMBERS[type(message)], **to_map(message)})


def read_message(data: bytes) -> Message:
    """Decode a message.

    Raises: UnreadableError: it is malformed, too long, or of an unknown type or version.
    """
    value: dict[str, Any] = unpack(data, MAX_MESSAGE)
    number = value.get("t")
    form = TYPES.get(number) if type(number) is int else None
    if form is None:
        raise UnreadableError("kind", "no message of a type that is known")
    message: Message = read(form, value)
    return message
