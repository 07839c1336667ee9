"""The pictures of the pages, drawn again from tables, frames and imports, and compared."""

from html import escape
from pathlib import Path

import pytest

from amqpmesh import router
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Disposition, Flow, Open, Performative, Transfer
from amqpmesh.router.amqp.states import CONNECTION, ConnectionState, Step
from amqpmesh.router.runtime.router import Router
from benchmarks.figures import committed
from benchmarks.patterns import PART, names
from docs.drawing import deliveries, patterns, pictures, rooms, states
from docs.drawing.deliveries import RECEIVER, ROUTER, SENDER, Exchange
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit

FILES = Path(__file__).parents[2] / "docs" / "pictures"


def test_every_picture_is_up_to_date() -> None:
    drawn = dict(pictures.all_of_them())
    assert {path.name for path in FILES.iterdir()} == drawn.keys()
    for name, text in drawn.items():
        assert (FILES / name).read_text(encoding="utf-8") == text, f"{name}: run `make picture`"


def test_every_state_and_every_step_is_in_the_picture() -> None:
    for chart in states.CHARTS:
        picture = states.drawn(chart)
        arrows = {(start, end) for start, steps in chart.table.items() for end in steps.values()}
        assert picture.count('class="head ') == len(arrows) + 3  # with those of the legend
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


def test_an_arrow_that_leads_to_no_lower_row_is_upward() -> None:
    drawn = rooms.Rooms(
        (("core",), ("mesh", "attach")), frozenset({("core", "mesh"), ("mesh", "attach"), ("attach", "core")})
    )
    assert drawn.upward == {("mesh", "attach"), ("attach", "core")}
    assert str(drawn) == "3 rooms, 3 arrows, 2 of them upward"


def test_upward_arrows_and_those_that_follow_from_no_other_are_in_the_picture() -> None:
    rows = (("core",), ("mesh",), ("model",))
    follows = frozenset({("core", "mesh"), ("mesh", "model"), ("core", "model"), ("model", "core")})
    picture = rooms.drawn(rooms.Rooms(rows, follows), "x")
    assert picture.count('class="head plain thin"') == 2
    assert picture.count('class="head error"') == 1


def test_every_room_of_the_router_is_in_its_picture() -> None:
    drawn = {room for row in rooms.router().rows for room in row}
    found = {path.stem for path in Path(router.__file__).parent.iterdir() if path.suffix in {"", ".py"}}
    assert drawn == found - {"__init__", "__pycache__"}


def test_every_pattern_is_in_its_picture() -> None:
    picture = patterns.drawn()
    assert [name for name in names() if f">{escape(name)}</text>" not in picture] == []
    measured = [found for name, found in committed()["results"][PART].items() if name in names()]
    assert picture.count('class="head ours"') == len(names()) + 1  # with that of the legend
    assert picture.count('class="head theirs"') == sum("other" in found for found in measured) + 1


def words(frame: Performative) -> str:
    """Return the text of a frame in the pictures, up to a colon."""
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
                # The next frame must be the drawn one: also a flow must be the first and only one.
                found = await peers[drawn.target].next_frame()
                assert found is not None
                assert type(found[0]).__name__.lower() == drawn.frame
                assert words(found[0]) == said
        for peer in peers.values():
            await peer.close()
    assert router.statistics().is_empty
