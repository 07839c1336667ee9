"""Traces of messages to another tenant's address: they do not tell how many receivers and messages that tenant has."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.delivery import tracing
from amqpmesh.router.management.trace import events_of
from tests.support.worlds.network import message
from tests.support.worlds.tenants import Tenants

ID = bytes(16)
MULTICAST = AddressConfig(pattern="all", distribution=Distribution.MULTICAST)


def followed(address: str, number: int, *, asking: str) -> list[dict[str, Any]]:
    """Return what a tenant is told of a message of an importer, with so many receivers and messages of the exporter."""
    world = Tenants(
        "AB",
        [("A", "B")],
        MULTICAST,
        bananas='exports = [{ pattern = "#", to = "apples", as = "of/#", may = ["send"] }]',
        apples='imports = [{ from = "bananas", pattern = "of/#" }]',
    )
    bob, ann = world.client("bananas", container_id="bob"), world.client("apples")
    context = world.mesh["A"].core.context
    links = [bob.receiver(address, credit=0)]
    links += [bob.receiver(address, copy=address == "copied", credit=0) for _ in range(number)]
    if address == "all":
        world.client("bananas", "B").receiver(address, credit=10)
    world.rest()
    sender, others = ann.sender(None), bob.sender(None)
    if address == "busy":
        for _ in range(number):
            bob.send(others, message(to=address))
    trace = context.traces.begin(ID, "apples", world.mesh.now)
    assert trace is not None
    tracing.await_next(context, "bananas", address, trace)
    sent = ann.send(sender, message(to=f"of/{address}"))
    for link in links:
        link.flow(10)
        world.mesh.advance(0.1)
    for _ in range(3):
        for client in (bob, *world.mesh["B"].clients):
            for arrival in client.take():
                arrival.accept()
        world.mesh.advance(0.1)
    assert sent.outcome is not None
    found: Any = events_of(trace, 0, asking)["events"]
    assert found[-1]["event"] == "ended"
    return [{name: value for name, value in each.items() if name not in ("at", "waited")} for each in found]


@pytest.mark.parametrize("address", ["q", "busy", "all", "copied"])
def test_an_importer_is_told_the_same_however_much_the_exporter_has(address: str) -> None:
    told = followed(address, 1, asking="apples")
    assert followed(address, 4, asking="apples") == told
    assert "bob" not in str(told)
    assert {"came", "chosen", "told"} <= {each["event"] for each in told}


def test_the_operator_is_told_how_many_wait_before_it() -> None:
    (waits,) = (each for each in followed("busy", 4, asking="") if each["event"] == "waits")
    assert waits["ahead"] == 4
