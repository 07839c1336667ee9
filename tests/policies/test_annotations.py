"""Delivery annotations: which keys pass, and which have to be understood."""

import pytest

from amqpmesh.policies.annotations import DeliveryAnnotationsRule, must_be_understood, passes, passing

PASS, DROP = DeliveryAnnotationsRule.PASS, DeliveryAnnotationsRule.DROP


@pytest.mark.parametrize(
    ("key", "rule", "within_mesh", "goes_on"),
    [
        ("x-opt-mesh-to", PASS, False, False),
        ("x-opt-mesh-to", DROP, False, False),
        ("x-opt-mesh-to", PASS, True, True),
        ("x-opt-mesh-to", DROP, True, True),
        ("x-opt-meshed", PASS, False, True),
        ("x-opt-other", DROP, True, False),
        ("unknown", PASS, False, True),
        (7, PASS, False, True),
        (7, DROP, True, False),
    ],
)
def test_the_meshs_own_stay_in_the_mesh_and_others_go_by_the_rule(
    key: str | int, rule: DeliveryAnnotationsRule, within_mesh: bool, goes_on: bool
) -> None:
    assert passes(key, rule, within_mesh=within_mesh) is goes_on


def test_what_passes_keeps_its_order_and_its_values() -> None:
    annotations: dict[str | int, object] = {"z": 1, "x-opt-mesh-to": "forged", 3: None, "a": [2]}
    kept = passing(annotations, PASS, within_mesh=False)
    assert list(kept.items()) == [("z", 1), (3, None), ("a", [2])]
    assert passing(annotations, DROP, within_mesh=False) == {}


def test_the_rules_are_the_words_of_the_configuration() -> None:
    assert [DeliveryAnnotationsRule(word) for word in ("pass", "drop")] == [PASS, DROP]


@pytest.mark.parametrize(
    ("key", "must"),
    [("x-opt-a", False), ("x-opt-", False), ("x-opt", True), ("x-a", True), ("a", True), ("rejected", True), (5, True)],
)
def test_a_receiver_may_ignore_unknown_annotations_only_if_they_are_optional(key: str | int, must: bool) -> None:
    assert must_be_understood(key) is must
