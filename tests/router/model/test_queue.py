"""Queues of relays, between which relays move."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.kernel import Relay
from amqpmesh.router.model.node import Waiting


@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))))
def test_a_relay_waits_where_it_was_put_last_and_nowhere_else(moves: list[tuple[int, int]]) -> None:
    queues = [Waiting() for _ in range(3)]
    relays = [Relay(None, None, 0, 0.0) for _ in range(6)]
    where: dict[Relay, Waiting] = {}
    for number, place in moves:
        relay = relays[number]
        if relay in where:
            where.pop(relay).remove(relay)
        if place < 3:
            queues[place].add(relay, deadline=float(number))
            where[relay] = queues[place]
        for queue in queues:
            there = [each for each in where if where[each] is queue]
            assert queue.size == len(there)
            assert sorted(map(id, queue.relays())) == sorted(map(id, there))
            first = queue.first()
            assert first in there if there else first is None
            due = queue.due(10.0)
            assert due in there if there else due is None
