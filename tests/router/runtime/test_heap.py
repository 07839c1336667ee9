"""Memory of connections and deliveries, freed when most of them are gone."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterator
from weakref import ref

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Detach, Disposition, Transfer
from amqpmesh.router.core import RELAY
from amqpmesh.router.kernel import KernelLink
from amqpmesh.router.runtime import heap
from amqpmesh.router.runtime.heap import MIN_OCTETS, Peaks, RouterMemory
from amqpmesh.router.runtime.router import Router, memory_of
from tests.support.peers.scripted_stream import connect, credit

MIB = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def frozen_as_before() -> Iterator[None]:
    """Freeze the objects of all tests again (see `tests/conftest.py`): a search for garbage here unfreezes them."""
    yield
    gc.collect()
    gc.freeze()


class Knot:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


class Remembered(RouterMemory):
    """Memory whose use in each second is given in advance."""

    def __init__(self, *peaks: Peaks, littered: int | None = None) -> None:
        """Args: littered: the number of remaining checks at which many objects end."""
        self.left = list(peaks)
        self.littered = littered
        self.done = list[str]()
        self.ended = trio.Event()

    def peaks(self) -> Peaks:
        if len(self.left) == 1:
            self.ended.set()
        return self.left.pop(0)

    def has_garbage(self) -> bool:
        return len(self.left) == self.littered

    def compact(self) -> None:
        self.done.append("compact")


async def looked(held: Remembered, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seconds in which memory was freed."""
    given_back = list[int]()
    began = trio.current_time()

    def trim() -> None:
        assert held.done.pop() == "compact"
        given_back.append(round(trio.current_time() - began))

    monkeypatch.setattr(heap, "trim", trim)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heap.return_free_memory, held)
        await held.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return given_back


