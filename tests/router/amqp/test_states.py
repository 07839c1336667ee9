"""The tables of states, compared with the figures of the standard (§2.4.7, §2.5.5, §2.6.2)."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

import pytest

from amqpmesh.router.amqp.states import (
    CONNECTION,
    LINK,
    SESSION,
    ConnectionState,
    LinkEndpointState,
    SessionState,
    Step,
    direct,
)

S = TypeVar("S", bound=Enum)

#: Figure 2.24: legal sends and receives. H is a header, O an open, * any frame (a close among them), - none.
FIGURE = """
START       H  H
HDR_RCVD    H  O
HDR_SENT    O  H
HDR_EXCH    O  O
OPEN_RCVD   O  *
OPEN_SENT   *  O
OPEN_PIPE   *  H
CLOSE_PIPE  -  O
OC_PIPE     -  H
OPENED      *  *
CLOSE_RCVD  *  -
CLOSE_SENT  -  *
DISCARDING  -  *
END         -  -
"""
SENDS = {"H": {Step.SENT_HEADER}, "O": {Step.SENT_OPEN}, "*": {Step.SENT_CLOSE, Step.SENT_ERROR}, "-": set()}
RECEIVES = {"H": {Step.RECEIVED_HEADER}, "O": {Step.RECEIVED_OPEN}, "*": {Step.RECEIVED_CLOSE}, "-": set()}

ROWS = [line.split() for line in FIGURE.strip().splitlines()]

#: Our endpoint answers an open before it reads on, and reads no frame before its own header is sent.
LEFT_OUT = {("HDR_RCVD", Step.RECEIVED_OPEN), ("OPEN_RCVD", Step.RECEIVED_CLOSE)}


@pytest.mark.parametrize(("name", "sends", "receives"), ROWS, ids=[row[0] for row in ROWS])
def test_a_connection_sends_and_receives_what_figure_2_24_permits(name: str, sends: str, receives: str) -> None:
    steps = set(CONNECTION[ConnectionState[name]])
    permitted = SENDS[sends] | RECEIVES[receives]
    assert steps == permitted - {step for state, step in LEFT_OUT if state == name}


def walk(table: Mapping[S, Mapping[Step, S]], start: S, *steps: Step) -> list[str]:
    names = []
    state = start
    for step in steps:
        state = table[state][step]
        names.append(state.name)
    return names


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        pytest.param(
            "RECEIVED_HEADER SENT_HEADER RECEIVED_OPEN SENT_OPEN RECEIVED_CLOSE SENT_CLOSE",
            "HDR_RCVD HDR_EXCH OPEN_RCVD OPENED CLOSE_RCVD END",
            id="a server",
        ),
        pytest.param(
            "SENT_HEADER RECEIVED_HEADER SENT_OPEN RECEIVED_OPEN SENT_CLOSE RECEIVED_CLOSE",
            "HDR_SENT HDR_EXCH OPEN_SENT OPENED CLOSE_SENT END",
            id="a client",
        ),
        pytest.param(
            "SENT_HEADER SENT_OPEN RECEIVED_HEADER RECEIVED_OPEN SENT_ERROR RECEIVED_CLOSE",
            "HDR_SENT OPEN_PIPE OPEN_SENT OPENED DISCARDING END",
            id="a client that pipelines its open",
        ),
        pytest.param(
            "SENT_HEADER SENT_OPEN SENT_CLOSE RECEIVED_HEADER RECEIVED_OPEN RECEIVED_CLOSE",
            "HDR_SENT OPEN_PIPE OC_PIPE CLOSE_PIPE CLOSE_SENT END",
            id="a client that pipelines all",
        ),
    ],
)
def test_a_connection_goes_through_the_states_of_figure_2_23(steps: str, names: str) -> None:
    assert walk(CONNECTION, ConnectionState.START, *(Step[step] for step in steps.split())) == names.split()


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ("SENT_BEGIN RECEIVED_BEGIN SENT_END RECEIVED_END", "BEGIN_SENT MAPPED END_SENT UNMAPPED"),
        ("RECEIVED_BEGIN SENT_BEGIN RECEIVED_END SENT_END", "BEGIN_RCVD MAPPED END_RCVD UNMAPPED"),
        ("SENT_BEGIN RECEIVED_BEGIN SENT_ERROR RECEIVED_END", "BEGIN_SENT MAPPED DISCARDING UNMAPPED"),
    ],
)
def test_a_session_goes_through_the_states_of_figure_2_30(steps: str, names: str) -> None:
    assert walk(SESSION, SessionState.UNMAPPED, *(Step[step] for step in steps.split())) == names.split()


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ("SENT_ATTACH RECEIVED_ATTACH SENT_DETACH RECEIVED_DETACH", "ATTACH_SENT ATTACHED DETACH_SENT DETACHED"),
        ("RECEIVED_ATTACH SENT_ATTACH RECEIVED_DETACH SENT_DETACH", "ATTACH_RCVD ATTACHED DETACH_RCVD DETACHED"),
        ("SENT_ATTACH RECEIVED_ATTACH SENT_ERROR RECEIVED_DETACH", "ATTACH_SENT ATTACHED DISCARDING DETACHED"),
    ],
)
def test_a_link_endpoint_has_the_handles_that_its_state_says(steps: str, names: str) -> None:
    assert walk(LINK, LinkEndpointState.DETACHED, *(Step[step] for step in steps.split())) == names.split()


@pytest.mark.parametrize(
    ("table", "end"),
    [
        pytest.param(CONNECTION, ConnectionState.END, id="connection"),
        pytest.param(SESSION, SessionState.UNMAPPED, id="session"),
        pytest.param(LINK, LinkEndpointState.DETACHED, id="link"),
    ],
)
def test_from_every_state_there_is_a_way_to_the_end(table: Mapping[S, Mapping[Step, S]], end: S) -> None:
    assert set(table) == set(type(end)), "every state has a row"
    reaching = {end}
    while more := {state for state, steps in table.items() if reaching & set(steps.values())} - reaching:
        reaching |= more
    assert reaching == set(table)


@pytest.mark.parametrize("members", [Step, ConnectionState, SessionState, LinkEndpointState])
def test_members_that_are_read_directly_are_those_of_the_class(members: type[Enum]) -> None:
    assert {name: getattr(direct(members), name) for name in members.__members__} == dict(members.__members__)
    with pytest.raises(AttributeError):
        _ = direct(members).NO_MEMBER  # type: ignore[attr-defined]
