"""The same history with and without other tenants: a tenant is sent the same frames, and sees the same rows.

Its clients use all doors: addresses, names of routers, nodes of a container elsewhere, anonymous senders, dynamic
nodes, redirects, aliases, copies, dead letters, the router's own addresses, tokens. It reads `$management` by the
names of all types and of known tools, metrics, what `why` tells, and traces. Other tenants, and the program around the
router, use the same ones with the same names of containers, links and addresses, while limits, rates, exports and
rights change.
"""

from __future__ import annotations

import pytest

from tests.support.worlds.two_stories import OBSERVED, OTHERS, Story


def compare(seed: int, slots: int) -> Story:
    """Assert that nothing differs. Returns: the history with all tenants."""
    alone, among = Story(seed, [OBSERVED], slots), Story(seed, [OBSERVED, *OTHERS], slots)
    assert len(among.listening) == len(alone.listening)
    for number, (one, other) in enumerate(zip(alone.listening, among.listening, strict=True)):
        assert other.frames() == one.frames(), number
    for rows, others in zip(alone.rows, among.rows, strict=True):
        assert others == rows
    among.mesh.leave()
    return among


def test_a_tenant_perceives_nothing_of_others() -> None:
    stories = [compare(seed, 50) for seed in range(6)]
    came = [sum(each.came[tenant] for each in stories) for tenant in (OBSERVED, *OTHERS)]
    assert min(came) > 10, "all have traffic"
    assert min(sum(each.put for each in stories), sum(each.connected for each in stories)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_a_tenant_perceives_nothing_of_others_for_long(seed: int) -> None:
    compare(seed, 150)
