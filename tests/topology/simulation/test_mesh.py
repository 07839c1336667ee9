"""Meshes in virtual time: that they are what they say, and the same each time."""

import trio

from amqpmesh.topology.simulation.mesh import Mesh


async def test_a_message_crosses_three_routers_and_takes_its_time(mesh: Mesh) -> None:
    a, _, c = await mesh.line("A", "B", "C", latency=0.005)
    await mesh.settled()
    async with mesh.connect("A") as near, mesh.connect("C") as far:
        async with near.sender("q") as sender, far.receiver("q") as receiver:
            while not sender.credit:
                await trio.sleep(0.001)
            began = trio.current_time()
            sent = await sender.transfer("tea")
            async with await receiver.receive() as message:
                assert message.body == "tea"
            there = trio.current_time() - began
            await sent.outcome()
    assert 0.012 <= there < 0.013
    assert mesh["A"] is a
    assert c.is_running
