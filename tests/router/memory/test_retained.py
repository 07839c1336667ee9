"""The fields of a peer's frames that the router retains, and their size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.alike_attaches import AlikeAttaches
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Open
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.memory.retained import FREE, of_open, size_of_attach

NUMBERS = st.sampled_from([0, 1, 512, 2**16 - 1])
OPENS = st.builds(
    Open,
    container_id=st.text(max_size=8),
    hostname=st.sampled_from([None, "h"]),
    max_frame_size=NUMBERS,
    channel_max=NUMBERS,
    idle_time_out=st.one_of(st.none(), NUMBERS),
    offered_capabilities=st.sampled_from([(), (Symbol("a"),)]),
    desired_capabilities=st.sampled_from([(), (REDIRECT,), (Symbol("a"), REDIRECT)]),
    properties=st.sampled_from([None, {Symbol("product"): "p"}]),
)


@given(OPENS)
def test_of_an_open_the_names_that_are_needed_later_are_kept_and_no_others(opened: Open) -> None:
    kept = of_open(opened)
    assert kept == Open(
        container_id=opened.container_id,
        max_frame_size=opened.max_frame_size,
        channel_max=opened.channel_max,
        idle_time_out=opened.idle_time_out,
        desired_capabilities=(REDIRECT,) if REDIRECT in opened.desired_capabilities else (),
    )


@pytest.mark.parametrize("source", [None, Source(address="q"), Source(address="q" * 2 * FREE)])
@pytest.mark.parametrize("target", [None, Target(address="t"), Target(address="t" * FREE)])
def test_alike_attaches_are_counted_as_if_each_was_counted_alone(source: Source | None, target: Target | None) -> None:
    first = Attach(name="n", handle=0, role=Role.RECEIVER, source=source, target=target)
    alike = AlikeAttaches(first)
    for name in ("n", "n" * FREE, "\N{SNOWMAN}" * 40, ""):
        attach = replace(first, name=name)
        assert size_of_attach(attach, alike) == size_of_attach(attach)
