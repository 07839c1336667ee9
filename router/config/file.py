"""The configuration of a router, and the file that holds it.

Each key of the file is the keyword of the same name in one of the tables; import the tables from here. A key can be
written with hyphens or with underscores, `dead-letter` or `dead_letter`. An unknown key is an error, and so is a key in
both spellings. Paths are relative to the file, times are in seconds (floats), sizes in bytes.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.address import AddressConfig, Duplicates, Overflow, Resumption
from amqpmesh.router.config.connector import ConnectorConfig, ConnectorTlsConfig, LinkConfig, PasswordConfig, Watch
from amqpmesh.router.config.consistency import disagreements, free_name, unbound
from amqpmesh.router.config.http import HttpConfig, WebSocketConfig
from amqpmesh.router.config.limits import Limits
from amqpmesh.router.config.listener import MECHANISMS, ListenerConfig, TlsConfig
from amqpmesh.router.config.mesh import MeshConfig, WorkerConfig
from amqpmesh.router.config.oauth import TokenIssuerConfig, TokenKeyConfig, TokensConfig
from amqpmesh.router.config.observability import AuditConfig, LogConfig, MetricsConfig, TelemetryConfig, TracingConfig
from amqpmesh.router.config.policy_file import PolicyConfig
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.config.redirect import ElsewhereConfig, PlaceConfig, RedirectConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.config.tables import Effect, Table, declared, parsed, read, rows, setting, table, written
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.users import Users

__all__ = [
    "DEFAULT_URL",
    "MECHANISMS",
    "AddressConfig",
    "AuditConfig",
    "ConnectorConfig",
    "ConnectorTlsConfig",
    "Duplicates",
    "ElsewhereConfig",
    "HttpConfig",
    "Limits",
    "LinkConfig",
    "ListenerConfig",
    "LogConfig",
    "MeshConfig",
    "MetricsConfig",
    "Overflow",
    "PasswordConfig",
    "PlaceConfig",
    "PolicyConfig",
    "RedirectConfig",
    "Resumption",
    "ResumptionConfig",
    "RouterConfig",
    "TelemetryConfig",
    "TlsConfig",
    "TokenIssuerConfig",
    "TokenKeyConfig",
    "TokensConfig",
    "Watch",
    "WebSocketConfig",
    "WorkerConfig",
    "default_id",
    "lines",
    "load",
    "parse",
]

MAX_ID = 255
"""The longest router id, in characters: it is in each frame that opens a connection, and in addresses."""

#: The table of patterns, among the attributes of a configuration.
_PATTERNS = "__patterns"

DEFAULT_URL = "amqp://127.0.0.1:5672"

T = TypeVar("T", bound=Table)


def _id_refusal(id: str) -> str | None:
    if not re.fullmatch(r"[!-~]+", id):
        return "must be printable ASCII without spaces, and not empty"
    if len(id) > MAX_ID:
        return f"must be at most {MAX_ID} characters"
    # An address splits at its last @; * and # are patterns; / parts tokens.
    forbidden = sorted(set(id) & set("@/#*"))
    return f"must be without {' '.join(forbidden)}" if forbidden else None


def _places_refusal(urls: tuple[str, ...]) -> str | None:
    for position, url in enumerate(urls):
        try:
            found = Endpoint.parse(url)
        except ValueError as error:
            return f"{url!r} {error}"
        if not found.port:
            return f"{url!r} needs a port to connect to"
        if url in urls[:position]:
            return f"names {url} twice"
    return None


def default_id() -> str:
    """Return the host's name, without the characters that a router id cannot have."""
    return re.sub(r"[^!-~]|[@/#*]", "-", socket.gethostname())[:MAX_ID] or "router"


