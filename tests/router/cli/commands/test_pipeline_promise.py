"""`amqpmesh pipeline promise`: its lines, JSON, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amqpmesh.router.management.cost_plan import to_json
from tests.pipeline.test_promise import PLAN
from tests.pipeline.test_result_rows import at, write
from tests.support.processes.router_thread import Command


@pytest.fixture
def out(tmp_path: Path) -> Path:
    costs = {("A", "B"): 3, ("B", "A"): 1, ("B", "C"): 1, ("C", "B"): 1, ("A", "C"): 3, ("C", "A"): 3}
    links = [{"router": a, "neighbour": b, "cost_before": cost} for (a, b), cost in costs.items()]
    write(tmp_path, "plan/links", *links)
    sent = [{"window_start": at(0), "bytes": octets, "peer": to} for to, octets in (("C", 6.0), ("B", 4.0))]
    write(tmp_path, "traffic/links", *({**each, "router": "A"} for each in sent))
    matrix = [{**each, "address": "a", "ingress": "A", "egress": each["peer"]} for each in sent]
    write(tmp_path, "traffic/matrix", *matrix)
    (tmp_path / "applied.json").write_text(to_json(PLAN))
    return tmp_path


def test_it_ends_with_5_unless_the_promise_was_kept(out: Path, command: Command) -> None:
    arguments = ("pipeline", "promise", str(out / "applied.json"), "--out", str(out))
    ended = command(*arguments)
    assert (ended.status, ended.err, ended.out.splitlines()[-1]) == (0, "", "kept")
    ended = command(*arguments, "--since", "2026-06-01", "--json")
    assert (ended.status, json.loads(ended.out)["measured"]) == (5, None)


@pytest.mark.parametrize(
    ("plan", "said"), [("nothing.json", "nothing.json: No such file"), ("bad.json", "bad.json: is no JSON")]
)
def test_what_is_no_plan_ends_with_2(plan: str, said: str, out: Path, command: Command) -> None:
    (out / "bad.json").write_text("{")
    ended = command("pipeline", "promise", str(out / plan), "--out", str(out))
    assert ended.status == 2
    assert said in ended.lines[-1]
