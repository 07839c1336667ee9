"""The law of changed configurations: only the last one counts, whatever was applied before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config import edits
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.differences import differences
from amqpmesh.router.config.edits import KINDS
from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, ListenerConfig, MeshConfig, RouterConfig
from amqpmesh.router.config.observability import MetricsConfig, TracingConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.runtime.router import Router

MESH = MeshConfig(insecure=True)
HAS_OPENTELEMETRY = find_spec("opentelemetry") is not None


async def refuse(_: Endpoint) -> trio.abc.Stream:
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError(111, "Connection refused")


def some(names: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, dict[str, Any]]]:
    """Rows by name, each with some of these keys."""
    return st.dictionaries(st.sampled_from(names), st.fixed_dictionaries({}, optional=keys))


@st.composite
def configs(draw: st.DrawFn) -> RouterConfig:
    limits = {"max_frame_size": st.sampled_from([512, 1024]), "links": st.integers(1, 3)}
    listeners = draw(some("lmn", connections=st.integers(1, 3), cost=st.integers(1, 3), **limits))
    connectors = draw(some("cde", url=st.sampled_from(["amqp://127.0.0.1:1", "amqp://127.0.0.1:2"]), **limits))
    linked = sorted(connectors)
    links = draw(some("xyz", source=st.sampled_from("pq"), durable=st.just("configuration"))) if linked else {}
    addresses = draw(
        some(
            "abc",
            max_credit=st.integers(1, 3),
            distribution=st.sampled_from(["balanced", "multicast"]),
            attempts=st.integers(1, 3),
            absolute_expiry=st.booleans(),
        )
    )
    collector = draw(st.sampled_from([None, "http://127.0.0.1:1"])) if HAS_OPENTELEMETRY else None
    of_spans: dict[str, Any] = {} if collector is None else {"sample": draw(st.sampled_from([0.25, 1.0]))}
    return RouterConfig(
        id="A",
        mesh=MESH,
        metrics=MetricsConfig(series=draw(st.sampled_from([500, 600]))),
        tracing=TracingConfig(traces=draw(st.integers(4, 5)), endpoint=collector, **of_spans),
        memory=draw(st.sampled_from([2**20, 2**21])),
        drain=draw(st.sampled_from([0.0, 0.5])),
        login_queue=draw(st.integers(1, 3)),
        listeners=tuple(
            ListenerConfig(name=name, url="amqp://127.0.0.1:0", role="mesh" if "cost" in keys else "normal", **keys)
            for name, keys in listeners.items()
        ),
        connectors=tuple(
            ConnectorConfig(**{"name": name, "url": "amqp://127.0.0.1:3", "role": "container", **keys})
            for name, keys in connectors.items()
        ),
        container_links=tuple(
            LinkConfig(**{"name": name, "source": name, "address": name, "connector": linked[at % len(linked)], **keys})
            for at, (name, keys) in enumerate(links.items())
        ),
        addresses=tuple(AddressConfig(pattern=pattern, **keys) for pattern, keys in addresses.items()),
    )


def state(router: Router) -> dict[str, Any]:
    """All that follows from a configuration, without ports that the system chooses."""
    context = router._started().context
    told = router.statistics()
    return {
        "config": (router.config, context.config),
        "listeners": [(each.name, each.role, each.cost, each.connections) for each in told.listeners],
        "open": [each.config for each in router.listeners],
        "credentials": set(router._edge.credentials),
        "connectors": [(each.name, each.cost) for each in told.connectors],
        "dialling": [each.config for each in router.connectors],
        "links": sorted((each.name, each.connector, each.node, each.address) for each in told.container_links),
        "patterns": [context.nodes.config(name) for name in "abcd"],
        "memory": (context.memory.budget.limit, context.memory.reserve.limit),
        "expiry": context.honours_expiry,
        "traces": context.traces._config,
        "spans": None if context.kernel.contexts is None else context.kernel.contexts.threshold,
    }


@settings(max_examples=25)
@given(st.lists(configs(), min_size=1, max_size=5))
def test_a_router_is_as_if_it_had_been_started_with_the_last_configuration(applied: list[RouterConfig]) -> None:
    async def run() -> None:
        async with (
            Router(replace(applied[0]), open_stream=refuse) as router,
            Router(applied[-1], open_stream=refuse) as fresh,
        ):
            for each in applied[1:]:
                result = await router.apply(each)
                assert not result.waiting
                await trio.sleep(1.0)
            assert not (await router.apply(applied[-1], dry_run=True)).differences
            assert state(router) == state(fresh)
        assert router.statistics().is_empty

    trio.run(run, clock=MockClock(autojump_threshold=0))


SMALL = st.integers(1, 3)
EDITS = st.one_of(
    st.tuples(
        st.just("address-pattern"),
        st.sampled_from("abcd"),
        st.none()
        | st.fixed_dictionaries({}, optional={"max_credit": st.integers(1, 3), "attempts": st.integers(1, 3)}),
    ),
    st.tuples(
        st.just("connector"),
        st.sampled_from("cdef"),
        st.none() | st.fixed_dictionaries({"url": st.just("amqp://127.0.0.1:4"), "role": st.just("container")}),
    ),
    st.tuples(
        st.just("listener"),
        st.sampled_from("lmno"),
        st.none()
        | st.fixed_dictionaries({"url": st.just("amqp://127.0.0.1:0")}, optional={"links": st.integers(1, 3)}),
    ),
    st.tuples(
        st.just("container-link"),
        st.sampled_from("xyzw"),
        st.none() | st.just({"connector": "c", "source": "s", "address": "t"}),
    ),
    st.tuples(st.just("router"), st.just(""), st.fixed_dictionaries({}, optional={"links": SMALL})),
)
"""Changes by management: the type, the name, and the keys; None: it is deleted."""


@settings(max_examples=25)
@given(configs(), st.lists(EDITS, min_size=1, max_size=8))
def test_what_management_has_changed_is_marked_and_the_next_apply_takes_it_back(
    config: RouterConfig, wanted: list[tuple[str, str, dict[str, Any] | None]]
) -> None:
    async def run() -> None:
        async with (
            Router(config, open_stream=refuse) as router,
            Router(config, open_stream=refuse) as fresh,
        ):
            changes = router._changes
            for kind, name, keys in wanted:
                table = KINDS[kind]
                before = router.config
                if keys is None:
                    edit = partial(edits.delete, kind=table, name=name)
                else:
                    change = edits.update if not name or name in table.rows(before) else edits.create
                    edit = partial(change, kind=table, name=name, raw=keys)
                try:
                    await changes.edit(edit, by={})
                except (ConfigError, edits.EditError):
                    assert router.config is before
                await trio.sleep(1.0)
                found = tuple(each.key for each in differences(config, router.config))
                assert router.statistics().router.changed == found
                patterns = {each.pattern: each for each in config.addresses}
                assert [each.runtime for each in router.statistics().address_patterns] == [
                    patterns.get(each.pattern) != each for each in router.config.addresses
                ]
            async with Router(router.config, open_stream=refuse) as changed:
                assert state(router) == state(changed)
            await router.apply(config)
            await trio.sleep(1.0)
            assert state(router) == state(fresh)
            assert router.statistics().router.changed == ()
        assert router.statistics().is_empty

    trio.run(run, clock=MockClock(autojump_threshold=0))


@settings(max_examples=25)
@given(configs(), st.lists(st.tuples(st.sampled_from("lmn"), st.integers(1, 9)), max_size=3))
def test_costs_that_were_changed_meanwhile_are_differences_and_are_taken_back(
    config: RouterConfig, costs: list[tuple[str, int]]
) -> None:
    async def run() -> None:
        async with Router(config, open_stream=refuse) as router:
            mesh = router._started().mesh
            assert mesh is not None
            changed = {each.name: each for each in config.listeners if each.is_mesh}
            for name, cost in costs:
                if name in changed:
                    mesh.set_cost_of(changed[name], cost)
            now = {each.name: mesh.cost_of(each) for each in changed.values()}
            found = (await router.apply(config)).differences
            assert [(each.key, each.before, each.after) for each in found] == [
                (f"listener[{name}].cost", str(now[name]), str(each.cost))
                for name, each in changed.items()
                if now[name] != each.cost
            ]
            assert not (await router.apply(config)).differences
            assert {each.name: mesh.cost_of(each) for each in changed.values()} == {
                name: each.cost for name, each in changed.items()
            }

    trio.run(run, clock=MockClock(autojump_threshold=0))
