"""The sections `address`, `linkRoute` and `autoLink`, as tables `[[address]]` and `[[link]]`.

A waypoint, whose messages go to a broker's queue and come back from it, and a link route, whose links a container gets,
both become a redirect that the router follows: senders and receivers of the address are served by the container's node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.router.cli.dispatch.fates import Fate, Reading
from amqpmesh.router.config.urls import Endpoint

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.conf_syntax import Line, Section
    from amqpmesh.router.cli.dispatch.endpoints import Endpoints
    from amqpmesh.router.cli.dispatch.toml_document import TomlTable, Value

_DISTRIBUTIONS: Final = ("multicast", "closest", "balanced", "unavailable")


@dataclass(slots=True)
class _AutoLink:
    """An `autoLink`, until it is known whether another one goes the other way."""

    section: Section
    reading: Reading
    address: str
    node: str
    is_in: bool
    connector: TomlTable


@dataclass(slots=True)
class Addresses:
    """The addresses of a file."""

    endpoints: Endpoints
    _by_pattern: dict[str, TomlTable] = field(default_factory=dict)
    _auto_links: list[_AutoLink] = field(default_factory=list)

    def default(self, distribution: str, line: Line) -> None:
        """Write the distribution of all addresses that have no table of their own."""
        if distribution in _DISTRIBUTIONS and distribution != "balanced":
            self._table("#", f"router.defaultDistribution, {line}").keys["distribution"] = distribution

    def address(self, section: Section) -> None:
        """Translate an `address`."""
        reading = Reading(self.endpoints.account, section.kind, dict(section.attributes))
        patterns = self._patterns(reading)
        if not patterns:
            self.endpoints.account.all_of(section, Fate.MISSING, "it has neither prefix nor pattern")
            return
        tables = [self._table(pattern, f"{section.kind}, {section.line}") for pattern in patterns]
        self.endpoints.account.of_section(section, Fate.KEPT, "[[address]]")
        distribution = reading.text("distribution", "balanced")
        if distribution in _DISTRIBUTIONS:
            for table in tables:
                table.keys["distribution"] = distribution
            reading.kept("distribution", "address.distribution")
        if reading.is_true("waypoint") or reading.number("ingressPhase") or reading.number("egressPhase"):
            for given in ("waypoint", "ingressPhase", "egressPhase"):
                reading.changed(given, "with an autoLink each way: a redirect that the router follows, to the broker")
        for given in ("waypoint", "ingressPhase", "egressPhase"):
            reading.needless(given, "an address is no waypoint unless a link makes it one")
        reading.missing("priority", "messages have the priority of their header; addresses have none")
        for given in ("enableFallback", "fallback"):
            if reading.is_true(given):
                reading.missing(given, "senders wait until a receiver is there; see dead_letter for what expires")
            reading.needless(given, "there is no fallback")
        reading.needless("name", "a pattern is its own name")
        reading.close()

    def link_route(self, section: Section) -> None:
        """Translate a `linkRoute`."""
        reading = Reading(self.endpoints.account, section.kind, dict(section.attributes))
        patterns, connector = self._patterns(reading), self._connector(reading)
        if not patterns or connector is None:
            why = "it has neither prefix nor pattern" if not patterns else _NO_CONNECTOR
            self.endpoints.account.all_of(section, Fate.MISSING, why)
            return
        words = "redirect of [[address]], which the router follows in both directions"
        self.endpoints.account.of_section(section, Fate.CHANGED, words)
        for pattern in patterns:
            self._table(pattern, f"{section.kind}, {section.line}").keys["redirect"] = _followed(connector)
        for given in ("direction", "dir"):
            reading.changed(given, "both directions go to the container")
        for given in ("addExternalPrefix", "delExternalPrefix"):
            reading.missing(given, "the container's node has the name that clients use")
        reading.kept("distribution", "a link goes to the one container")
        reading.needless("name", "a pattern is its own name")
        reading.close()

    def auto_link(self, section: Section) -> None:
        """Take an `autoLink` down. `close` translates it."""
        reading = Reading(self.endpoints.account, section.kind, dict(section.attributes))
        address = reading.text("address", reading.text("addr"))
        direction = reading.text("direction", reading.text("dir"))
        connector = self._connector(reading)
        if not address or connector is None or direction not in ("in", "out"):
            why = _NO_CONNECTOR if connector is None else "it has no address, or no direction"
            self.endpoints.account.all_of(section, Fate.MISSING, why)
            return
        node = reading.text("externalAddress", reading.text("externalAddr", address))
        self._auto_links.append(_AutoLink(section, reading, address, node, direction == "in", connector))

    def close(self) -> None:
        """Translate the links: two that go both ways between an address and one container's node are a redirect."""
        while self._auto_links:
            first = self._auto_links.pop(0)
            back = next((each for each in self._auto_links if _go_both_ways(first, each)), None)
            if back is None:
                self._link(first)
            else:
                self._auto_links.remove(back)
                self._waypoint(first, back)

    def _link(self, link: _AutoLink) -> None:
        self.endpoints.account.of_section(link.section, Fate.KEPT, "[[link]]")
        table = self.endpoints.document.add("[link]", f"autoLink, {link.section.line}")
        table.keys["connector"] = _name(link.connector)
        if name := link.reading.text("name"):
            table.keys["name"] = name
        table.keys["source" if link.is_in else "target"] = link.node
        table.keys["address"] = link.address
        self._say(link, "source" if link.is_in else "target")

    def _waypoint(self, one: _AutoLink, other: _AutoLink) -> None:
        words = "redirect of [[address]], which the router follows: the broker's node serves senders and receivers"
        table = self._table(one.address, f"autoLink, {one.section.line} and {other.section.line}")
        table.keys["redirect"] = _followed(one.connector, one.node if one.node != one.address else "")
        for link in (one, other):
            self.endpoints.account.of_section(link.section, Fate.CHANGED, words)
            self._say(link, "redirect")

    def _say(self, link: _AutoLink, where: str) -> None:
        reading = link.reading
        for given in ("address", "addr"):
            reading.kept(given, "address")
        for given in ("direction", "dir", "externalAddress", "externalAddr"):
            reading.kept(given, where)
        reading.needless("phase", "an address has no phases")
        reading.missing("fallback", "senders wait until a receiver is there")
        reading.kept("name", "its name")
        reading.close()

    def _table(self, pattern: str, comment: str) -> TomlTable:
        table = self._by_pattern.get(pattern)
        if table is None:
            table = self._by_pattern[pattern] = self.endpoints.document.add("[address]", comment)
            table.keys["pattern"] = pattern
        return table

    def _patterns(self, reading: Reading) -> list[str]:
        """Return the patterns. For the two routers `/` and `.` are the same separator; here they are two."""
        if prefix := reading.text("prefix").rstrip("/."):
            reading.kept("prefix", "address.pattern: one for each separator, / and .")
            return [f"{prefix}/#", f"{prefix}.#"]
        pattern = reading.text("pattern")
        if "/" in pattern or "." in pattern:
            reading.changed("pattern", "address.pattern; / and . are different separators here")
        reading.kept("pattern", "address.pattern")
        return [pattern] if pattern else []

    def _connector(self, reading: Reading) -> TomlTable | None:
        """Return the connector to a container that is named, or the only one if it is named by its container-id."""
        containers = self.endpoints.containers
        if name := reading.text("connection"):
            reading.kept("connection", "connector")
            reading.needless("containerId", "the connector is named")
            return containers.get(name)
        reading.changed("containerId", "the only connector to a container; a container-id chooses none here")
        return next(iter(containers.values())) if len(containers) == 1 else None


_NO_CONNECTOR: Final = "which connector is meant cannot be told: name it by `connection`, with role route-container"


def _go_both_ways(one: _AutoLink, other: _AutoLink) -> bool:
    return one.is_in != other.is_in and (one.address, one.connector) == (other.address, other.connector)


def _name(connector: TomlTable) -> Value:
    url = connector.keys["url"]
    return connector.keys.get("name") or Endpoint.parse(str(url)).host


def _followed(connector: TomlTable, node: str = "") -> dict[str, Value]:
    """Return a redirect to the container of a connector. Args: node: there; empty: the address that a client uses."""
    place = Endpoint.parse(str(connector.keys["url"]))
    found: dict[str, Value] = {"network_host": place.host, "port": place.port, "scheme": place.scheme}
    return {**found, **({"address": node} if node else {}), "follow": "router"}
