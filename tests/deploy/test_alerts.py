"""Alert rules and dashboard: each alert fires when it shall, not otherwise, and every metric is one that there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from amqpmesh.router.http import families
from tests.docs.pages import ROOT
from tests.support.data.promql import Query

RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "amqpmesh.json"
PAGE: Final = ROOT / "docs" / "operate" / "alerts.md"
MINUTES: Final = 30


class Case(NamedTuple):
    """Series with which an alert fires, at the last of `MINUTES`, and with which it does not."""

    fires: Mapping[str, str]
    rests: Mapping[str, str]
    labels: Mapping[str, str]
    """Of the alert that fires, beside its severity."""


def still(value: float) -> str:
    return f"{value}+0x{MINUTES}"


def grows(per_minute: float) -> str:
    return f"0+{per_minute}x{MINUTES}"


_A: Final = 'instance="a"'
_Q: Final = 'instance="a",tenant="t",address="q"'
_OF_Q: Final = {"instance": "a", "tenant": "t", "address": "q"}

CASES: Final[Mapping[str, Case]] = {
    "AmqpmeshDown": Case(
        {'up{job="amqpmesh",instance="a"}': still(0)},
        {'up{job="amqpmesh",instance="a"}': still(1), 'up{job="other",instance="b"}': still(0)},
        {"job": "amqpmesh", "instance": "a"},
    ),
    "AmqpmeshMeshSplit": Case(
        {f"amqpmesh_mesh_reachable_routers{{{_A}}}": still(2), f"amqpmesh_mesh_routers{{{_A}}}": still(3)},
        {f"amqpmesh_mesh_reachable_routers{{{_A}}}": still(3), f"amqpmesh_mesh_routers{{{_A}}}": still(3)},
        {"instance": "a"},
    ),
    "AmqpmeshNeighbourDown": Case(
        {f'amqpmesh_neighbour_up{{{_A},neighbour="B"}}': still(0)},
        {f'amqpmesh_neighbour_up{{{_A},neighbour="B"}}': f"0+0x{MINUTES - 1} 1"},
        {"instance": "a", "neighbour": "B"},
    ),
    "AmqpmeshMemoryNearlyUsedUp": Case(
        {f"amqpmesh_memory_bytes{{{_A}}}": still(90), f"amqpmesh_memory_limit_bytes{{{_A}}}": still(100)},
        {f"amqpmesh_memory_bytes{{{_A}}}": still(70), f"amqpmesh_memory_limit_bytes{{{_A}}}": still(100)},
        {"instance": "a"},
    ),
    "AmqpmeshSendersBlocked": Case(
        {
            f'amqpmesh_link_credit_zero_seconds_total{{{_Q},direction="in"}}': grows(120),
            f"amqpmesh_senders{{{_Q}}}": still(2),
        },
        {
            f'amqpmesh_link_credit_zero_seconds_total{{{_Q},direction="in"}}': grows(60),
            f'amqpmesh_link_credit_zero_seconds_total{{{_Q},direction="out"}}': grows(600),
            f"amqpmesh_senders{{{_Q}}}": still(2),
        },
        _OF_Q,
    ),
    "AmqpmeshStuck": Case(
        {f"amqpmesh_oldest_unsettled_seconds{{{_Q}}}": grows(60)},
        {f"amqpmesh_oldest_unsettled_seconds{{{_Q}}}": still(59)},
        _OF_Q,
    ),
    "AmqpmeshDelayed": Case(
        {
            f'amqpmesh_delayed_deliveries_total{{{_Q},seconds="1"}}': grows(2),
            f"amqpmesh_deliveries_sent_total{{{_Q}}}": grows(100),
        },
        {
            f'amqpmesh_delayed_deliveries_total{{{_Q},seconds="1"}}': grows(0.5),
            f'amqpmesh_delayed_deliveries_total{{{_Q},seconds="10"}}': grows(2),
            f"amqpmesh_deliveries_sent_total{{{_Q}}}": grows(100),
        },
        _OF_Q,
    ),
    "AmqpmeshSlow": Case(
        {
            f'amqpmesh_latency_seconds_bucket{{{_A},tenant="x",le="0.1"}}': grows(90),
            f'amqpmesh_latency_seconds_count{{{_A},tenant="x"}}': grows(100),
        },
        {
            f'amqpmesh_latency_seconds_bucket{{{_A},tenant="x",le="0.1"}}': grows(96),
            f'amqpmesh_latency_seconds_bucket{{{_A},tenant="x",le="0.001"}}': grows(0),
            f'amqpmesh_latency_seconds_count{{{_A},tenant="x"}}': grows(100),
        },
        {"instance": "a"},
    ),
    "AmqpmeshUndelivered": Case(
        {f"amqpmesh_undelivered_total{{{_Q}}}": grows(1)},
        {f"amqpmesh_undelivered_total{{{_Q}}}": still(7)},
        _OF_Q,
    ),
    "AmqpmeshNoPath": Case(
        {f"amqpmesh_no_path_total{{{_A}}}": grows(1)},
        {f"amqpmesh_no_path_total{{{_A}}}": still(7)},
        {"instance": "a"},
    ),
    "AmqpmeshConnectionsRefused": Case(
        {f'amqpmesh_listener_refused_total{{{_A},listener="amqp"}}': grows(1)},
        {f'amqpmesh_listener_refused_total{{{_A},listener="amqp"}}': still(7)},
        {"instance": "a", "listener": "amqp"},
    ),
    "AmqpmeshDenied": Case(
        {f"amqpmesh_denied_total{{{_A}}}": grows(120)},
        {f"amqpmesh_denied_total{{{_A}}}": grows(30)},
        {"instance": "a"},
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def firing(rule: Mapping[str, Any], series: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the labels of the alerts that fire at the last minute: the expression has held for so long."""
    query = Query(rule["expr"], series)
    since = int(rule.get("for", "0m").removesuffix("m"))
    held = [set(query.at(minute)) for minute in range(MINUTES - since, MINUTES + 1)]
    return [dict(each) for each in set.intersection(*held)]


