"""Names of lanes, and keys of their deliveries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.kernel import KernelRouter
from amqpmesh.router.model.lane import Keys, Lane, LaneKind, next_tag

IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="@/#*"), min_size=1, max_size=20)
NAMES = st.text(min_size=1, max_size=40).filter(lambda name: not name.startswith("$"))
LANES = st.one_of(
    st.builds(Lane, st.sampled_from([LaneKind.ANYCAST, LaneKind.TREE]), IDS, st.text(max_size=10), NAMES),
    st.builds(Lane, st.just(LaneKind.TRANSIT), IDS),
)


@given(LANES)
def test_a_lane_is_known_by_its_target(lane: Lane) -> None:
    assert Lane.parse(lane.target) == lane


@given(LANES, LANES)
def test_two_lanes_have_two_targets(one: Lane, two: Lane) -> None:
    assert (one.target == two.target) is (one == two)


@pytest.mark.parametrize(
    "target",
    [
        "orders",
        "$lane/",
        "$lane/anycast/B",
        "$lane/anycast/B//",
        "$lane/anycast///orders",
        "$lane/transit/B//orders",
        "$lane/broadcast/B//orders",
        "$lane/anycast/B//$management",
    ],
)
def test_other_targets_name_no_lane(target: str) -> None:
    with pytest.raises(ValueError, match="^the target "):
        Lane.parse(target)


def test_a_key_stays_the_same_from_hop_to_hop_and_its_hops_run_out() -> None:
    tag: bytes | None = Keys("A", KernelRouter()).tag(7, 3)
    assert tag is not None
    key, hops = tag[:-1], 0
    while tag is not None:
        assert tag[:-1] == key
        hops += 1
        tag = next_tag(tag)
    assert hops == 3


def test_keys_differ_by_router_and_epoch_and_are_within_the_octets_of_a_delivery_tag() -> None:
    tags = {Keys(router, KernelRouter()).tag(epoch, 255) for router in ("A", "B") for epoch in (1, 2, 2**62)}
    several = Keys("A", KernelRouter())
    tags |= {several.tag(1, 255) for _ in range(3)}
    assert len(tags) == 6 + 2  # the first of the three keys is in the set already
    assert max(map(len, tags)) <= 32


@pytest.mark.parametrize("tag", [b"", b"\x00", b"\x01", b"key\x01", b"key\x00"])
def test_a_tag_without_hops_goes_no_further(tag: bytes) -> None:
    assert next_tag(tag) is None