@pytest.mark.parametrize(
    ("counts", "given_back"),
    [
        ([300, 300, 300, 300], []),
        ([300, 10, 10, 10], [3]),
        ([300, 190, 80, 10, 10], [4]),  # not while many are still ending
        ([300, 200, 150, 110, 10, 10], [4]),  # while few are ending
        ([300, 160, 160, 160], []),  # more exist than have ended
        ([90, 0, 0, 0], []),  # too few
        ([300, 0, 0, 500, 0, 0, 0], [3, 6]),
        ([300, 151, 150, 149, 148], [4]),  # a few end in each second
        ([10, 9, 10, 9, 10, 9] * 100, []),  # others begin
    ],
)
async def test_it_is_looked_for_when_more_have_left_than_are_there(
    counts: list[int], given_back: list[int], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks() -> None:
        raise AssertionError("it takes long, and connections leave no garbage")

    monkeypatch.setattr(heap, "collect", looks)
    assert await looked(Remembered(*(Peaks(count, 0) for count in counts)), monkeypatch) == given_back


@pytest.mark.parametrize(
    ("octets", "given_back"),
    [
        ([8 * MIB, 8 * MIB, 5 * MIB, 5 * MIB], []),
        ([8 * MIB, 3 * MIB, 3 * MIB, 2 * MIB], [3]),
        ([MIN_OCTETS, 0, 0], []),
        ([MIN_OCTETS + 1, 0, 0], [3]),
        ([8 * MIB, 0, 8 * MIB, 0, 0], [5]),
    ],
)
async def test_nobody_looks_for_garbage_when_deliveries_are_gone_since_they_leave_none(
    octets: list[int], given_back: list[int], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks() -> None:
        raise AssertionError("it takes as long as there are connections")

    monkeypatch.setattr(heap.gc, "collect", looks)
    assert await looked(Remembered(*(Peaks(5_000, each) for each in octets)), monkeypatch) == given_back


@pytest.mark.parametrize(
    ("resident", "given_back"),
    [
        ([40, 72, 72, 72], []),
        ([40, 73, 50, 50, 50], [2]),
        ([40, 80, 80, 80, 80], [2]),  # fragmented memory stays, and no second attempt follows
        ([40, 80, 60, 93, 93], [2, 4]),
        ([40, 80, 60, 92, 92], [2]),
    ],
)
async def test_it_is_looked_for_when_much_more_is_there_than_is_held(
    resident: list[int], given_back: list[int], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [each * MIB + 1 for each in resident]
    monkeypatch.setattr(heap, "resident", lambda: left[0] if len(left) == 1 else left.pop(0))

    class Steady(Remembered):
        def compact(self) -> None:
            super().compact()
            left.insert(0, left[0] if left else 0)  # one more reading follows when memory was freed

    held = Steady(*[Peaks(10, MIB)] * len(resident))
    assert await looked(held, monkeypatch) == given_back


async def test_what_could_not_be_given_back_is_tried_again_a_while_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 130
    resident = iter([40 * MIB, *[200 * MIB] * 2 * looks])
    monkeypatch.setattr(heap, "resident", lambda: next(resident))
    assert await looked(Remembered(*[Peaks(10, MIB)] * looks), monkeypatch) == [2, 62, 122]


async def test_what_garbage_had_is_given_back_once_it_was_looked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    knot = Knot()
    gone = ref(knot)
    del knot
    assert await looked(Remembered(*[Peaks(10, 0)] * 5, littered=2), monkeypatch) == [3]
    assert gone() is None


def test_what_a_process_has_is_known_where_the_system_says_it() -> None:
    assert (heap.resident() > 10 * MIB) == sys.platform.startswith("linux")


async def test_a_router_says_what_it_had_at_most_and_lets_go_of_the_room_of_what_is_gone() -> None:
    count = 200
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        held = memory_of(router)
        assert held.peaks() == Peaks(0, 0)
        core = router._core
        assert core is not None
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "a")
        await receiver.write(credit(count))
        await sender.attach(Role.SENDER, "a")
        for number in range(count):
            await sender.send(number)
        transfers = [await receiver.expect(Transfer) for _ in range(count)]
        (incoming,) = (each for record in core.context.connections for each in record.incoming)
        room = incoming.endpoint.flow_state.unsettled
        ledgers = [session.flow_state for each in core.context.connections for session in each.engine.channels.sessions]
        most = held.peaks()
        assert most.connections == 2
        assert most.octets >= count * RELAY
        assert held.peaks() == Peaks(2, count * RELAY)

        held.compact()  # objects in use stay
        for transfer in transfers[:-1]:
            await receiver.accept(transfer)
        await trio.testing.wait_all_tasks_blocked()
        while core.context.in_flight > 1:
            await trio.testing.wait_all_tasks_blocked()
        taken = sys.getsizeof(room)
        held.compact()
        assert len(room) == 1
        assert sys.getsizeof(room) < taken / 10
        await receiver.accept(transfers[-1])
        while core.context.in_flight:
            await trio.testing.wait_all_tasks_blocked()
        assert held.peaks() == Peaks(2, count * RELAY)
        assert held.peaks() == Peaks(2, 0)
        held.compact()
        assert all(len(ledger.slots) <= 8 for each in ledgers for ledger in (each.incoming, each.outgoing))

        settled = 0
        while settled < count:
            said = await sender.expect(Disposition)
            settled += (said.last or said.first) - said.first + 1
        await receiver.write(credit(count + 1))  # the link continues
        await sender.send(count)
        await receiver.accept(await receiver.expect(Transfer))
        await sender.expect(Disposition)
        for peer in (sender, receiver):
            await peer.close()


def test_the_library_of_this_system_is_told() -> None:
    assert heap.trim() == (platform.libc_ver()[0] == "glibc")


async def test_nothing_stays_of_connections_that_are_cut_with_deliveries_under_way() -> None:
    """The garbage collector does not see fast deliveries: a link that it frees must not hold any."""

    def links() -> int:
        gc.collect()
        return sum(isinstance(each, KernelLink) for each in gc.get_objects())

    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        await trio.testing.wait_all_tasks_blocked()
        before = links()  # its own
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "a")
        await receiver.write(credit(50))
        await sender.attach(Role.SENDER, "a")
        for number in range(50):
            await sender.send(number)
        for _ in range(50):
            await receiver.expect(Transfer)
        assert links() == before + 2
        for peer in (sender, receiver):
            await peer.stream.aclose()
        while router.statistics().connections:
            await trio.testing.wait_all_tasks_blocked()
        assert links() == before


def test_what_stays_is_not_looked_at_for_garbage_again_until_all_of_it_is() -> None:
    with heap.freezing_old_objects():
        stays = [[each] for each in range(30_000)]
        knot = Knot()
        knows = ref(knot)
        gc.collect(1)
        assert len(gc.get_objects()) < 3_000, "of all there is a search looks at what has come since"
        del knot
        gc.collect()
        assert knows() is not None
        heap.collect()
        assert knows() is None
    assert len(gc.get_objects()) > len(stays)


async def test_garbage_is_looked_for_once_more_is_over_and_not_freed_than_there_is(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "MIN_CLOSED", 4)
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        held = memory_of(router)
        assert router._core is not None
        context = router._core.context
        kept: list[object] = []
        for _ in range(3):
            assert not held.has_garbage()
            for _ in range(3):
                peer = await connect(router)
                await peer.attach(Role.RECEIVER, "a")
                kept += [each for record in context.connections for each in record.outgoing]
                await peer.stream.aclose()
                while router.statistics().connections:
                    await trio.testing.wait_all_tasks_blocked()
            assert held.has_garbage()
            assert not held.has_garbage(), "a collection has just not freed it"
        kept.clear()
        assert not held.has_garbage()


@pytest.mark.parametrize("ending", ["cut", "detached", "closed"])
async def test_a_connection_is_freed_without_the_garbage_collector(ending: str) -> None:
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        assert router._core is not None
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "a")
        await receiver.write(credit(2))
        await sender.attach(Role.SENDER, "a")
        await sender.send(0)
        await receiver.accept(await receiver.expect(Transfer))
        await sender.send(1)
        await receiver.expect(Transfer)
        gc.disable()
        try:
            for peer in (sender, receiver):
                if ending == "cut":
                    await peer.stream.aclose()
                    continue
                await peer.write(Detach(handle=0, closed=True) if ending == "detached" else Close())
                while (found := await peer.next_frame()) is not None and not isinstance(found[0], Detach):
                    pass
            with trio.fail_after(10.0):
                while (said := router.statistics()).links or (said.connections and ending != "detached"):
                    await trio.testing.wait_all_tasks_blocked()
            assert router._core.count_garbage_and_present()[0] == 0
        finally:
            gc.enable()
