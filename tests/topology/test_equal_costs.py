"""Equal-cost multipath: flows spread over the next hops."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from amqpmesh.topology.paths import preferred

HOPS = ["B", "C", "D", "E"]
FLOWS = [f"flow-{number}" for number in range(4000)]

hop_sets = st.sets(st.sampled_from(HOPS))


@given(st.text(), st.text(), st.permutations(HOPS), st.text())
def test_the_order_in_which_hops_come_does_not_matter(flow: str, destination: str, hops: list[str], seed: str) -> None:
    assert preferred(flow, destination, hops, seed=seed) == preferred(flow, destination, HOPS, seed=seed)


@given(st.text(), hop_sets, st.sampled_from(HOPS))
def test_a_hop_that_comes_or_goes_moves_its_own_flows_alone(flow: str, hops: set[str], other: str) -> None:
    assume(other not in hops)
    chosen = preferred(flow, "Z", hops | {other})
    assert chosen in (preferred(flow, "Z", hops), other)


def test_flows_spread_evenly_and_otherwise_at_routers_with_other_seeds() -> None:
    shares = Counter(preferred(flow, "Z", HOPS, seed="A") for flow in FLOWS)
    assert all(850 < shares[hop] < 1150 for hop in HOPS)
    sent_to_one = [flow for flow in FLOWS if preferred(flow, "Z", HOPS, seed="A") == "B"]
    onwards = Counter(preferred(flow, "Z", HOPS, seed="B") for flow in sent_to_one)
    assert all(onwards[hop] > 150 for hop in HOPS)


def test_a_choice_is_the_same_in_every_process_of_every_version() -> None:
    assert [preferred(flow, "Z", HOPS, seed="A") for flow in FLOWS[:8]] == list("BEDBEEDD")


def test_words_are_kept_apart() -> None:
    together = [preferred(f"{flow}x", "Z", HOPS) for flow in FLOWS]
    assert together != [preferred(flow, "xZ", HOPS) for flow in FLOWS]