@table
class RouterConfig(Limits):
    """A whole configuration.

    `mesh`, `policy`, `tokens`, `token_issuers`, `token_keys`, `listeners`, `connectors`, `container_links`,
    `addresses`, `elsewhere`, `log`, `audit`, `telemetry`, `metrics`, `tracing` and `resumption` are tables of their own
    in the file.
    `worker` is not in the file: see `router.config.workers`.
    """

    EFFECT = Effect.AT_ONCE
    RESTART = "its peers know the router by it"

    id: str = setting(factory=default_id, check=_id_refusal, effect=Effect.RESTART)
    drain: float = setting(default=5.0, low=0.0, high=3600.0)
    drain_timeout: float = setting(default=0.0, low=0.0, high=86_400.0)
    drain_pace: float = setting(default=0.1, low=0.001, high=1.0)
    drain_to: tuple[str, ...] = setting(default=(), check=_places_refusal)
    theft_wait: float = setting(default=0.25, low=0.0, high=60.0)
    memory: int = setting(default=256 * 2**20, low=2**20)
    connections: int = setting(default=10_000, low=1)
    login_failures: int = setting(default=3, low=1)
    login_tenant_failures: int = setting(default=100, low=1)
    login_wait: float = setting(default=30.0, low=0.0, high=3600.0)
    login_memory: int = setting(default=10_000, low=1)
    login_queue: int = setting(default=1_000, low=1)
    login_checks: int = setting(default=16, low=1)
    login_check_time: float = setting(default=10.0, low=0.001, high=3600.0)
    runtime_tables: int = setting(default=1_000, low=0)
    runtime_users: int = setting(default=10_000, low=0)
    mesh: MeshConfig | None = setting(default=None, apart=True)
    policy: PolicyConfig | None = setting(default=None, apart=True)
    tokens: TokensConfig = setting(factory=TokensConfig, apart=True)
    token_issuers: tuple[TokenIssuerConfig, ...] = setting(default=(), apart=True)
    token_keys: tuple[TokenKeyConfig, ...] = setting(default=(), apart=True)
    listeners: tuple[ListenerConfig, ...] = setting(default=(), apart=True)
    connectors: tuple[ConnectorConfig, ...] = setting(default=(), apart=True)
    container_links: tuple[LinkConfig, ...] = setting(default=(), apart=True)
    addresses: tuple[AddressConfig, ...] = setting(default=(), apart=True)
    elsewhere: ElsewhereConfig = setting(factory=ElsewhereConfig, apart=True)
    log: LogConfig = setting(factory=LogConfig, apart=True)
    audit: AuditConfig | None = setting(default=None, apart=True)
    telemetry: TelemetryConfig | None = setting(default=None, apart=True)
    metrics: MetricsConfig = setting(factory=MetricsConfig, apart=True)
    tracing: TracingConfig = setting(factory=TracingConfig, apart=True)
    resumption: ResumptionConfig = setting(factory=ResumptionConfig, apart=True)
    worker: WorkerConfig | None = setting(default=None, apart=True)

    def __post_init__(self) -> None:
        """Check the tables, and name those without a name.

        A listener is named after its scheme, `amqp`, `amqp-2`, a connector after its first host, a link after its
        address.
        """
        super().__post_init__()
        for key, reason in disagreements(self):
            raise ConfigError(type(self).__name__, key, reason)
        for key, stem in (
            ("listeners", lambda listener: listener.endpoint.scheme),
            ("connectors", lambda connector: connector.places[0].host),
            ("container_links", lambda link: link.address),
        ):
            object.__setattr__(self, key, _with_names(getattr(self, key), stem))
        for key, reason in unbound(self):
            raise ConfigError(type(self).__name__, key, reason)

    @property
    def names(self) -> frozenset[str]:
        """The names of this router in addresses: its id; for a worker also the id of the router that it is part of."""
        return frozenset({self.id} if self.worker is None else {self.id, self.worker.name})

    @property
    def workers(self) -> int:
        """The number of processes that the router has together; 1: it is no worker."""
        return 1 if self.worker is None else self.worker.count

    def address_table(self) -> PatternTable[AddressConfig]:
        """Return the tables of addresses by pattern. An address that matches no pattern has the defaults of
        `AddressConfig`.

        It is made once: with thousands of patterns that takes too long to be done beside connections.
        Raises: ValueError: two patterns are equal.
        """
        known: PatternTable[AddressConfig] | None = vars(self).get(_PATTERNS)
        if known is None:
            known = PatternTable((address.pattern, address) for address in self.addresses)
            vars(self)[_PATTERNS] = known
        return known

    def with_listeners(self, *urls: str) -> "RouterConfig":
        """Return this configuration with further listeners. They have the router's limits, and defaults otherwise.

        Raises: ConfigError: a malformed URL, or one that is not on loopback: these listeners authenticate nobody.
        """
        more = tuple(
            ListenerConfig(url=url, connections=self.connections, **self.limits())  # type: ignore[arg-type]  # numbers
            for url in urls
        )
        return replace(self, listeners=(*self.listeners, *more))

    def with_connectors(self, *urls: str) -> "RouterConfig":
        """Return this configuration with further connectors to routers of the mesh. They have the router's limits.

        Raises: ConfigError: a malformed URL, or one that does not fit the mesh.
        """
        more = tuple(ConnectorConfig(url=url, **self.limits()) for url in urls)  # type: ignore[arg-type]  # numbers
        return replace(self, connectors=(*self.connectors, *more))

    def with_more(
        self,
        listeners: Sequence[str | ListenerConfig],
        connectors: Sequence[str | ConnectorConfig],
        container_links: Sequence[LinkConfig],
    ) -> "RouterConfig":
        """Return this configuration with further listeners, connectors and links. Args: texts are URLs, as above.

        Raises: ConfigError: as above.
        """
        config = self
        for listener in listeners:
            if isinstance(listener, str):
                config = config.with_listeners(listener)
            else:
                config = replace(config, listeners=(*config.listeners, listener))
        for connector in connectors:
            if isinstance(connector, str):
                config = config.with_connectors(connector)
            else:
                config = replace(config, connectors=(*config.connectors, connector))
        if container_links:
            config = replace(config, container_links=(*config.container_links, *container_links))
        return config


