"""The sections `policy` and `vhost`, as a policy file with tenants and groups.

With one virtual host, all its groups are in one tenant. With several, each is a tenant of its own: then their addresses
are apart, which they are in the two routers only at a listener with `multiTenant`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.cli.dispatch.fates import Fate, Reading
from amqpmesh.router.cli.dispatch.toml_document import TomlDocument, TomlTable

if TYPE_CHECKING:
    from amqpmesh.router.cli.dispatch.conf_syntax import Attribute, Section
    from amqpmesh.router.cli.dispatch.endpoints import Endpoints
    from amqpmesh.router.cli.dispatch.toml_document import Value

_DEFAULT_GROUP: Final = "$default"
"""The group of users whom no other group names."""

_MANAGEMENT: Final = "$management"


@dataclass(frozen=True, slots=True)
class _Host:
    """A virtual host, as its groups see it."""

    tenant: Value | None
    """Its tenant's name; None: the policy has no tenants."""
    connections: int | None
    """The most connections of each user."""
    admits_unknown: bool
    """True if users whom no group names are in the default group."""
    names_users: bool
    """True if a group names users."""


@dataclass(slots=True)
class VhostRights:
    """The policy of a file."""

    endpoints: Endpoints
    router: TomlTable
    document: TomlDocument = field(default_factory=TomlDocument)
    _vhosts: list[Section] = field(default_factory=list)
    _is_in_force: bool = False
    _has_patterns: bool = False
    _default_host: str = "$default"
    _by_hostname: list[str] = field(default_factory=list)
    """The listeners at which a hostname chooses the virtual host, if it does not at all of them."""

    @property
    def is_empty(self) -> bool:
        """True if there is no policy to write. One that is in force and permits nothing has to be written."""
        return not self._is_in_force

    def policy(self, section: Section) -> None:
        """Translate the `policy` section."""
        reading = Reading(self.endpoints.account, section.kind, dict(section.attributes))
        self.endpoints.account.of_section(section, Fate.KEPT, "[router], and [policy] if virtual hosts are in force")
        for given, ours in (("maxConnections", "connections"), ("maxMessageSize", "max_message_size")):
            if number := reading.number(given):
                self.router.keys[ours] = number
            reading.kept(given, f"router.{ours}")
        self._is_in_force = reading.is_true("enableVhostPolicy")
        reading.kept("enableVhostPolicy", "[policy]" if self._is_in_force else "no [policy]: all clients may do all")
        self._has_patterns = reading.is_true("enableVhostNamePatterns")
        reading.kept("enableVhostNamePatterns", "hostnames in match: * stands for any characters")
        self._default_host = reading.text("defaultVhost", self._default_host)
        reading.kept("defaultVhost", "default = true of its tenant")
        reading.missing("policyDir", "give its files to the command, too: --vhosts FILE")
        reading.needless("name", "there is one policy")
        reading.close()

    def vhost(self, section: Section) -> None:
        """Take a `vhost` down. `close` translates it."""
        self._vhosts.append(section)

    def close(self) -> None:
        """Translate the virtual hosts."""
        if not self._is_in_force:
            for each in self._vhosts:
                self.endpoints.account.all_of(each, Fate.NEEDLESS, "enableVhostPolicy is not set: it was not in force")
            return
        listeners = [table for table in self.endpoints.document.tables if table.heading == "[listener]"]
        self._name_listeners(listeners)
        taken = {OPERATOR}
        for each in self._vhosts:
            self._vhost(each, taken)
        if not self._vhosts:  # files of the policyDir may have been forgotten; without a policy, all could do all
            self.document.first = [*self.document.first, "No virtual host: no client may do anything."]
        self.endpoints.document.table("policy").keys["file"] = "policy.toml"
        if not listeners:
            self.endpoints.document.first = [*self.endpoints.document.first, "No listener: nobody meets the policy."]

    def _name_listeners(self, listeners: list[TomlTable]) -> None:
        """Find the listeners that choose a virtual host by the hostname, which their clients choose.

        Once others have a virtual host of their own, these need names.
        """
        if not self.endpoints.policy_listeners:
            return
        for number, table in enumerate(listeners, 1):
            name = table.keys.setdefault("name", f"listener-{number}")
            if name not in self.endpoints.policy_listeners and table.keys.get("role") != "mesh":
                self._by_hostname.append(str(name))

    def _vhost(self, section: Section, taken: set[str]) -> None:
        reading = Reading(self.endpoints.account, section.kind, dict(section.attributes))
        host = reading.text("hostname", reading.text("name", reading.text("id")))
        alone = len(self._vhosts) == 1
        words = "the policy file: a tenant" + ("" if alone else ", with addresses of its own, unless it exports some")
        tenant = TomlTable("[tenant]", f"vhost {host}, {section.line}", {"name": _free_name(host, taken)})
        self._match(reading, tenant, host)
        self._limits(reading, tenant)
        if alone and tenant.keys.keys() == {"name", "default"}:
            words = "the groups of the policy file, for all peers"
            tenant.keys.clear()
        else:
            self.document.tables.append(tenant)
        is_apart = alone or self.endpoints.by_hostname
        self.endpoints.account.of_section(section, Fate.KEPT if is_apart else Fate.CHANGED, words)
        groups = reading.maps("groups")
        of_groups = _Host(
            tenant=tenant.keys.get("name"),
            connections=reading.number("maxConnectionsPerUser"),
            admits_unknown=reading.is_true("allowUnknownUser"),
            names_users=any(user != "*" for each in groups.values() for user in _words(each, "users")),
        )
        says = "a group without users, for all peers" if of_groups.admits_unknown else "no such group"
        reading.kept("allowUnknownUser", says)
        for group, given in groups.items():
            self._group(group, given, of_groups)
        if "groups" in reading:
            reading.kept("groups", "[[group]]")
        reading.close()

    def _match(self, reading: Reading, tenant: TomlTable, host: str) -> None:
        listeners = [name for name, its in self.endpoints.policy_listeners.items() if its == host]
        hosts = [] if host == self._default_host else [host]
        hosts += [alias for alias in reading.words("aliases") if alias not in hosts]
        if self._has_patterns:
            # `*` stands for one part of a hostname there, and for any characters here: such a tenant takes in more.
            if any("*" in each or "#" in each for each in hosts):
                reading.changed("hostname", "tenant.match; a * here stands for any characters, dots included")
            hosts = [each.replace("#", "*") for each in hosts]
        ways: list[Value] = [{"listener": each} for each in listeners]
        if self.endpoints.policy_listeners:
            ways += [{"listener": name, "hostname": each} for each in hosts for name in self._by_hostname]
        else:
            ways += [{"hostname": each} for each in hosts]
        if ways:
            tenant.keys["match"] = ways
        if host == self._default_host:
            tenant.keys["default"] = True
        for given in ("hostname", "name", "id"):
            reading.kept(given, "tenant.match" if ways else "the default tenant")
        reading.kept("aliases", "tenant.match")

    def _limits(self, reading: Reading, tenant: TomlTable) -> None:
        limits: dict[str, Value] = {}
        for given, ours in (("maxConnections", "connections"), ("maxConnectionsPerHost", "connections_per_host")):
            number = reading.number(given)
            if number and number < _MOST_CONNECTIONS:
                limits[ours] = number
                reading.kept(given, f"tenant.limits.{ours}")
            reading.needless(given, "that many are no limit")
        if size := reading.number("maxMessageSize"):
            limits["message"] = size
            reading.kept("maxMessageSize", "tenant.limits.message")
        reading.needless("maxMessageSize", "0 stands for no limit")
        reading.kept("maxConnectionsPerUser", "group.limits.connections")
        if limits:
            tenant.keys["limits"] = limits

    def _group(self, name: str, given: Attribute, host: _Host) -> None:
        where = f"vhost.groups.{name}"
        reading = Reading(self.endpoints.account, where, dict(given.attributes))
        users, hosts = reading.words("users"), reading.words("remoteHosts")
        is_for_all = name == _DEFAULT_GROUP or "*" in users
        networks, unclear = _networks(hosts)
        if name == _DEFAULT_GROUP and not host.admits_unknown:
            self._leave_out(given, where, Fate.NEEDLESS, "without allowUnknownUser nobody is in it")
            return
        if not hosts or (hosts != ["*"] and "*" not in hosts and not networks):
            why = "no host is permitted" if not hosts else f"hosts have to be addresses: {', '.join(unclear)}"
            self._leave_out(given, where, Fate.NEEDLESS if not hosts else Fate.MISSING, why)
            return
        if users and all(user == "anonymous" for user in users):
            why = "a group for clients without a login alone: one without users is for all peers"
            self._leave_out(given, where, Fate.MISSING, why)
            return
        if not is_for_all and not users:
            self._leave_out(given, where, Fate.NEEDLESS, "it names no users, so nobody is in it")
            return
        words = "[[group]]"
        if is_for_all and host.names_users:
            words += "; users whom other groups name have these rights, too"
        self.endpoints.account.say(
            given.line, where, Fate.CHANGED if is_for_all and host.names_users else Fate.KEPT, words
        )
        table = self.document.add("[group]", f"{given.line}")
        table.keys["name"] = "everyone" if name == _DEFAULT_GROUP else name
        if host.tenant is not None:
            table.keys["tenant"] = host.tenant
        if not is_for_all:
            table.keys["users"] = [user for user in users if user != "anonymous"]
        if "anonymous" in users and not is_for_all:
            reading.changed("users", "group.users, without anonymous: a group without users is for all peers")
        reading.kept("users", "group.users")
        if networks and "*" not in hosts:
            table.keys["networks"] = networks
        if unclear:
            reading.changed("remoteHosts", f"group.networks, without names of hosts: {', '.join(unclear)}")
        reading.kept("remoteHosts", "group.networks")
        self._rights(reading, table)
        self._group_limits(reading, table, host.connections)
        reading.close()

    def _leave_out(self, given: Attribute, where: str, fate: Fate, words: str) -> None:
        self.endpoints.account.all_in(where, given, fate, words)

    def _rights(self, reading: Reading, table: TomlTable) -> None:
        manages = False
        for plain, pattern, ours in (("targets", "targetPattern", "send"), ("sources", "sourcePattern", "receive")):
            given = pattern if pattern in reading else plain
            found, narrowed, widened = [], [], []
            for each in reading.words(given):
                if each.startswith(_MANAGEMENT):
                    manages = True
                elif (patterns := _patterns(each, is_pattern=given == pattern)) is None:
                    narrowed.append(each)
                else:
                    found += patterns
                    widened += [each] if patterns != [each] and each != "*" else []
            if found:
                table.keys[ours] = found
            if narrowed:
                reading.missing(given, f"no pattern here is like {', '.join(narrowed)}: the group lacks that right")
            if widened:
                reading.changed(given, f"group.{ours}; for {', '.join(widened)} also the name before the separator")
            reading.kept(given, f"group.{ours}")
        may: list[Value] = []
        for given, ours in (("allowDynamicSource", "dynamic"), ("allowAnonymousSender", "anonymous")):
            if reading.is_true(given):
                may.append(ours)
            reading.kept(given, f'group.may: "{ours}"')
        if may:
            table.keys["may"] = may
        if manages:
            table.keys["manage"] = ["write" if reading.is_true("allowAdminStatusUpdate", default=True) else "read"]
        reading.kept("allowAdminStatusUpdate", "group.manage, if targets names $management")
        table.keys["user_id"] = "any" if reading.is_true("allowUserIdProxy") else "match"
        reading.kept("allowUserIdProxy", "group.user_id")
        for given in ("allowWaypointLinks", "allowDynamicLinkRoutes", "allowFallbackLinks"):
            reading.needless(given, "clients cannot make links of that kind")

    def _group_limits(self, reading: Reading, table: TomlTable, connections: int | None) -> None:
        limits: dict[str, Value] = {}
        connections = reading.number("maxConnectionsPerUser") or connections
        reading.kept("maxConnectionsPerUser", "group.limits.connections")
        reading.missing("maxConnectionsPerHost", "only a tenant has connections_per_host, for all its groups")
        if connections and connections < _MOST_CONNECTIONS:
            limits["connections"] = connections
        frame = reading.number("maxFrameSize")
        if frame:
            limits["frame"] = max(frame, 512)
        reading.kept("maxFrameSize", "group.limits.frame")
        if size := reading.number("maxMessageSize"):
            limits["message"] = size
        reading.kept("maxMessageSize", "group.limits.message")
        if window := reading.number("maxSessionWindow"):
            limits["session_window"] = max(1, window // (frame or _USUAL_FRAME))
            reading.changed("maxSessionWindow", "group.limits.session_window, in frames of maxFrameSize octets")
        for given, ours in (("maxSessions", "sessions"), ("maxSenders", "senders"), ("maxReceivers", "receivers")):
            number = reading.number(given)
            if number is not None and connections and number < _UNLIMITED:
                limits[ours] = number * connections
                reading.changed(
                    given, f"group.limits.{ours}: of a user with all its connections, so as many times more"
                )
            reading.missing(given, f"limits.{ours} is of a user, with all its connections: choose it")
        if limits:
            table.keys["limits"] = limits


_USUAL_FRAME: Final = 16384
_UNLIMITED: Final = 2**31 - 1
_MOST_CONNECTIONS: Final = 65535
"""The number of connections that the two routers write for no limit."""


def _words(group: Attribute, name: str) -> list[str]:
    given = group.attributes.get(name)
    return [] if given is None else given.text.replace(",", " ").split()


def _free_name(host: str, taken: set[str]) -> str:
    """Return a name for a tenant: of letters, digits, `-` and `_`, and no other tenant's."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-")[:56] or "default"
    number, name = 1, stem
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name


def _networks(hosts: list[str]) -> tuple[list[Value], list[str]]:
    """Return the networks of a list of hosts, and what in it is no address: names cannot be told from an address."""
    networks: list[Value] = []
    unclear = []
    for each in hosts:
        first, _, last = each.partition("-")
        try:
            begin = ipaddress.ip_address(first)
            end = ipaddress.ip_address(last) if last else begin
            found = ipaddress.summarize_address_range(begin, end)
            networks += [str(network) for network in found]
        except (ValueError, TypeError):
            if each != "*":
                unclear.append(each)
    return networks, unclear


def _patterns(written: str, *, is_pattern: bool) -> list[str] | None:
    """Return the patterns here for an address of `sources`, or for a pattern of `sourcePattern`.

    Returns: None: there is no such pattern: `orders*` begins in the middle of a token, and `#` stands for itself.
    """
    variable = written.replace("${user}", "u")
    if is_pattern:
        return [written]
    if "#" in re.split("[/.]", written):
        return None
    if "*" not in variable:
        return [written]
    if written == "*":
        return ["#"]
    stem = written[:-1]
    if "*" in stem or not stem.endswith(("/", ".")):
        return None
    return [f"{stem}#"]
