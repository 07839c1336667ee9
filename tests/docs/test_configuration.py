"""The page on configuration, compared with the settings that there are."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpmesh.router.config.exports import ExportConfig, ImportConfig
from amqpmesh.router.config.file import (
    AddressConfig,
    AuditConfig,
    ConnectorConfig,
    ConnectorTlsConfig,
    ElsewhereConfig,
    HttpConfig,
    Limits,
    LinkConfig,
    ListenerConfig,
    LogConfig,
    MeshConfig,
    MetricsConfig,
    PasswordConfig,
    PlaceConfig,
    PolicyConfig,
    RedirectConfig,
    RouterConfig,
    TelemetryConfig,
    TlsConfig,
    TokenIssuerConfig,
    TokenKeyConfig,
    TokensConfig,
    WebSocketConfig,
    parse,
)
from amqpmesh.router.config.observability import TracingConfig
from amqpmesh.router.config.policy_file import GroupConfig, MatchConfig, TenantConfig
from amqpmesh.router.config.policy_limits import TenantLimitsConfig, UserLimitsConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.config.tables import Table, declared, effect_of, key_of
from tests.docs.pages import ROOT

PAGE = "".join(
    (ROOT / "docs" / "operate" / f"{name}.md").read_text(encoding="utf-8")
    for name in (
        "configuration",
        "addresses",
        "policy",
        "exports",
        "tenant-limits",
        "tokens",
        "audit",
        "http",
        "websocket",
        "metrics",
        "tracing",
        "resumption",
    )
)

SECTIONS: dict[str, tuple[type[Table], type[Table] | None]] = {  # the table, and the one whose keys stand elsewhere
    "`[router]`": (RouterConfig, Limits),
    "Limits, in `[router]`, `[[listener]]` or `[[connector]]`": (Limits, None),
    "`[[listener]]`": (ListenerConfig, Limits),
    "`http` of a listener": (HttpConfig, None),
    "`websocket` of a listener": (WebSocketConfig, None),
    "`tls` of a listener": (TlsConfig, None),
    "`[mesh]`": (MeshConfig, None),
    "`[[connector]]`": (ConnectorConfig, Limits),
    "`tls` of a connector": (ConnectorTlsConfig, None),
    "`password` of a connector": (PasswordConfig, None),
    "`[[link]]`": (LinkConfig, None),
    "`[[address]]`": (AddressConfig, None),
    "`redirect` of an address": (RedirectConfig, None),
    "`redirect` of a listener": (PlaceConfig, None),
    "`[elsewhere]`": (ElsewhereConfig, None),
    "`[policy]`": (PolicyConfig, None),
    "`[[tenant]]`": (TenantConfig, None),
    "`match` of a tenant": (MatchConfig, None),
    "`exports` of a tenant": (ExportConfig, None),
    "`imports` of a tenant": (ImportConfig, None),
    "`[[group]]`": (GroupConfig, None),
    "`limits` of a group": (UserLimitsConfig, None),
    "`limits` of a tenant": (TenantLimitsConfig, UserLimitsConfig),
    "`[tokens]`": (TokensConfig, None),
    "`[[token_issuer]]`": (TokenIssuerConfig, None),
    "`[[token_key]]`": (TokenKeyConfig, None),
    "`[log]`": (LogConfig, None),
    "`[audit]`": (AuditConfig, None),
    "`[telemetry]`": (TelemetryConfig, None),
    "`[metrics]`": (MetricsConfig, None),
    "`[tracing]`": (TracingConfig, None),
    "`[resumption]`": (ResumptionConfig, None),
}

# The tables of a policy file: all of it applies at once.
OF_POLICIES = (TenantConfig, MatchConfig, ExportConfig, ImportConfig, GroupConfig, UserLimitsConfig)


class Row(NamedTuple):
    key: str
    default: str
    least: str
    greatest: str
    changes: str = ""


def documented(section: str) -> list[Row]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return [Row(key.strip("`"), *others) for key, *others in rows]


def default_of(value: object) -> str:
    if value is None:
        return "none"
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(shown)}`"


# Defaults that are found out, not written down.
WORDS: dict[tuple[type[Table], str], str] = {
    (RouterConfig, "id"): "the host's name",
    (ListenerConfig, "name"): "its scheme",
    (ConnectorConfig, "name"): "its first host",
    (LinkConfig, "name"): "its address",
}


def in_the_code(cls: type[Table], without: type[Table] | None) -> Iterator[Row]:
    elsewhere = {item.name for item in declared(without)} if without else set()
    for item in declared(cls):
        if item.name in elsewhere or item.metadata["apart"]:
            continue
        limits = (item.metadata["low"], item.metadata["high"])
        least, greatest = ("" if limit is None else repr(limit).removesuffix(".0") for limit in limits)
        mandatory = item.default is MISSING and item.default_factory is MISSING
        default = "" if mandatory else WORDS.get((cls, item.name)) or default_of(item.default)
        changes = "" if issubclass(cls, OF_POLICIES) else effect_of(cls, item.name).value
        yield Row(key_of(item), default, least, greatest, changes)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_has_every_key_with_its_default_and_limits(section: str) -> None:
    assert documented(section) == list(in_the_code(*SECTIONS[section]))


def test_the_page_has_no_table_that_is_not_compared() -> None:
    headed = {part.split("\n")[0] for part in PAGE.split("\n## ")[1:] if "| key |" in part}
    assert headed == set(SECTIONS)


def test_the_examples_are_right() -> None:
    # Those of a policy are in a file of its own.
    examples = re.findall(r"```toml\n(.*?)```", PAGE.split("# Policies: who may do what")[0], re.DOTALL)
    assert {parse(tomllib.loads(example), Path("a.toml")).id for example in examples} == {"A"}