def _with_names(tables: Sequence[Any], stem: Callable[[Any], str]) -> tuple[Any, ...]:
    """Return the tables with names: a table without one gets the name of `stem`.

    If a name is taken, a number is added: see `free_name`.
    """
    taken = [each.name for each in tables if each.name]
    named = []
    for each in tables:
        name = each.name or free_name(stem(each), taken)
        taken.append(name)
        named.append(each if each.name == name else replace(each, name=name))
    return tuple(named)


def load(file: Path) -> RouterConfig:
    """Read and check a configuration, and that the files it names can be read.

    Raises: ConfigError: with the file, the key (`listener[0].tls.key`) and the reason.
    """
    config = parse(parsed(file), file)
    if config.mesh is not None:
        _check_files(config.mesh, file, "mesh")
    policy = config.policy
    if policy is not None:
        _check_content(lambda _: read_policy(policy, config.mesh), policy.file, file, "policy.file")
    for key, tables in (("token_issuer", config.token_issuers), ("token_key", config.token_keys)):
        for position, each in enumerate(tables):
            _check_files(each, file, f"{key}[{position}]")
    for position, listener in enumerate(config.listeners):
        _check_files(listener, file, f"listener[{position}]")
        if not any(listener.users_files == each.users_files for each in config.listeners[:position]):
            _check_users(listener.users_files, file, f"listener[{position}].users")
    for position, connector in enumerate(config.connectors):
        _check_files(connector, file, f"connector[{position}]")
    return config