def test_each_alert_has_a_case_and_a_row_on_the_page() -> None:
    assert set(CASES) == set(rules())
    rows = re.findall(
        r"^\| `(Amqpmesh\w+)` \| (\w+) \| \S.* \| \S.* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in rules().items()]


@pytest.mark.parametrize("name", CASES)
def test_each_alert_fires_when_it_shall_and_not_otherwise(name: str) -> None:
    rule, case = rules()[name], CASES[name]
    assert firing(rule, case.fires) == [case.labels]
    assert firing(rule, case.rests) == []


def test_prometheus_own_tool_says_the_same(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT TESTED, missing: promtool")
    tests = []
    for name, case in CASES.items():
        for series, fires in ((case.fires, True), (case.rests, False)):
            rule = rules()[name]
            expected = [{"exp_labels": {**case.labels, **rule["labels"]}}] if fires else []
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": key, "values": values} for key, values in series.items()],
                    "alert_rule_test": [{"eval_time": f"{MINUTES}m", "alertname": name, "exp_alerts": expected}],
                }
            )
    rules_without_texts = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for rule in rules_without_texts["groups"][0]["rules"]:
        del rule["annotations"]  # they hold values
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules_without_texts), encoding="utf-8")
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}), encoding="utf-8")
    for command in (("check", "rules", str(RULES)), ("test", "rules", "test.yml")):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_containers_have_the_rules_and_the_dashboard() -> None:
    folder = ROOT / "deploy" / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = {
        target: (folder / source).resolve()
        for service in ("prometheus", "grafana")
        for source, target, _ in (volume.split(":") for volume in services[service]["volumes"])
    }
    prometheus = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    assert [mounted[f"/etc/prometheus/{each}"] for each in prometheus["rule_files"]] == [RULES]
    assert prometheus["scrape_configs"][0]["job_name"] == "amqpmesh", "the rules name it"
    (provider,) = yaml.safe_load((folder / "grafana-dashboards.yml").read_text(encoding="utf-8"))["providers"]
    assert mounted[f"{provider['options']['path']}/amqpmesh.json"] == DASHBOARD
    assert all(each.exists() for each in mounted.values())


def names() -> set[str]:
    """Return the names of all series that there are."""
    every = (
        *(families.ADDRESS, families.TENANT, families.LATENCY, families.NEIGHBOUR, families.LISTENER),
        *(families.ROUTER, families.LEFT_OUT),
    )
    return {f"{families.PREFIX}{each.name}{end}" for kind in every for each in kind for end, _ in each.samples}


@pytest.mark.parametrize("file", [RULES, DASHBOARD])
def test_every_metric_is_one_that_there_is(file: Path) -> None:
    used = set(re.findall(r"\bamqpmesh_[a-z_]+\b", file.read_text(encoding="utf-8")))
    assert used
    assert used <= names()


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [each for each in board["panels"] if each["type"] != "row"]
    assert board["uid"] == "amqpmesh"
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    assert len({each["title"] for each in panels}) == len(panels) >= 12
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        cells |= taken
    for panel in panels:
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")
            assert "$instance" in target["expr"], panel["title"]
