"""The translation of a configuration of Qpid Dispatch or Skupper Router as a whole."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.cli.dispatch.address_sections import Addresses
from amqpmesh.router.cli.dispatch.endpoints import USERS_FILE, Endpoints
from amqpmesh.router.cli.dispatch.fates import Account, Fate, LineFate, Reading
from amqpmesh.router.cli.dispatch.secrets_kept import Secrets
from amqpmesh.router.cli.dispatch.tls_profiles import read_profiles
from amqpmesh.router.cli.dispatch.toml_document import TomlDocument
from amqpmesh.router.cli.dispatch.vhost_rights import VhostRights
from amqpmesh.router.config.file import MAX_ID, parse
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.urls import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqpmesh.router.cli.dispatch.conf_syntax import Section

_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "notice": "info", "warning": "warning"}
_SEVERE: Final = {"error": "error", "critical": "error"}

_NO_COUNTERPART: Final[Mapping[str, tuple[Fate, str]]] = {
    "exchange": (Fate.MISSING, "no exchanges: use a multicast address, or a broker"),
    "binding": (Fate.MISSING, "no exchanges: use a multicast address, or a broker"),
    "tcpListener": (Fate.MISSING, "this router relays AMQP alone"),
    "tcpConnector": (Fate.MISSING, "this router relays AMQP alone"),
    "httpListener": (Fate.MISSING, "this router relays AMQP alone"),
    "httpConnector": (Fate.MISSING, "this router relays AMQP alone"),
    "listenerAddress": (Fate.MISSING, "this router relays AMQP alone"),
    "proxyProfile": (Fate.MISSING, "connectors use no proxy"),
    "console": (Fate.NEEDLESS, "there is nothing to set"),
    "site": (Fate.NEEDLESS, "a label, without effect"),
    "network": (Fate.MISSING, "networks of several meshes are joined by [[link]]"),
    "dummy": (Fate.NEEDLESS, "without effect"),
}


@dataclass(frozen=True, slots=True)
class Translation:
    """The result: the text of the configuration, that of the policy file or None, and what became of each line.

    `secrets` are passwords by the names of files to write them to. `advice` is what has to be done by hand.
    """

    config: str
    policy: str | None
    secrets: Mapping[str, str]
    fates: list[LineFate]
    advice: list[str]


def translate(sections: list[Section], source: str) -> Translation:
    """Translate the sections of a file. Args: source: the name of the file, for the first line of the results."""
    return _Translator(source).translated(sections)


class _Translator:
    def __init__(self, source: str) -> None:
        self._account = Account()
        self._document = TomlDocument(first=[f"Made from {source} by `amqpmesh import`."])
        self._router = self._document.add("router")
        self._secrets = Secrets()
        self._endpoints = Endpoints(self._document, self._account, self._secrets, {})
        self._addresses = Addresses(self._endpoints)
        self._vhosts = VhostRights(self._endpoints, self._router)
        self._advice: list[str] = []
        self._level = ""
        self._mesh_keys: dict[str, float] = {}
        self._vhosts.document.first = self._document.first

    def translated(self, sections: list[Section]) -> Translation:
        def of(*kinds: str) -> list[Section]:
            return [section for section in sections if section.kind in kinds]

        known: list[tuple[str, Callable[[Section], None]]] = [
            ("router", self._read_router),
            ("listener", self._endpoints.listener),
            ("connector", self._endpoints.connector),
            ("address", self._addresses.address),
            ("linkRoute", self._addresses.link_route),
            ("autoLink", self._addresses.auto_link),
            ("log", self._read_log),
            ("policy", self._vhosts.policy),
            ("vhost", self._vhosts.vhost),
        ]
        self._endpoints.profiles |= read_profiles(of("sslProfile"), self._account, self._secrets)
        for kind, translator in known:
            for section in of(kind):
                translator(section)
        for section in sections:
            if section.kind not in {"sslProfile", *(kind for kind, _ in known)}:
                fate, words = _NO_COUNTERPART.get(section.kind, (Fate.MISSING, "this section is not known here"))
                self._account.all_of(section, fate, words)
        self._addresses.close()
        self._vhosts.close()
        self._write_mesh()
        if self._level:
            self._document.add("log").keys["level"] = self._level
        if self._endpoints.needs_users:
            self._advice.append(
                f"add the users to {USERS_FILE}: amqpmesh user add NAME (those of Cyrus SASL cannot be read)"
            )
        self._document.order("router", "mesh", "policy", "log", "[listener]", "[connector]", "[link]", "[address]")
        config = self._document.text()
        policy = None if self._vhosts.is_empty else self._vhosts.document.text()
        self._check(config, policy)
        return Translation(config, policy, self._secrets.files, self._account.in_order(), self._advice)

    def _read_router(self, section: Section) -> None:
        reading = Reading(self._account, section.kind, dict(section.attributes))
        self._account.of_section(section, Fate.KEPT, "[router]")
        if given := reading.text("id", reading.text("routerId")):
            name_here = re.sub(r"[^!-~]|[@/#*]", "-", given)[:MAX_ID]
            self._router.keys["id"] = name_here
            for name in ("id", "routerId"):
                if name_here != given:
                    reading.changed(name, f"router.id, as {name_here}: an id has no blanks and no @ / # *")
                reading.kept(name, "router.id")
        mode = reading.text("mode", "standalone")
        if mode == "edge":
            reading.changed("mode", "[mesh]: a whole router of the mesh, which knows all others")
        reading.kept(
            "mode", "no [mesh]" if mode == "standalone" else "[mesh], if a listener or connector is for routers"
        )
        for given, ours in (("helloIntervalSeconds", "hello"), ("helloMaxAgeSeconds", "hold")):
            if number := reading.number(given):
                self._mesh_keys[ours] = float(number)
            reading.kept(given, f"mesh.{ours}")
        if workers := reading.number("workerThreads"):
            self._advice.append(
                f"for {workers} cores: amqpmesh run CONFIG --workers {workers} (one core is the default)"
            )
        reading.changed("workerThreads", "run --workers: a router uses one core unless it is told otherwise")
        if distribution := section.attributes.get("defaultDistribution"):
            self._addresses.default(distribution.text, distribution.line)
        reading.kept("defaultDistribution", "address.distribution of the pattern #")
        for given in (
            "raIntervalSeconds",
            "raIntervalFluxSeconds",
            "remoteLsMaxAgeSeconds",
            "unreachableHoldoffSeconds",
        ):
            reading.needless(given, "routers tell each other of changes as they come")
        for given in ("saslConfigDir", "saslConfigPath", "saslConfigName"):
            reading.changed(given, "users are in the file that listener.users names, and Cyrus SASL is not used")
        for given in ("timestampsInUTC", "timestampFormat", "debugDumpFile", "debugDump", "metadata", "area", "vanId"):
            reading.needless(given, "logs have times in UTC, in one format; labels have no effect")
        for given in (
            "allowResumableLinkRoute",
            "allowUnsettledMulticast",
            "dataConnectionCount",
            "dropTcpConnections",
            "name",
        ):
            reading.needless(given, "there is nothing to set")
        reading.close()

    def _read_log(self, section: Section) -> None:
        reading = Reading(self._account, section.kind, dict(section.attributes))
        self._account.of_section(section, Fate.KEPT, "[log]")
        module = reading.text("module")
        words = {**_LEVELS, **_SEVERE}
        levels = [words[name] for each in reading.words("enable") if (name := each.rstrip("+")) in words]
        if module.upper() == "DEFAULT" and levels:
            self._level = min(levels, key=["debug", "info", "warning", "error"].index)
            for given in ("module", "enable"):
                reading.kept(given, "log.level")
        for given in ("module", "enable"):
            reading.changed(given, "there is one level for all parts of the router: that of DEFAULT")
        for given in ("outputFile", "output"):
            reading.missing(given, "the log goes to standard error: redirect it there, or let systemd keep it")
        for given in ("includeTimestamp", "includeSource", "timestamp", "source"):
            reading.needless(given, "each line has its time and its event")
        reading.needless("name", "there is one log")
        reading.close()

    def _write_mesh(self) -> None:
        hosts = self._endpoints.mesh_hosts
        if not hosts:
            return
        mesh = self._document.add("mesh")
        if not self._endpoints.mesh_has_tls and all(map(is_loopback, hosts)):
            mesh.keys["insecure"] = True
        else:
            named = self._router.keys.get("id", "ID")
            mesh.keys.update(certificate=f"{named}.pem", key=f"{named}.key", trust="mesh-ca.pem")
            for table in self._document.tables:
                if table.keys.get("role") == "mesh":
                    table.keys["url"] = re.sub("^amqp:", "amqps:", str(table.keys["url"]))
            self._advice.append(
                "routers prove who they are by certificates that name them: amqpmesh ca init --mesh NAME, then "
                f"amqpmesh ca issue {named}; the other routers of the mesh have to be amqpmesh, too"
            )
        mesh.keys.update(self._mesh_keys)

    def _check(self, config: str, policy: str | None) -> None:
        """Check the results as `run` would. What is wrong with them is to be mended by hand."""
        try:
            parse(tomllib.loads(config), Path("amqpmesh.toml"))
            if policy is not None:
                parse_policy(tomllib.loads(policy), Path("policy.toml"))
        except ConfigError as error:
            self._advice.append(f"the result is not valid yet: {error}")
