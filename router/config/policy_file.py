"""The policy file: tenants, groups, and their rights. `[policy] file` of the configuration names it.

It is the same file at each router of a mesh, so nothing in it depends on a router. Keys are as in the configuration.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from amqpmesh.policies import managing, tenants
from amqpmesh.policies.claims import ClaimMatch
from amqpmesh.policies.groups import Group, May, name_fault, pattern_fault
from amqpmesh.policies.limits import UNLIMITED
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.policy import Policy
from amqpmesh.policies.policy_version import LARGEST, MAX_NUMBER, PolicyVersion
from amqpmesh.policies.tenants import Match, Tenant
from amqpmesh.policies.user_ids import UserId
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.exports import ExportConfig, ImportConfig, exports_of
from amqpmesh.router.config.policy_limits import TenantLimitsConfig, UserLimitsConfig
from amqpmesh.router.config.tables import Effect, Rule, Table, Words, emptiness, parsed_text, rows, setting, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TABLES = ("tenant", "group")

MOST_DOTS = 500
"""Dots in the keys of a line. The reader of TOML takes the square of their number in time: with two million of them, a
policy that is pushed would be read for a day.
"""

SHOWN = 64
"""Characters of a wrong text that its error shows."""


def _each(check: Callable[[str], str | None]) -> Callable[[tuple[str, ...]], str | None]:
    """Return a check of a list of texts, which names the first that is wrong."""

    def found(texts: tuple[str, ...]) -> str | None:
        for text in texts:
            fault = check(text)
            if fault is not None:
                return f'"{text[:SHOWN]}" {fault}'
        return None

    return found


def _claims_fault(claims: Words) -> str | None:
    for name, patterns in claims.items():
        if not name:
            return "has a claim without a name"
        if not patterns or "" in patterns:
            return f'"{name[:SHOWN]}" must have a value that is not empty'
        if (fault := next(filter(None, map(name_fault, (name, *patterns))), None)) is not None:
            return f'"{name[:SHOWN]}" {fault}'
    return None


def _network_fault(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return f"is no network: {error}"
    return None


@table
class PolicyConfig(Table):
    """The policy of the router."""

    EFFECT = Effect.RESTART
    RESTART = "tenants, and policies that are pushed, are there from the start of a router or not at all"

    file: Path = setting(effect=Effect.AT_ONCE)
    vouch: tuple[str, ...] = setting(default=(), check=_each(emptiness), effect=Effect.AT_ONCE)
    push: bool = setting(default=False)
    signed: bool = setting(default=False, effect=Effect.AT_ONCE)


@table
class MatchConfig(Table):
    """A way into a tenant: all keys that are given have to match."""

    EFFECT = Effect.AT_ONCE

    listener: str | None = setting(default=None, check=name_fault)
    hostname: str | None = setting(default=None, check=name_fault)
    user: str | None = setting(default=None, check=name_fault)
    certificate: str | None = setting(default=None, check=name_fault)
    claim: str | None = setting(default=None, check=name_fault)
    value: str | None = setting(default=None, check=name_fault)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "listener",
            "or hostname, user, certificate or claim is required: for any peer, say default = true",
            lambda c: (c.listener, c.hostname, c.user, c.certificate, c.claim) == (None,) * 5 and c.value is None,
        ),
        Rule("value", "is required with claim", lambda c: c.claim is not None and c.value is None),
        Rule("claim", "is required with value", lambda c: c.value is not None and c.claim is None),
    )

    @property
    def match(self) -> Match:
        """The rule."""
        return Match(
            listener=_pattern(self.listener),
            hostname=_pattern(self.hostname),
            user=_pattern(self.user),
            certificate=_pattern(self.certificate),
            claim=None if self.claim is None else ClaimMatch(self.claim, (NamePattern(self.value or ""),)),
        )


@table
class TenantConfig(Table):
    """A tenant."""

    EFFECT = Effect.AT_ONCE

    name: str = setting(check=tenants.fault)
    match: tuple[MatchConfig, ...] = setting(default=())
    default: bool = setting(default=False)
    weight: float = setting(default=1.0, low=0.01, high=10_000.0)
    limits: TenantLimitsConfig | None = setting(default=None)
    exports: tuple[ExportConfig, ...] = setting(default=())
    imports: tuple[ImportConfig, ...] = setting(default=())

    @property
    def tenant(self) -> Tenant:
        """The tenant."""
        return Tenant(
            name=self.name,
            match=tuple(each.match for each in self.match),
            default=self.default,
            weight=self.weight,
            limits=UNLIMITED if self.limits is None else self.limits.allowance,
        )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("match", "is required, or default = true", lambda c: not (c.match or c.default)),
    )


def _may_fault(may: tuple[May, ...]) -> str | None:
    return "has no telemetry: that is telemetry = true" if May.TELEMETRY in may else None


@table
class GroupConfig(Table):
    """A group of peers, and its rights."""

    EFFECT = Effect.AT_ONCE

    name: str = setting(check=name_fault)
    tenant: str | None = setting(default=None)
    users: tuple[str, ...] = setting(default=(), check=_each(name_fault))
    certificates: tuple[str, ...] = setting(default=(), check=_each(name_fault))
    networks: tuple[str, ...] = setting(default=(), check=_each(_network_fault))
    groups: tuple[str, ...] = setting(default=(), check=_each(name_fault))
    claims: Words = setting(default=Words(), check=_claims_fault)
    send: tuple[str, ...] = setting(default=(), check=_each(pattern_fault))
    receive: tuple[str, ...] = setting(default=(), check=_each(pattern_fault))
    may: tuple[May, ...] = setting(default=(), check=_may_fault)
    telemetry: bool = setting(default=False)
    manage: tuple[str, ...] = setting(default=(), check=_each(managing.fault))
    user_id: UserId | None = setting(default=None)
    limits: UserLimitsConfig | None = setting(default=None)

    def group(self, key: str, tenant: str) -> Group:
        """Return the group. Args: key: its place in the policy. tenant: the key of its tenant."""
        return Group(
            name=self.name,
            key=key,
            tenant=tenant,
            users=tuple(map(NamePattern, self.users)),
            certificates=tuple(map(NamePattern, self.certificates)),
            networks=tuple(map(ipaddress.ip_network, self.networks)),
            groups=tuple(map(NamePattern, self.groups)),
            claims=tuple(
                ClaimMatch(name, tuple(map(NamePattern, values))) for name, values in sorted(self.claims.items())
            ),
            send=self.send,
            receive=self.receive,
            may=frozenset((*self.may, *((May.TELEMETRY,) if self.telemetry else ()))),
            manage=frozenset(map(managing.managed, self.manage)),
            user_id=self.user_id,
            limits=UNLIMITED if self.limits is None else self.limits.allowance,
        )


def load_policy(file: Path) -> Policy:
    """Read a policy file.

    Raises: ConfigError: with the file, the key (`group[0].send`) and the reason.
    """
    return policy_of(octets_of(file), file).policy


def octets_of(file: Path) -> bytes:
    """Return the octets of a policy file. Raises: ConfigError: it cannot be read, or is too large."""
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(str(file), "file", f"is larger than {LARGEST} octets")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), "file", error.strerror or str(error)) from None


@dataclass(frozen=True, slots=True)
class PolicyText:
    """A policy, and the octets of its file."""

    policy: Policy
    version: PolicyVersion
    data: bytes


def policy_of(data: bytes, file: Path) -> PolicyText:
    """Return the policy in the octets of a file. Args: file: named in errors. Raises: ConfigError: as `load_policy`."""
    if len(data) > LARGEST:
        raise ConfigError(str(file), "file", f"is larger than {LARGEST} octets")
    if any(_dots_of_keys(line) > MOST_DOTS for line in data.splitlines()):
        raise ConfigError(str(file), "file", f"has a key with more than {MOST_DOTS} dots")
    raw = parsed_text(data, file)
    number = raw.pop("version", 0)
    if type(number) is not int or not 0 <= number <= MAX_NUMBER:
        raise ConfigError(str(file), "version", f"must be a number from 1 to {MAX_NUMBER}")
    # Not the digest: that is shown.
    policy = parse_policy(raw, file, blake2b(data, person=b"secret").digest())
    return PolicyText(policy, PolicyVersion.of(data, number), data)


def _dots_of_keys(line: bytes) -> int:
    """Return the dots that may be in keys of a line: in the name of a table, or somewhere before an equals sign."""
    return (line if line.lstrip().startswith(b"[") else line.rpartition(b"=")[0]).count(b".")


def parse_policy(raw: Mapping[str, object], file: Path, secret: bytes = b"") -> Policy:
    """Return the policy in a parsed TOML document.

    Args: file: named in errors. secret: as of `Policy`.
    Raises: ConfigError: as `load_policy`.
    """
    unknown = sorted(raw.keys() - set(_TABLES))
    if unknown:
        raise ConfigError(str(file), unknown[0], f"unknown table; known are {', '.join(_TABLES)}")
    found: dict[str, Tenant] = {}
    offers: list[tuple[str, tuple[ExportConfig, ...], tuple[ImportConfig, ...]]] = []
    for key, given in rows(TenantConfig, raw, "tenant", file=file):
        if given.name in found:
            raise ConfigError(str(file), f"{key}.name", f"the tenant {given.name} is given twice")
        if given.default and any(each.default for each in found.values()):
            raise ConfigError(str(file), f"{key}.default", "another tenant is the default already")
        found[given.name] = given.tenant
        offers.append((given.name, given.exports, given.imports))
    groups: dict[tuple[str, str], Group] = {}
    for key, row in rows(GroupConfig, raw, "group", file=file):
        if found and row.tenant is None:
            raise ConfigError(str(file), f"{key}.tenant", f"is required: one of {', '.join(found)}")
        if row.tenant is not None and row.tenant not in found:
            raise ConfigError(str(file), f"{key}.tenant", f"there is no tenant {row.tenant}")
        tenant = "" if row.tenant is None else found[row.tenant].key
        if (tenant, row.name) in groups:
            raise ConfigError(str(file), f"{key}.name", f"the group {row.name} is given twice")
        groups[tenant, row.name] = row.group(key, tenant)
    return Policy(tuple(found.values()), tuple(groups.values()), exports_of(offers, found, file), secret)


def _pattern(text: str | None) -> NamePattern | None:
    return None if text is None else NamePattern(text)
