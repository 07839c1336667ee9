"""Long outcomes of deliveries whose sender is away, or does not settle them: little is kept of each (§3.4.3)."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import Rejected
from tests.router.resumption.test_returning_senders import SECOND, Roaming
from tests.support.peers.scripted import frame, transferred
from tests.support.worlds.network import Network, message

#: Characters of the description of an outcome: more than is kept of one.
LONG = 20_000

COUNT = 60


def send(r: Roaming) -> None:
    """Send messages, each once the former one has come."""
    for number in range(COUNT):
        r.peer.write(frame(transferred(number), message(number)))
        r.peer.hear()
        r.arrivals += r.consumer.take(1)


def reject(r: Roaming) -> None:
    """Settle each message with a long outcome of its own, and free what the receiver's end has of them."""
    for number in range(COUNT):
        error = Error(condition="x:y", description=f"{number} " + "x" * LONG)
        r.arrivals.pop().dispose(Rejected(error=error), settled=True)
    r.network.run()
    r.network.arrived.clear()
    r.consumer.lose()
    r.network.clients.remove(r.consumer)
    del r.consumer, r.receiver


@pytest.mark.parametrize("away", [True, False], ids=["away", "there"])
def test_little_is_kept_of_long_outcomes_until_their_sender_has_settled(away: bool) -> None:
    r = Roaming(SECOND, network=Network(max_frame_size=2 * LONG))
    send(r)
    if away:
        r.lose()
    gc.collect()
    tracemalloc.start()
    try:
        reject(r)
        if not away:
            r.peer.hear()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < COUNT * LONG / 3
