"""Configurations of the workers of a router."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ElsewhereConfig,
    LinkConfig,
    ListenerConfig,
    MeshConfig,
    RedirectConfig,
    RouterConfig,
)
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.core import Core

FOLDER = Path("/run/a")

WHOLE = RouterConfig(
    id="A",
    memory=64 * 2**20,
    mesh=MeshConfig(insecure=True, hold=7.0),
    listeners=(ListenerConfig(url="amqp://127.0.0.1:5672"),),
    connectors=(
        ConnectorConfig(url="amqp://127.0.0.1:1", name="b"),
        ConnectorConfig(url="amqp://broker.example", name="broker", role="container"),
        ConnectorConfig(url="amqp://other.example", name="other", role="container"),
    ),
    container_links=(
        LinkConfig(connector="broker", source="q", address="q"),
        LinkConfig(connector="other", source="r", address="r"),
    ),
)


def workers(config: RouterConfig, count: int) -> list[RouterConfig]:
    return [worker_config(config, number, count, FOLDER) for number in range(1, count + 1)]


def test_each_has_an_id_of_its_own_and_the_name_of_the_router() -> None:
    each = workers(WHOLE, 3)
    assert [worker.id for worker in each] == ["A.1", "A.2", "A.3"]
    assert [worker.names for worker in each] == [{"A", "A.1"}, {"A", "A.2"}, {"A", "A.3"}]
    assert {worker.mesh for worker in each} == {WHOLE.mesh}


def test_each_is_joined_to_each_other_one_once() -> None:
    each = workers(RouterConfig(id="A"), 4)
    listening = {str(worker.listeners[-1].endpoint): worker.id for worker in each}
    pairs = [
        frozenset({worker.id, listening[str(place)]})
        for worker in each
        for connector in worker.connectors
        for place in connector.places
    ]
    assert len(pairs) == len(set(pairs)) == 6
    assert all(worker.mesh is not None and worker.mesh.insecure for worker in each)
    assert not any(listener.is_mesh for worker in each for listener in worker.listeners[:-1])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_connects_and_what_is_linked_is_there_once(count: int) -> None:
    each = workers(WHOLE, count)
    names = [connector.name for worker in each for connector in worker.connectors if connector in WHOLE.connectors]
    assert sorted(names) == ["b", "broker", "other"]
    assert len([link for worker in each for link in worker.container_links]) == 2
    for worker in each:
        assert {link.connector for link in worker.container_links} <= {each.name for each in worker.connectors}


@pytest.mark.parametrize(
    "config",
    [
        replace(WHOLE, elsewhere=ElsewhereConfig(domains=("partner.example",))),
        replace(WHOLE, addresses=(AddressConfig(pattern="x", redirect=RedirectConfig(hostname="h", follow="router")),)),
    ],
)
def test_each_worker_has_every_connector_to_a_container_and_only_its_own_links(
    config: RouterConfig,
) -> None:
    each = workers(config, 2)
    assert all({"broker", "other"} <= {connector.name for connector in worker.connectors} for worker in each)
    assert [sum(connector.name == "b" for connector in worker.connectors) for worker in each] == [1, 0]
    assert [[link.name for link in worker.container_links] for worker in each] == [["r"], ["q"]]


def test_memory_is_divided_and_each_has_as_much_as_a_router_needs() -> None:
    assert [worker.memory for worker in workers(WHOLE, 4)] == [16 * 2**20] * 4
    assert {worker.memory for worker in workers(replace(WHOLE, memory=2**20), 4)} == {2**20}


def test_a_container_with_links_sees_the_router_and_other_peers_the_worker() -> None:
    for worker, seen in zip(
        workers(WHOLE, 2), [{"b": "A.1", "other": "A"}, {"broker": "A", "workers-1": "A.2"}], strict=True
    ):
        core = Core(worker, 0.0)
        told = {
            each.name: core.connect(each, "h", 0.0, secured=False).engine.settings.container_id
            for each in worker.connectors
        }
        assert told == seen


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (RouterConfig(id="A" * 254), "id"),
        (replace(WHOLE, listeners=(ListenerConfig(url="amqp://127.0.0.1", name="workers"),)), "listener"),
    ],
)
def test_a_configuration_without_room_for_workers_is_refused(config: RouterConfig, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        workers(config, 2)
    assert refused.value.key == key


@pytest.mark.parametrize("role", ["normal", "mesh"])
def test_nobody_else_listens_at_a_unix_socket(role: str) -> None:
    listener = ListenerConfig(url="amqp+unix:///run/x", role=role)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(ConfigError, match="a Unix socket is for the workers of one router"):
        RouterConfig(mesh=MeshConfig(insecure=True), listeners=(listener,))


@pytest.mark.parametrize("role", ["container", "mesh"])
def test_nobody_else_connects_to_a_unix_socket(role: str) -> None:
    connector = ConnectorConfig(url="amqp+unix:///run/x", role=role)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(ConfigError, match="a Unix socket is for the workers of one router"):
        RouterConfig(mesh=MeshConfig(insecure=True), connectors=(connector,))
