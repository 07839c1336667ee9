"""Answers to alike attaches: the second one has the octets of the first, but for its name and its handle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.router.amqp import alike_attaches
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Open
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.core import Core
from tests.support.peers.scripted import AMQP, Script, attached, begun

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0")

RECEIVERS = {
    "plain": attached(Role.RECEIVER, "q"),
    "copies": attached(Role.RECEIVER, "q", source=Source(address="q", distribution_mode=DistributionMode.COPY)),
    "an outcome of none": attached(
        Role.RECEIVER, "q", source=Source(address="q", outcomes=(Symbol("amqp:accepted:list"), Symbol("x")))
    ),
    "a default outcome": attached(Role.RECEIVER, "q", source=Source(address="q", default_outcome=Released())),
    "modified by default": attached(
        Role.RECEIVER, "q", source=Source(address="q", default_outcome=Modified(delivery_failed=True))
    ),
    "accepted by default": attached(Role.RECEIVER, "q", source=Source(address="q", default_outcome=Accepted())),
    "second": attached(Role.RECEIVER, "q", rcv_settle_mode=ReceiverSettleMode.SECOND),
    "a redirected one": attached(Role.RECEIVER, "q", desired_capabilities=(Symbol("amqpmesh:redirect"),)),
    "dynamic": attached(Role.RECEIVER, None, source=Source(dynamic=True)),
    "no address": attached(Role.RECEIVER, None),
}
SENDERS = {
    "plain": attached(Role.SENDER, "q"),
    "pre-settled": attached(Role.SENDER, "q", snd_settle_mode=SenderSettleMode.SETTLED),
    "anonymous": attached(Role.SENDER, None, target=Target()),
    "no target": attached(Role.SENDER, None, target=None),
    "dynamic": attached(Role.SENDER, None, target=Target(dynamic=True)),
}


class Peer(Script):
    """A peer of a router, on a connection of its own."""

    def __init__(self, router: Core) -> None:
        self.router = router
        self.record = router.accept(LISTENER, "127.0.0.1", 0.0, secured=False)
        router.context.on_output = lambda _: None
        super().__init__(self._give_all, lambda: bytes(router.data_to_send(self.record, 0.0)))
        self.write(AMQP, Open(container_id="peer"), begun())
        self.expect_header()
        self.expect_all(Open, Begin)

    def _give_all(self, data: bytes) -> None:
        while not self.router.receive(self.record, data, 0.0):
            data = b""

    def asks(self, attach: Attach) -> list[object]:
        """Attach. Returns: the frames that follow, without the name, the handle, and what a dynamic node is called."""
        self.write(attach)
        answer, *others = [each.performative for each in self.hear()]
        assert isinstance(answer, Attach)
        assert answer.name == attach.name
        if answer.source is not None and isinstance(attach.source, Source) and attach.source.dynamic:
            answer = replace(answer, source=replace(answer.source, address="dynamic"))
        if isinstance(answer.target, Target) and answer.target.dynamic:
            answer = replace(answer, target=replace(answer.target, address="dynamic"))
        return [replace(answer, name="", handle=0), *(type(each) for each in others)]


@pytest.mark.parametrize(
    "attach", [*RECEIVERS.values(), *SENDERS.values()], ids=[*RECEIVERS, *(f"sender, {each}" for each in SENDERS)]
)
def test_an_alike_attach_gets_the_answer_of_the_first(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = alike_attaches.LONGEST
    monkeypatch.setattr(alike_attaches, "LONGEST", 0)
    expected = Peer(Core(RouterConfig(id="A"), 0.0)).asks(attach)
    monkeypatch.setattr(alike_attaches, "LONGEST", longest)
    monkeypatch.setattr(alike_attaches, "_known", {})
    router = Core(RouterConfig(id="A"), 0.0)
    peer = Peer(router)
    assert peer.asks(attach) == expected
    assert len(alike_attaches._known) == 1
    assert peer.asks(replace(attach, name="another", handle=1)) == expected
    assert Peer(router).asks(replace(attach, name="n" * 250, handle=300)) == expected
    assert len(alike_attaches._known) == 1


def test_answers_to_the_peers_of_two_limits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_attaches, "_known", {})
    limits = []
    for most in (1000, 2000, 1000):
        listener = replace(LISTENER, max_message_size=most)
        monkeypatch.setattr(f"{__name__}.LISTENER", listener)
        (answer, *_) = Peer(Core(RouterConfig(id="A"), 0.0)).asks(SENDERS["plain"])
        assert isinstance(answer, Attach)
        limits.append(answer.max_message_size)
    assert limits == [1000, 2000, 1000]
    assert len(alike_attaches._known) == 1
