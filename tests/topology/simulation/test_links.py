"""The simulated network between two hosts."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from amqpmesh.topology.simulation.links import WINDOW, Conditions, End
from amqpmesh.topology.simulation.log import Log
from amqpmesh.topology.simulation.network import Host, Network, NetworkPath

PORT = 7


class World:
    """Two hosts, a path, and the server at one of them."""

    def __init__(self, nursery: trio.Nursery, conditions: Conditions) -> None:
        self.log = Log()
        self.network = Network(Random(1), self.log)
        self.near, self.far = Host("near"), Host("far")
        self.path: NetworkPath = self.network.path(conditions)
        self.ends = trio.open_memory_channel[End](10)
        self.far.servers[PORT] = self._serve
        self._nursery = nursery

    async def _serve(self, end: End, peer: Host) -> None:
        await self.ends[0].send(end)

    async def joined(self) -> tuple[End, End]:
        near = await self.connect()
        return near, await self.ends[1].receive()

    async def connect(self) -> End:
        return await self.network.connect(self.near, self.far, PORT, self.path, self._nursery.start_soon)


MakeWorld = Callable[..., World]


@pytest.fixture
def world(nursery: trio.Nursery, _amqpmesh_virtual_time: None) -> MakeWorld:
    return lambda **conditions: World(nursery, Conditions(**conditions))


async def everything(end: End, number: int) -> bytes:
    found = b""
    while len(found) < number:
        found += await end.receive_some()
    return found


async def taking(what: Callable[[], Awaitable[object]]) -> float:
    began = trio.current_time()
    await what()
    return trio.current_time() - began


async def test_connecting_takes_the_way_there_and_back_and_octets_take_one(world: MakeWorld) -> None:
    here = world(latency=0.05)
    near, far = await here.joined()
    assert trio.current_time() == pytest.approx(0.1)
    await near.send_all(b"tea")
    assert await taking(far.receive_some) == pytest.approx(0.05)
    await far.send_all(b"milk")
    assert await taking(near.receive_some) == pytest.approx(0.05)


async def test_jitter_is_chance_and_changes_no_order(world: MakeWorld) -> None:
    near, far = await world(latency=0.01, jitter=0.1).joined()
    late = []
    for number in range(20):
        await near.send_all(bytes((number,)))
    began = trio.current_time()
    for number in range(20):
        assert await far.receive_some(1) == bytes((number,))
        late.append(trio.current_time() - began)
    assert len(set(late)) > 1
    assert 0.01 <= late[0] <= late[-1] <= 0.11


async def test_bandwidth_is_shared_by_all_connections_each_way_by_itself(world: MakeWorld) -> None:
    here = world(bandwidth=10_000.0)
    (one, one_far), (two, two_far) = await here.joined(), await here.joined()
    began = trio.current_time()
    await one.send_all(bytes(1000))
    await two.send_all(bytes(1000))
    await one_far.send_all(bytes(1000))
    await everything(one_far, 1000)
    assert trio.current_time() - began == pytest.approx(0.1)
    await everything(one, 1000)
    assert trio.current_time() - began == pytest.approx(0.1)
    await everything(two_far, 1000)
    assert trio.current_time() - began == pytest.approx(0.2)


async def test_a_writer_waits_for_the_reader(world: MakeWorld) -> None:
    near, far = await world().joined()
    await near.send_all(bytes(WINDOW))
    with trio.move_on_after(10) as waited:
        await near.send_all(b"more")
    assert waited.cancelled_caught
    await everything(far, WINDOW)
    assert await taking(lambda: near.send_all(b"more")) == 0.0


async def test_the_end_comes_after_all_that_was_written(world: MakeWorld) -> None:
    near, far = await world(latency=0.01).joined()
    await near.send_all(b"tea")
    await near.send_eof()
    assert await far.receive_some() == b"tea"
    assert await far.receive_some() == b""
    await far.send_all(b"milk")
    assert await near.receive_some() == b"milk"
    await far.aclose()
    assert await near.receive_some() == b""
    for call in (far.receive_some(), far.send_all(b"x"), far.send_eof()):
        with pytest.raises(trio.ClosedResourceError):
            await call


async def test_what_is_on_a_connection_that_is_lost_is_lost_with_it_and_both_hear(world: MakeWorld) -> None:
    here = world(latency=0.01)
    near, far = await here.joined()
    await near.send_all(b"tea")
    assert here.network.break_all(here.path) == 1
    for call in (near.receive_some(), far.receive_some(), near.send_all(b"x"), far.send_all(b"x")):
        with pytest.raises(trio.BrokenResourceError):
            await call
    assert here.network.break_all(here.path) == 0


async def test_nothing_comes_about_by_a_road_that_is_cut(world: MakeWorld) -> None:
    here = world()
    here.path.cut = True
    with pytest.raises(OSError, match="No route to host"):
        await here.connect()
    here.path.cut = False
    del here.far.servers[PORT]
    with pytest.raises(OSError, match="Connection refused"):
        await here.connect()


async def test_octets_wait_for_the_end_of_a_partition_and_none_is_lost(world: MakeWorld) -> None:
    here = world(latency=0.01)
    near, far = await here.joined()
    await near.send_all(b"tea")
    here.network.partition([[here.near], [here.far]])
    await near.send_all(b" and milk")
    with trio.move_on_after(10) as waited:
        await far.receive_some()
    assert waited.cancelled_caught
    with trio.move_on_after(10) as waited:
        await here.connect()
    assert waited.cancelled_caught
    here.network.partition([])
    assert await taking(lambda: everything(far, 12)) == pytest.approx(0.01)
    await here.connect()


async def test_a_host_that_died_is_heard_to_its_last_word_then_no_more(world: MakeWorld) -> None:
    here = world(latency=0.01)
    near, far = await here.joined()
    await far.send_all(b"last words")
    here.network.kill(here.far)
    with pytest.raises(trio.ClosedResourceError):
        await far.send_all(b"a ghost's")
    await near.send_all(b"are you there?")
    assert await near.receive_some() == b"last words"
    with pytest.raises(trio.BrokenResourceError, match="reset by its other end"):
        await near.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await near.send_all(b"?")


async def test_a_frozen_host_reads_nothing_and_takes_no_connection_up_until_it_goes_on(world: MakeWorld) -> None:
    here = world(latency=0.01)
    near, far = await here.joined()
    here.far.frozen = True
    await near.send_all(b"tea")
    with trio.move_on_after(10) as waited:
        await far.receive_some()
    assert waited.cancelled_caught
    here.far.thaw()
    assert await taking(lambda: everything(far, 3)) == 0.0


@pytest.mark.parametrize("wrong", [{"latency": -1.0}, {"jitter": -0.1}, {"bandwidth": 0.0}])
def test_no_network_has_that(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no network has"):
        Conditions(**wrong)
