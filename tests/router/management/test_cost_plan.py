"""Plans as JSON: written, and read strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.management.cost_plan import VERSION, Use, Verdict, from_json, to_json
from tests.support.data.cost_plan import PLAN


def test_a_plan_is_read_as_it_was_written() -> None:
    made = replace(PLAN, since="2026-05-01T00:00:00+00:00", before=Use(0.0, None, None))
    assert from_json(to_json(made)) == made


def changed(**values: Any) -> str:
    """Return a plan with other values at its top level."""
    return json.dumps({**json.loads(to_json(PLAN)), **values})


def of_changes(**values: Any) -> str:
    first, second = json.loads(to_json(PLAN))["changes"]
    return changed(changes=[first, {**second, **values}])


USE = json.loads(to_json(PLAN))["use"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"format": 1, "format": 2}', "an object has a key twice"),
        ("[]", "is no plan of `amqpmesh pipeline plan`"),
        (changed(version=VERSION + 1), f"is a plan of version {VERSION + 1}, and this reads version {VERSION} alone"),
        (changed(version=True), "is a plan of version True"),
        (changed(more=1), "more is not known"),
        (changed(use={}), "use.relative is missing"),
        (changed(use={**USE, "between": 10**400}), "use.between must be a number"),
        (changed(made=1), "made must be a text"),
        (changed(use={**json.loads(to_json(PLAN))["use"], "between": 10**400}), "use.between must be a number"),
        (of_changes(router="\ud800"), "changes[1].router must be a name"),
        (changed(contingency={"passed": 1, "sentence": ""}), "contingency.passed must be true, false or null"),
        (changed(changes={}), "changes must be a list"),
        (changed(changes=[1]), "changes[0] must be an object"),
        (of_changes(to=0), "changes[1].to must be a cost from 1 to 65535"),
        (of_changes(to=65_536), "changes[1].to must be a cost from 1 to 65535"),
        (of_changes(to=2.0), "changes[1].to must be a cost from 1 to 65535"),
        (of_changes(to=4), "changes[1]: B -> A costs 4 before, too"),
        (of_changes(router=""), "changes[1].router must be a name"),
        (of_changes(router="A"), "changes[1]: A is no neighbour of itself"),
        (of_changes(router="A", neighbour="B"), "changes[1]: A -> B is changed twice"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(CommandError) as told:
        from_json(text)
    assert reason in str(told.value)


def test_a_plan_says_which_check_speaks_against_it() -> None:
    assert PLAN.refusal is None
    assert replace(PLAN, simulation=Verdict(None, "too large")).refusal == "it was not checked by simulation: too large"
    failed = replace(PLAN, contingency=Verdict(False, "worse"))
    assert failed.refusal == "it did not pass the check by contingency: worse"