def parse(raw: Mapping[str, object], file: Path) -> RouterConfig:
    """Return the configuration in a parsed TOML document. Args: file: relative paths start at its folder; errors name
    it.

    Raises: ConfigError: as `load`, but other files are not read.
    """
    unknown = sorted(raw.keys() - _TABLES)
    if unknown:
        raise ConfigError(str(file), unknown[0], f"unknown table; known are {', '.join(_TABLES)}")
    router = read(RouterConfig, raw.get("router", {}), file=file, where="router")
    limits = router.limits()

    def listed(kind: type[T], name: str, **given: object) -> tuple[T, ...]:
        return tuple(each for _, each in rows(kind, raw, name, file=file, **given))

    try:
        return replace(
            router,
            log=read(LogConfig, raw.get("log", {}), file=file, where="log"),
            audit=read(AuditConfig, raw["audit"], file=file, where="audit") if "audit" in raw else None,
            mesh=read(MeshConfig, raw["mesh"], file=file, where="mesh") if "mesh" in raw else None,
            policy=read(PolicyConfig, raw["policy"], file=file, where="policy") if "policy" in raw else None,
            telemetry=(
                read(TelemetryConfig, raw["telemetry"], file=file, where="telemetry") if "telemetry" in raw else None
            ),
            metrics=read(MetricsConfig, raw.get("metrics", {}), file=file, where="metrics"),
            tracing=read(TracingConfig, raw.get("tracing", {}), file=file, where="tracing"),
            resumption=read(ResumptionConfig, raw.get("resumption", {}), file=file, where="resumption"),
            tokens=read(TokensConfig, raw.get("tokens", {}), file=file, where="tokens"),
            token_issuers=listed(TokenIssuerConfig, "token_issuer"),
            token_keys=listed(TokenKeyConfig, "token_key"),
            listeners=listed(ListenerConfig, "listener", connections=router.connections, **limits),
            connectors=listed(ConnectorConfig, "connector", **limits),
            container_links=listed(LinkConfig, "link"),
            addresses=listed(AddressConfig, "address"),
            elsewhere=read(ElsewhereConfig, raw.get("elsewhere", {}), file=file, where="elsewhere"),
        )
    except ConfigError as error:
        # Errors about several tables do not name the file yet.
        raise ConfigError(str(file), error.key, error.reason) from None


#: The tables that are there once, in the order of a written file.
_SINGLE: Final = (
    "log",
    "elsewhere",
    "audit",
    "telemetry",
    "metrics",
    "tracing",
    "resumption",
    "mesh",
    "policy",
    "tokens",
)

_TABLES: Final = ("router", *_SINGLE, "token_issuer", "token_key", "listener", "connector", "link", "address")


def _files(shown: Table, where: str) -> Iterator[tuple[str, Path]]:
    for item in declared(type(shown)):
        value = getattr(shown, item.name)
        if isinstance(value, Path):
            yield f"{where}.{item.name}", value
        elif isinstance(value, Table):
            yield from _files(value, f"{where}.{item.name}")
        elif isinstance(value, tuple):
            for position, each in enumerate(value):
                if isinstance(each, Table):
                    yield from _files(each, f"{where}.{item.name}[{position}]")


def _check_files(shown: Table, file: Path, where: str) -> None:
    """Check that the files that a table names can be read."""
    for key, path in _files(shown, where):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(str(file), key, f"{path}: {error.strerror or error}") from None


def _check_content(load: Callable[[Path], object], path: Path, file: Path, where: str) -> None:
    try:
        load(path)
    except ConfigError as error:
        raise ConfigError(str(file), where, str(error)) from None


def _check_users(users: tuple[Path, ...], file: Path, where: str) -> None:
    if users:
        _check_content(lambda _: Users.load(*users), users[0], file, where)


def lines(config: RouterConfig, *, brief: bool = False) -> Iterator[str]:
    """Return the configuration as TOML. `parse` reads it as an equal one.

    Args: brief: without keys and tables that have their defaults; otherwise all defaults are there, too.
    """
    none: Mapping[str, object] | None = {} if brief else None
    limits: Mapping[str, object] | None = {"connections": config.connections, **config.limits()} if brief else None
    yield from written(config, "[router]", none)
    for name in _SINGLE:
        found = getattr(config, name)
        if found is not None and _is_shown(config, name, found, brief=brief):
            yield from written(found, f"\n[{name}]", none)
    for heading, tables in (
        ("token_issuer", config.token_issuers),
        ("token_key", config.token_keys),
        ("listener", config.listeners),
        ("connector", config.connectors),
        ("link", config.container_links),
        ("address", config.addresses),
    ):
        for each in tables:
            yield from written(each, f"\n[[{heading}]]", limits if isinstance(each, Limits) else none)


def _is_shown(config: RouterConfig, name: str, found: Table, *, brief: bool) -> bool:
    """Tell whether a table that is there once is a part of the text."""
    if brief and name in ("log", "elsewhere", "metrics", "tracing", "resumption", "tokens") and found == type(found)():
        return False
    if name == "metrics":
        return brief or any(each.is_http for each in config.listeners)
    return name != "tokens" or brief or bool(config.token_issuers or config.token_keys)
