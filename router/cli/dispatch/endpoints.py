"""The sections `listener` and `connector`, as tables `[[listener]]` and `[[connector]]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.router.cli.dispatch.fates import Fate, Reading
from amqpmesh.router.config.listener import MECHANISMS, PASSWORD_MECHANISMS
from amqpmesh.router.config.urls import DEFAULT_PORTS, is_loopback

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.conf_syntax import Section
    from amqpmesh.router.cli.dispatch.fates import Account
    from amqpmesh.router.cli.dispatch.secrets_kept import Secrets
    from amqpmesh.router.cli.dispatch.tls_profiles import TlsProfile
    from amqpmesh.router.cli.dispatch.toml_document import TomlDocument, TomlTable

USERS_FILE: Final = "users.toml"

MESH_ROLES: Final = ("inter-router", "edge", "inter-edge", "inter-network")
CONTAINER_ROLES: Final = ("route-container", "on-demand", "normal")

_MOST_CHANNELS: Final = 65536
_ALL_HOSTS: Final = "0.0.0.0"  # noqa: S104  # an empty host stands for that

_ON_BOTH_MISSING: Final = {
    "linkCapacity": "credit is given by addresses: max_credit of [[address]]",
    "messageLoggingComponents": "messages are not logged; [telemetry] records deliveries without their content",
    "openProperties": "no properties of one's own are sent in the open",
    "socketAddressFamily": "a host's name stands for all its addresses: write the address",
    "protocolFamily": "a host's name stands for all its addresses: write the address",
}


@dataclass(slots=True)
class Endpoints:
    """The listeners and connectors of a file, for the tables that depend on them."""

    document: TomlDocument
    account: Account
    secrets: Secrets
    profiles: dict[str, TlsProfile]
    containers: dict[str, TomlTable] = field(default_factory=dict)
    """The tables of connectors to containers, by the names that they had."""
    mesh_hosts: list[str] = field(default_factory=list)
    mesh_has_tls: bool = False
    needs_users: bool = False
    by_hostname: bool = False
    """True if a listener keeps the addresses of virtual hosts apart."""
    policy_listeners: dict[str, str] = field(default_factory=dict)
    """The virtual host that a listener chooses for all its clients, by the listener's name."""

    def listener(self, section: Section) -> None:
        """Translate a listener."""
        reading = Reading(self.account, section.kind, dict(section.attributes))
        if reading.is_true("http"):
            self.account.all_of(section, Fate.MISSING, _HTTP)
            return
        table = self.document.add("[listener]", f"{section.kind}, {section.line}")
        role, is_mesh = reading.text("role", "normal"), reading.text("role") in MESH_ROLES
        self.account.of_section(section, Fate.KEPT, "[[listener]]")
        profile = self._profile(reading)
        host = reading.text("host", reading.text("addr"))
        secure = is_mesh or reading.is_true("requireSsl") or reading.is_true("requireEncryption")
        scheme = "amqps" if profile is not None and secure else "amqp"
        self._url(reading, table, scheme, host or _ALL_HOSTS)
        self._name(reading, table)
        if is_mesh:
            self._mesh(reading, table, role, host, profile)
            for given in ("saslMechanisms", "authenticatePeer", "requireSsl", "requireEncryption"):
                reading.needless(given, "[mesh] says how routers prove who they are")
        else:
            if role == "normal":
                reading.kept("role", "a listener is for clients unless it says otherwise")
            else:
                reading.changed("role", "a container that connects here is a client, and gets no links of the router")
            reading.needless("cost", "the cost is that of a neighbour")
            self._authentication(reading, table, profile, is_loopback(host))
        self._limits(reading, table)
        if reading.number("initialHandshakeTimeoutSeconds"):
            table.keys["open_time_out"] = float(reading.number("initialHandshakeTimeoutSeconds") or 0)
            reading.kept("initialHandshakeTimeoutSeconds", "listener.open_time_out")
        reading.changed("initialHandshakeTimeoutSeconds", "open_time_out is 10 s unless the file says otherwise")
        if reading.is_true("multiTenant"):
            self.by_hostname = True
            reading.changed("multiTenant", "the tenants of the policy: a peer's hostname chooses its tenant")
        reading.needless("multiTenant", "without tenants all clients share the addresses")
        if host := reading.text("policyVhost"):
            name = table.keys.setdefault("name", f"{scheme}-{section.line.number}")
            self.policy_listeners[str(name)] = host
            reading.changed("policyVhost", "the tenant of the policy that has this listener in its match")
        reading.missing("failoverUrls", "clients are told of no other routers: give them several URLs")
        for given in ("healthz", "metrics", "websockets", "http", "httpRootDir", "httpRoot"):
            reading.needless(given, "this listener has no HTTP")
        self._rest(reading)

    def connector(self, section: Section) -> None:
        """Translate a connector."""
        reading = Reading(self.account, section.kind, dict(section.attributes))
        table = self.document.add("[connector]", f"{section.kind}, {section.line}")
        self.account.of_section(section, Fate.KEPT, "[[connector]]")
        role = reading.text("role", "normal")
        profile = self._profile(reading)
        host = reading.text("host", reading.text("addr", "127.0.0.1"))
        self._url(reading, table, "amqps" if profile is not None else "amqp", host)
        self._name(reading, table)
        if role in MESH_ROLES:
            self._mesh(reading, table, role, host, profile)
            for given in ("saslMechanisms", "saslUsername", "saslPassword", "verifyHostname", "allowRedirect"):
                reading.needless(given, "[mesh] says how routers prove who they are")
        else:
            self._container(reading, table, host, profile)
        self._limits(reading, table)
        reading.missing("proxyProfile", "connectors use no proxy")
        reading.missing("policyVhost", "containers that a connector connects to are not under the policy")
        self._rest(reading)

    def _profile(self, reading: Reading) -> TlsProfile | None:
        name = reading.text("sslProfile")
        profile = self.profiles.get(name) if name else None
        if name and profile is None:
            reading.missing("sslProfile", "the file has no such sslProfile")
        reading.kept("sslProfile", "the table tls")
        return profile

    def _url(self, reading: Reading, table: TomlTable, scheme: str, host: str) -> None:
        port = reading.text("port", "amqp")
        number = str(DEFAULT_PORTS.get(port, port))
        bare = host.strip("[]")
        table.keys["url"] = f"{scheme}://{f'[{bare}]' if ':' in bare else bare}:{number}"
        if number.isdigit():
            reading.kept("port", "url")
        else:
            table.keys["url"] = f"{scheme}://{bare}"
            reading.missing("port", "write the number: only amqp and amqps are known as names of ports")

    def _name(self, reading: Reading, table: TomlTable) -> None:
        if name := reading.text("name"):
            table.keys["name"] = name
            reading.kept("name", "its name")

    def _mesh(self, reading: Reading, table: TomlTable, role: str, host: str, profile: TlsProfile | None) -> None:
        table.keys["role"] = "mesh"
        self.mesh_hosts.append(host)
        self.mesh_has_tls |= profile is not None
        if role == "inter-router":
            reading.kept("role", 'role = "mesh"')
        else:
            reading.changed("role", 'role = "mesh": each router is a whole router of the mesh, and knows all others')
        reading.changed("sslProfile", "[mesh] has the certificate of the router, for all its neighbours")
        if (cost := reading.number("cost")) is not None:
            table.keys["cost"] = cost
            reading.changed("cost", "the cost of this direction alone: give both ends of a connection the same")

    def _container(self, reading: Reading, table: TomlTable, host: str, profile: TlsProfile | None) -> None:
        table.keys["role"] = "container"
        self.containers[reading.text("name", host)] = table
        reading.kept("role", 'role = "container"')
        reading.needless("cost", "the cost is that of a neighbour")
        if profile is not None:
            if profile.has_password:
                reading.changed("sslProfile", "the table tls; the key has to be without a password")
            if profile.files:
                table.keys["tls"] = dict(profile.files)
        if reading.is_true("verifyHostname", default=True):
            reading.kept("verifyHostname", "it always is verified")
        reading.missing("verifyHostname", "the name in the certificate always is verified")
        if user := reading.text("saslUsername"):
            table.keys["user"] = user
            reading.kept("saslUsername", "connector.user")
        if password := reading.text("saslPassword"):
            table.keys["password"] = self.secrets.source(password, str(table.keys.get("name", host)))
            reading.changed("saslPassword", f"connector.password; {self.secrets.WORDS}")
        reading.changed("saslMechanisms", "the strongest that the peer offers: SCRAM, PLAIN; EXTERNAL; ANONYMOUS")
        if reading.is_true("allowRedirect"):
            table.keys["redirects"] = ["*"]
            reading.kept("allowRedirect", 'redirects = ["*"]')
        reading.kept("allowRedirect", "no redirect is followed to another host")

    def _authentication(self, reading: Reading, table: TomlTable, profile: TlsProfile | None, is_local: bool) -> None:
        demanded = reading.is_true("authenticatePeer")
        named = reading.words("saslMechanisms")
        known = [name for name in named if name in MECHANISMS]
        if demanded and "ANONYMOUS" in known:
            known.remove("ANONYMOUS")
        if not named and demanded:
            known = ["SCRAM-SHA-256", *(("PLAIN", "EXTERNAL") if profile is not None else ())]
        asks = profile is not None and "trust" in profile.files and "EXTERNAL" in known
        if "EXTERNAL" in known and not asks:
            known.remove("EXTERNAL")
        if demanded and not known:  # none of those that are named can be offered: nobody gets in without one
            known = ["SCRAM-SHA-256"]
        if not demanded and "ANONYMOUS" not in known:
            known.append("ANONYMOUS")
        if known != ["ANONYMOUS"]:
            table.keys["sasl"] = known
        if unknown := [name for name in named if name not in known]:
            left_out = f"left out, since they cannot be offered here: {', '.join(unknown)}"
            reading.changed("saslMechanisms", f"listener.sasl; {left_out}")
        reading.kept("saslMechanisms", "listener.sasl")
        if demanded:
            reading.kept("authenticatePeer", "listener.sasl without ANONYMOUS")
        reading.kept("authenticatePeer", "listener.sasl with ANONYMOUS: clients may come without a login")
        if PASSWORD_MECHANISMS & set(known):
            table.keys["users"] = USERS_FILE
            self.needs_users = True
        client = "none"
        if asks:
            client = "required" if known == ["EXTERNAL"] else "optional"
        if profile is not None:
            table.keys["tls"] = profile.for_listener(client)
        if str(table.keys["url"]).startswith("amqps"):
            for given in ("requireSsl", "requireEncryption"):
                reading.kept(given, "the listener's url is amqps")
        elif profile is not None:
            reading.changed("sslProfile", "the table tls; clients ask for TLS by AMQP's own header (§5.2): see amqps")
        for given in ("requireSsl", "requireEncryption"):
            if reading.is_true(given) and profile is None:
                reading.missing(given, "TLS needs a certificate: the listener has no sslProfile")
            reading.kept(given, "TLS is not demanded")
        if not is_local and ("ANONYMOUS" in known or ("PLAIN" in known and profile is None)):
            table.keys["insecure"] = True
            for given in ("host", "addr"):
                reading.changed(given, "url; insecure = true, since other hosts get in without a login, or without TLS")

    def _limits(self, reading: Reading, table: TomlTable) -> None:
        for given, ours, is_seconds in (
            ("maxFrameSize", "max_frame_size", False),
            ("idleTimeoutSeconds", "idle_time_out", True),
        ):
            if (number := reading.number(given)) is not None:
                table.keys[ours] = float(number) if is_seconds else max(number, 512)
                reading.kept(given, ours)
        sessions, frames = reading.number("maxSessions"), reading.number("maxSessionFrames")
        if sessions:
            table.keys["channel_max"] = min(sessions, _MOST_CHANNELS) - 1
            reading.kept("maxSessions", "channel_max, which is one less")
        if frames:
            table.keys["session_window"] = frames
            reading.kept("maxSessionFrames", "session_window")
        for given in ("maxSessions", "maxSessionFrames"):
            reading.needless(given, "0 stands for the default")

    def _rest(self, reading: Reading) -> None:
        for given in ("host", "addr"):
            reading.kept(given, "url")
        for given, words in _ON_BOTH_MISSING.items():
            reading.missing(given, words)
        reading.needless("stripAnnotations", "the router adds no annotations to messages that clients see")
        reading.close()


_HTTP: Final = "this listener speaks HTTP or WebSocket; give the router a listener of its own for that"
