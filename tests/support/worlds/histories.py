"""Random histories of a mesh: routers, clients, messages, and faults.

Nothing is random but what a `Random` says, so a history can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from tests.support.worlds.correspondence import ADDRESSES, Correspondence, Kind
from tests.support.worlds.letters import check, check_order


class History(Correspondence):
    """The events of a mesh and of its clients, and the end of both."""

    def run(self, steps: int) -> None:
        """Take random steps."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (2, self.connect),
            (5, self.attach_sender),
            (5, self.attach_receiver),
            (40, self.send),
            (15, self.finish),
            (30, self.dispose),
            (4, self.answer),
            (4, self.settle),
            (10, self.flow),
            (8, self.wait),
            (2, self.stop_reading),
            (2, self.detach_sender),
        ]
        if self.rules.departures:
            actions += [(2, self.detach_receiver), (1, self.leave), (3, self.lower)]
        if self.rules.faults:
            actions += [
                (3, self.cut),
                (3, self.join),
                (2, self.kill),
                (3, self.restart),
                (2, self.freeze),
                (2, self.cost),
                (1, self.partition),
                (1, self.drain),
            ]
        for _ in range(steps):
            self.random.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()
            self.collect()
            self.check_bounds()

    # ------------------------------------------------------------------------------------------------------ what breaks

    def cut(self) -> None:
        """Lose a connection."""
        if self.mesh.wires:
            wire = self.random.choice(self.mesh.wires)
            self.mesh.cut(wire)
            self._thawed()

    def join(self) -> None:
        """Start one more router."""
        if len(self.mesh.nodes) > 1 and len(self.mesh.wires) < 2 * len(self.names):
            one, two = self.random.sample(list(self.mesh.nodes), 2)
            self.mesh.join(one, two, self.random.randint(1, 4))

    def kill(self) -> None:
        """Kill a router."""
        if len(self.mesh.nodes) > 2:
            self._kill(self.random.choice(list(self.mesh.nodes)))

    def _kill(self, router: str) -> None:
        self.collect()
        for client in [each for each, where in self.clients.items() if where == router]:
            del self.clients[client]
            client.is_lost = True
            self._forget_all(client)
        self.mesh.kill(router)
        self._thawed()
        self.gone.append(router)
        if router in self.draining:
            self.draining.remove(router)

    def restart(self) -> None:
        """Start a killed router again."""
        if self.gone:
            router = self.gone.pop(self.random.randrange(len(self.gone)))
            self.mesh.start(router)
            other = self.random.choice([each for each in self.mesh.nodes if each != router])
            self.mesh.join(router, other, self.random.randint(1, 4))

    def freeze(self) -> None:
        """Let a connection carry nothing, or carry again."""
        if self.frozen:
            self.frozen.pop().frozen = False
            self.mesh.run()
        elif self.mesh.wires:
            wire = self.random.choice(self.mesh.wires)
            wire.frozen = True
            self.frozen.append(wire)

    def _thawed(self) -> None:
        self.frozen = [each for each in self.frozen if each in self.mesh.wires]

    def cost(self) -> None:
        """Change a cost."""
        if self.mesh.wires:
            core, record = self.random.choice(self.random.choice(self.mesh.wires).ends)
            assert core.mesh is not None
            neighbour = core.mesh.neighbours.get(record)
            if neighbour is not None:
                core.mesh.set_cost(neighbour, self.random.randint(1, 6))
                self.mesh.run()

    def partition(self) -> None:
        """Lose all connections of some routers."""
        some = {each for each in self.mesh.nodes if self.random.random() < 0.5}
        self.mesh.cut(*[each for each in self.mesh.wires if len(each.routers & some) == 1])
        self._thawed()

    def drain(self) -> None:
        """Let a router drain, and end some time later."""
        able = [each for each in self.mesh.nodes if each not in self.draining]
        if len(able) > 2:
            router = self.random.choice(able)
            self.draining.append(router)
            self.mesh[router].core.start_drain(self.mesh.now)
            self.mesh.run()

    # ---------------------------------------------------------------------------------------------------------- the end

    def heal(self) -> None:
        """Undo all faults."""
        for wire in self.frozen:
            wire.frozen = False
        self.mesh.run()
        for router in list(self.draining):
            self._kill(router)
        while self.gone:
            self.restart()
        if self.rules.faults:
            for one, two in pairwise(self.mesh.nodes):
                if not self.mesh.between(one, two):
                    self.mesh.join(one, two)
        for client in self.clients:
            client.stopped = False
        self.mesh.advance(60.0 if self.rules.faults else 2.0)

    def end(self) -> None:
        """End and decide everything; then assert that all accounts agree."""
        self.heal()
        self.collect()
        for link, letter in list(self.partial.items()):
            letter.aborted = True
            if letter.client not in self.clients:
                continue  # it was lost with another link of its own
            if link.is_attached and self._room(letter.client) > 0:
                letter.client.resume(letter.sent, aborted=True)
            elif letter.client in self.clients:  # links of it are not attached any more: more than one may be so
                self.clients.pop(letter.client)
                letter.client.lose()
                self._forget_all(letter.client)
        self.partial.clear()
        # What waits is taken, and decided.
        for _ in range(30):
            for receiver in list(self.receivers):
                if receiver.is_attached:
                    receiver.flow(50)
            self.mesh.advance(1.0)
            if not any(node.core.context.in_flight for node in self.mesh.nodes.values()):
                break
            self.collect()
            for arrival, letter in list(self.open.items()):
                letter.receipt(arrival).state = Accepted()
                arrival.accept()
            self.open.clear()
            self.mesh.advance(0.2)
            for letter in self.letters.values():
                # Else a receiver that has all that it may have unsettled gets nothing more.
                if letter.sender in self.senders and letter.sent.outcome is not None:
                    letter.sent.dispose(letter.sent.outcome, settled=True)
        for letter in self.letters.values():
            check(letter, self.rules, is_attached=letter.sender in self.senders and letter.sender.is_attached)
        if not self.rules.faults:
            self.check_ways()
        for letter in self.letters.values():
            if letter.sender in self.senders and not letter.sent.delivery.settled:
                letter.sent.dispose(letter.sent.outcome, settled=True)
        self.mesh.run()
        self.mesh.leave()

    def check_bounds(self) -> None:
        """Assert that no router holds more than it may, whatever its receivers do."""
        for node in self.mesh.nodes.values():
            assert node.core.context.budget.used <= 2 * self.memory
        if self.kind is Kind.CALM and not self.has_drained:
            for name in ADDRESSES:
                if name not in self.rules.attempts:  # what comes back waits without anybody's credit
                    self._check_waiting(name)

    def _check_waiting(self, name: str) -> None:
        """Assert that what waits is what receivers wanted, and one more delivery for each sink."""
        waiting = inputs = 0
        for node in self.mesh.nodes.values():
            here = [each for each in node.core.context.nodes.values() if split(each.name)[0] == name]
            ingresses = [each.ingress for each in here if each.ingress is not None]
            ways = [each for each in node.mesh.routes.nodes() if split(each.name)[0] == name]
            for each in (*here, *ingresses, *ways):
                waiting += each.waiting.size
                inputs += len(each.incoming) + len(each.borrowers)
        # A name is the same, whichever router's it is said to be.
        asked = sum(receiver.credit for receiver, (_, address) in self.receivers.items() if split(address)[0] == name)
        anonymous = sum(
            each.anonymous and split(each.to)[0] == name and not each.receipts for each in self.letters.values()
        )
        assert waiting <= asked + inputs + anonymous, ("too many wait", name, waiting, asked, inputs, anonymous)

    def check_ways(self) -> None:
        """Assert that in a mesh without changes no delivery goes in circles, and no loop has to be stopped."""
        assert self.trails.circles == []
        for router, node in self.mesh.nodes.items():
            assert node.core.context.no_hops == 0, router
        if self.kind is Kind.CALM:
            check_order([node.arrived for node in self.mesh.nodes.values()], self.of, self.rules.attempts)


def play(seed: int, steps: int, kind: Kind, *, most: int = 8, addresses: Sequence[str] = ADDRESSES) -> History:
    """Play one history."""
    history = History(Random(seed), kind, most=most, addresses=addresses)
    try:
        history.run(steps)
        history.end()
    except BaseException as error:
        error.add_note(f"play({seed}, {steps}, {kind}, most={most})")
        raise
    return history
