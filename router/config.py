"""The configuration: what a router, its listeners and its addresses can be told, and the file that tells it.

Every key of the file is the keyword of the same name here. A key may be written with hyphens or with underscores,
`dead-letter` or `dead_letter`; an unknown one is an error, as is one given in both spellings. Paths are relative to
the file, seconds are floats, sizes are bytes.
"""

import re
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal

from amqpmesh.policies.access import RESERVED
from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.logs import LogFormat
from amqpmesh.router.tables import Rule, Table, declared, read, setting, table, written
from amqpmesh.router.urls import Endpoint
from amqpmesh.router.users import Users

USHORT_MAX = 2**16 - 1
UINT_MAX = 2**32 - 1
ULONG_MAX = 2**64 - 1

MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-1", "SCRAM-SHA-256")
PASSWORD_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"})

MAX_ID = 255
"""The longest router id, characters: it stands in every frame that opens a connection, and in addresses."""

DEFAULT_URL = "amqp://127.0.0.1:5672"


class Overflow(StrEnum):
    """What a multicast address does while one receiver gives no credit and others do."""

    HOLD = "hold"
    DROP = "drop"


ClientCertificate = Literal["none", "optional", "required"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _url_refusal(url: str) -> str | None:
    try:
        Endpoint.parse(url)
    except ValueError as error:
        return str(error)
    return None


def _id_refusal(id: str) -> str | None:
    if not re.fullmatch(r"[!-~]+", id):
        return "must be printable ASCII without spaces, and not empty"
    if len(id) > MAX_ID:
        return f"must be at most {MAX_ID} characters"
    # An address splits at its last @; * and # are patterns; / parts tokens.
    forbidden = sorted(set(id) & set("@/#*"))
    return f"must be without {' '.join(forbidden)}" if forbidden else None


def _sasl_refusal(mechanisms: Sequence[str]) -> str | None:
    unknown = [name for name in mechanisms if name not in MECHANISMS]
    if unknown:
        return f"unknown mechanism {unknown[0]!r}; known are {', '.join(MECHANISMS)}"
    return "names a mechanism twice" if len(set(mechanisms)) < len(mechanisms) else None


def _emptiness(text: str) -> str | None:
    return None if text else "must not be empty"


def _pattern_refusal(pattern: str) -> str | None:
    if pattern.startswith(RESERVED):
        return f"addresses that begin with {RESERVED} are the router's own"
    return _emptiness(pattern)


def default_id() -> str:
    """The host's name, as far as a router id may be like it."""
    return re.sub(r"[^!-~]|[@/#*]", "-", socket.gethostname())[:MAX_ID] or "router"


@table
class TlsConfig(Table):
    """A listener's certificate, and what it asks of its clients (§5.2). All files are PEM."""

    certificate: Path = setting()
    key: Path = setting()
    trust: Path | None = setting(default=None)
    client: ClientCertificate = setting(default="none")

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked for a certificate."""
        return self.client != "none"

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("trust", "is needed to verify the certificates of clients", lambda c: c.asks_clients and not c.trust),
        Rule("trust", 'does nothing with client = "none"', lambda c: c.trust is not None and not c.asks_clients),
    )


@table
class Limits(Table):
    """What one connection may take. Said of the router, they hold for every listener that does not say otherwise."""

    idle_time_out: float = setting(default=16.0, low=0.0, high=UINT_MAX / 1000)
    max_frame_size: int = setting(default=32 * 2**10, low=512, high=UINT_MAX)
    max_message_size: int = setting(default=0, low=0, high=ULONG_MAX)
    channel_max: int = setting(default=63, low=0, high=USHORT_MAX)
    handle_max: int = setting(default=1023, low=0, high=UINT_MAX)
    session_window: int = setting(default=128, low=1, high=2**31 - 1)
    anonymous_window: int = setting(default=64, low=1, high=2**31 - 1)
    max_owed: int = setting(default=5000, low=1, high=2**31 - 1)
    output_backlog: int = setting(default=256 * 2**10, low=1)
    head_max: int = setting(default=64 * 2**10, low=1)
    open_time_out: float = setting(default=10.0, low=0.0, high=3600.0)
    close_time_out: float = setting(default=5.0, low=0.0, high=3600.0)
    minimum_idle_time_out: float = setting(default=0.1, low=0.0, high=3600.0)
    links: int = setting(default=4096, low=1)
    connection_window: int = setting(default=512, low=1)
    connections: int = setting(default=10_000, low=1)

    def limits(self) -> dict[str, int | float]:
        """The limits by name, as keywords for another table that has them."""
        return {item.name: getattr(self, item.name) for item in declared(Limits)}


@table
class ListenerConfig(Limits):
    """Where clients connect, and how they show who they are."""

    url: str = setting(check=_url_refusal)
    name: str = setting(default="")
    sasl: tuple[str, ...] = setting(default=("ANONYMOUS",), check=_sasl_refusal)
    users: Path | None = setting(default=None)
    tls: TlsConfig | None = setting(default=None)
    insecure: bool = setting(default=False)
    strict_annotations: bool = setting(default=False)
    trace_frames: bool = setting(default=False)

    @property
    def endpoint(self) -> Endpoint:
        """The URL, taken apart."""
        return Endpoint.parse(self.url)

    @property
    def sasl_demanded(self) -> bool:
        """Whether a connection must begin with the SASL layer (§5.3): not if anybody may come in without a name."""
        return bool(self.sasl) and "ANONYMOUS" not in self.sasl

    @property
    def takes_passwords(self) -> bool:
        """Whether a mechanism is offered that needs `users`."""
        return not PASSWORD_MECHANISMS.isdisjoint(self.sasl)

    def mechanisms(self, *, secured: bool) -> tuple[str, ...]:
        """What a client is offered, in the order of `sasl`.

        Args: secured: it came through TLS. Without, a password would cross the network in clear and there is no
            certificate to look at, so PLAIN (unless the listener is `insecure`) and EXTERNAL are held back.
        Returns: for an empty `sasl`, ANONYMOUS, since a peer that starts the SASL layer has to be offered something.
        """
        if not self.sasl:
            return ("ANONYMOUS",)
        hidden = set() if secured else {"EXTERNAL"} if self.insecure else {"EXTERNAL", "PLAIN"}
        return tuple(name for name in self.sasl if name not in hidden)

    @property
    def authenticates(self) -> bool:
        """Whether nobody comes in without showing who they are."""
        # Without amqps a peer may leave TLS out, and its certificate with it.
        return self.sasl_demanded or (self.endpoint.secure and self.tls is not None and self.tls.client == "required")

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("tls", "is needed for amqps: a certificate and its key", lambda c: c.endpoint.secure and not c.tls),
        Rule(
            "sasl",
            "without authentication a listener binds to loopback only: demand a mechanism, or with amqps a client "
            "certificate, or say insecure = true",
            lambda c: not (c.authenticates or c.endpoint.loopback or c.insecure),
        ),
        Rule(
            "sasl",
            "PLAIN is offered under TLS only: set tls, or say insecure = true",
            lambda c: "PLAIN" in c.sasl and not (c.tls or c.insecure),
        ),
        Rule(
            "sasl",
            'EXTERNAL needs client certificates: set tls with trust, and client = "optional" or "required"',
            lambda c: "EXTERNAL" in c.sasl and not (c.tls and c.tls.asks_clients),
        ),
        Rule("users", "is needed for PLAIN and SCRAM", lambda c: c.takes_passwords and not c.users),
        Rule("users", "does nothing without PLAIN or SCRAM", lambda c: c.users is not None and not c.takes_passwords),
    )


@table
class AddressConfig(Table):
    """What happens to the deliveries of the addresses that fall under a pattern; the most specific pattern wins."""

    pattern: str = setting(check=_pattern_refusal)
    distribution: Distribution = setting(default=Distribution.BALANCED)
    max_credit: int = setting(default=250, low=1, high=2**31 - 1)
    max_unsettled: int = setting(default=5000, low=1, high=2**31 - 1)
    drain_time: float = setting(default=0.25, low=0.0, high=60.0)
    window: int = setting(default=64, low=1, high=2**31 - 1)
    anonymous_wait: float = setting(default=1.0, low=0.0, high=3600.0)
    overflow: Overflow = setting(default=Overflow.HOLD)
    overflow_time: float = setting(default=1.0, low=0.0, high=3600.0)
    copy_backlog: int = setting(default=2**20, low=0)
    redeliver: bool = setting(default=False)
    redeliver_max: int = setting(default=64 * 2**10, low=1)
    attempts: int = setting(default=3, low=1, high=UINT_MAX)
    dead_letter: str | None = setting(default=None, check=_emptiness)
    delivery_annotations: DeliveryAnnotationsRule = setting(default=DeliveryAnnotationsRule.PASS)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "overflow",
            'does nothing unless distribution is "multicast"',
            lambda c: c.overflow is not Overflow.HOLD and c.distribution is not Distribution.MULTICAST,
        ),
        Rule(
            "dead_letter",
            "is the pattern's own address",
            lambda c: c.dead_letter is not None and c.dead_letter == c.pattern,
        ),
    )


@table
class LogConfig(Table):
    """What the daemon writes on standard error; an embedded router leaves logging to its process."""

    level: LogLevel = setting(default="info")
    format: LogFormat = setting(default="text")


@table
class RouterConfig(Limits):
    """A whole configuration. `listeners`, `addresses` and `log` are tables of their own in the file."""

    id: str = setting(factory=default_id, check=_id_refusal)
    drain: float = setting(default=5.0, low=0.0, high=3600.0)
    memory: int = setting(default=256 * 2**20, low=2**20)
    listeners: tuple[ListenerConfig, ...] = setting(default=(), apart=True)
    addresses: tuple[AddressConfig, ...] = setting(default=(), apart=True)
    log: LogConfig = setting(factory=LogConfig, apart=True)

    def __post_init__(self) -> None:
        """Check, and name the listeners that have no name after their scheme: `amqp`, `amqp-2`."""
        super().__post_init__()
        taken = [listener.name for listener in self.listeners if listener.name]
        for position, name in enumerate(taken):
            if name in taken[:position]:
                raise ConfigError(type(self).__name__, "listener", f"two listeners are named {name!r}")
        urls = [str(listener.endpoint) for listener in self.listeners if listener.endpoint.port]
        for position, url in enumerate(urls):
            if url in urls[:position]:
                raise ConfigError(type(self).__name__, "listener", f"two listeners are at {url}")
        named = []
        for listener in self.listeners:
            name = listener.name or _free_name(listener.endpoint.scheme, taken)
            taken.append(name)
            named.append(replace(listener, name=name))
        object.__setattr__(self, "listeners", tuple(named))
        try:
            self.address_table()
        except ValueError as error:
            raise ConfigError(type(self).__name__, "address", str(error)) from None

    def address_table(self) -> PatternTable[AddressConfig]:
        """The addresses' configurations, to be looked up; an address under no pattern has `AddressConfig`'s defaults.

        Raises: ValueError: two patterns are equal.
        """
        return PatternTable((address.pattern, address) for address in self.addresses)

    def with_listeners(self, *urls: str) -> "RouterConfig":
        """The same with more listeners, which have the router's limits and everything else by default.

        Raises: ConfigError: a URL that is none, or that is not on loopback: these listeners ask nobody for a name.
        """
        more = tuple(ListenerConfig(url=url, **self.limits()) for url in urls)  # type: ignore[arg-type]  # int | float
        return replace(self, listeners=(*self.listeners, *more))


def _free_name(stem: str, taken: Sequence[str]) -> str:
    return next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def load(file: Path) -> RouterConfig:
    """Read and check a configuration, and that the files it names can be read.

    Raises: ConfigError: with the file, the key (`listener[0].tls.key`) and the reason.
    """
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(file), "file", error.strerror or str(error)) from None
    except ValueError as error:  # not UTF-8, or not TOML: the message has line and column
        raise ConfigError(str(file), "file", str(error)) from None
    config = parse(raw, file)
    for position, listener in enumerate(config.listeners):
        for name, path in _files(listener):
            _check_readable(path, file, f"listener[{position}].{name}")
        if listener.users is not None:
            _check_users(listener.users, file, f"listener[{position}].users")
    return config


def parse(raw: Mapping[str, object], file: Path) -> RouterConfig:
    """The configuration that a parsed TOML document says; `file` is where relative paths start, and what errors name.

    Raises: ConfigError: as `load`, but no file is looked at.
    """
    unknown = sorted(raw.keys() - _TABLES)
    if unknown:
        raise ConfigError(str(file), unknown[0], f"unknown table; known are {', '.join(_TABLES)}")
    router = read(RouterConfig, raw.get("router", {}), file=file, where="router")
    try:
        return replace(
            router,
            log=read(LogConfig, raw.get("log", {}), file=file, where="log"),
            listeners=tuple(
                read(ListenerConfig, row, file=file, where=f"listener[{position}]", **router.limits())
                for position, row in enumerate(_rows(raw, "listener", file))
            ),
            addresses=tuple(
                read(AddressConfig, row, file=file, where=f"address[{position}]")
                for position, row in enumerate(_rows(raw, "address", file))
            ),
        )
    except ConfigError as error:
        # What the router refuses of its tables together knows no file yet.
        raise ConfigError(str(file), error.key, error.reason) from None


_TABLES = ("router", "log", "listener", "address")


def _rows(raw: Mapping[str, object], name: str, file: Path) -> list[object]:
    rows = raw.get(name, [])
    if not isinstance(rows, list):
        raise ConfigError(str(file), name, f"is a list of tables: [[{name}]]")
    return rows


def _files(listener: ListenerConfig) -> Iterator[tuple[str, Path]]:
    if listener.tls is not None:
        yield "tls.certificate", listener.tls.certificate
        yield "tls.key", listener.tls.key
        if listener.tls.trust is not None:
            yield "tls.trust", listener.tls.trust


def _check_readable(path: Path, file: Path, where: str) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(str(file), where, f"{path}: {error.strerror or error}") from None


def _check_users(path: Path, file: Path, where: str) -> None:
    try:
        Users.load(path)
    except ConfigError as error:
        raise ConfigError(str(file), where, str(error)) from None


def lines(config: RouterConfig) -> Iterator[str]:
    """The configuration as TOML, all defaults included: what `parse` reads as an equal one."""
    yield from written(config, "[router]")
    yield from written(config.log, "\n[log]")
    for listener in config.listeners:
        yield from written(listener, "\n[[listener]]")
    for address in config.addresses:
        yield from written(address, "\n[[address]]")
