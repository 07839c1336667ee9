"""The pictures of the pages, drawn again from tables, frames and imports, and compared."""

from pathlib import Path

import grimp
import networkx
import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Disposition, Flow, Open, Performative, Transfer
from amqpmesh.router.amqp.states import CONNECTION, ConnectionState, Step
from amqpmesh.router.runtime.router import Router
from docs.drawing import deliveries, pictures, rooms, states
from docs.drawing.deliveries import RECEIVER, ROUTER, SENDER, Exchange
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit

FILES = Path(__file__).parents[2] / "docs" / "pictures"


def test_every_picture_is_up_to_date() -> None:
    drawn = dict(pictures.all_of_them())
    assert {path.name for path in FILES.iterdir()} == drawn.keys()
    for name, text in drawn.items():
        assert (FILES / name).read_text(encoding="utf-8") == text, f"{name}: run `python -m docs.drawing`"


def test_every_state_and_every_step_is_in_the_picture() -> None:
    for chart in states.CHARTS:
        picture = states.drawn(chart)
        arrows = {(start, end) for start, steps in chart.table.items() for end in steps.values()}
        assert picture.count('class="head ') == len(arrows) + 3  # and those of the legend
        for state in chart.table:
            assert f">{state.name.replace('_', ' ')}</text>" in picture


def test_a_state_that_has_no_place_is_an_error() -> None:
    connection = states.CHARTS[0]
    fewer = {state: cell for state, cell in connection.places.items() if state is not ConnectionState.END}
    with pytest.raises(ValueError, match="END"):
        states.drawn(states.Chart(name="c", title="c", table=CONNECTION, places=fewer))


def test_a_new_step_is_drawn() -> None:
    connection = states.CHARTS[0]
    before = states.drawn(connection)
    more = {**CONNECTION, ConnectionState.END: {Step.SENT_HEADER: ConnectionState.START}}
    after = states.drawn(states.Chart(name="c", title="c", table=more, places=connection.places))
    assert after.count('class="head ') == before.count('class="head ') + 1


def test_no_room_imports_another_against_the_arrows() -> None:
    allowed = networkx.transitive_closure(networkx.DiGraph(rooms.ARROWS))
    graph = grimp.build_graph("amqpmesh")
    imported: set[tuple[str, str]] = set()
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            pair = (room_of(module), room_of(target))
            if pair[0] != pair[1] and "" not in pair:
                assert allowed.has_edge(*pair), f"{module} imports {target}"
                imported.add(pair)
    for source, target in rooms.ARROWS:
        reached = {target, *(below for _, below in allowed.out_edges(target))}
        assert any((source, each) in imported for each in reached), f"{source} imports nothing of {target}"


def room_of(module: str) -> str:
    """The room that a module is in; empty for the face, and for what runs whole routers."""
    if module.startswith("amqpmesh.topology.simulation"):
        return ""
    name = module.removeprefix("amqpmesh").removeprefix(".")
    if name.startswith(("router.client", "router.runtime")):
        name = "router.io"  # the edge, drawn as one
    return max((room for room in rooms.ROOMS if f"{name}.".startswith(f"{room}.")), key=len, default="")


def words(frame: Performative) -> str:
    """What the pictures say of a frame, before a colon."""
    if isinstance(frame, Flow):
        return f"link-credit {frame.link_credit}"
    if isinstance(frame, Transfer):
        return f"delivery-id {frame.delivery_id}"
    assert isinstance(frame, Disposition)
    return ", ".join([*(["accepted"] if frame.state == Accepted() else []), *(["settled"] if frame.settled else [])])


async def attached_by(router: Router, role: Role, mode: ReceiverSettleMode) -> Peer:
    peer = await connect(router)
    await peer.write(AMQP, Open(container_id=role.name), begun(), attached(role, "hello", rcv_settle_mode=mode))
    assert await peer.expect_header() == AMQP
    for kind in (Open, Begin, Attach):
        await peer.expect(kind)
    return peer


@pytest.mark.parametrize("exchange", deliveries.EXCHANGES, ids=lambda exchange: exchange.name)
async def test_a_router_exchanges_the_frames_that_are_drawn(exchange: Exchange) -> None:
    mode = ReceiverSettleMode.SECOND if exchange.name.endswith("second") else ReceiverSettleMode.FIRST
    async with Router(listeners=["amqp://127.0.0.1:0"]) as router:
        roles = {RECEIVER: Role.RECEIVER, SENDER: Role.SENDER}
        peers = {name: await attached_by(router, role, mode) for name, role in roles.items()}
        for drawn in exchange.frames:
            said = drawn.text.partition(":")[0]
            if drawn.target == ROUTER:
                match drawn.frame:
                    case "flow":
                        await peers[drawn.source].write(credit(int(said.rpartition(" ")[2])))
                    case "transfer":
                        await peers[drawn.source].send(0)
                    case "disposition":
                        state = Accepted() if "accepted" in said else None
                        await peers[drawn.source].write(
                            Disposition(role=roles[drawn.source], first=0, settled="settled" in said, state=state)
                        )
            else:
                # Whatever comes: the flow, too, must be the first and the only one of its sort.
                found = await peers[drawn.target].next_frame()
                assert found is not None
                assert type(found[0]).__name__.lower() == drawn.frame
                assert words(found[0]) == said
        for peer in peers.values():
            await peer.close()
    assert router.statistics().is_empty
