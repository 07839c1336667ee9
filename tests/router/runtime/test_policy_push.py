"""A policy that is pushed to one router, and spreads over the mesh."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh import LinkDetachedError, ListenerConfig, MeshConfig
from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.router.config.policy_file import PolicyConfig, PolicyText
from amqpmesh.router.management.policy_upload import pieces
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.runtime import applying
from amqpmesh.router.runtime.policy_store import PolicyStore
from amqpmesh.router.runtime.reload import Reloaded
from amqpmesh.topology.authority import Authority
from amqpmesh.topology.signed_policies import signed
from amqpmesh.topology.simulation.mesh import CLIENTS, Mesh

MEMBERSHIP = MeshConfig(insecure=True, hello=1.0, hold=3.0, lane_idle=1.0)
INSECURE = pytest.mark.mesh(membership=MEMBERSHIP)
CERTIFIED = pytest.mark.mesh(certificates=30.0, membership=MEMBERSHIP)


def policy(version: int, *addresses: str, groups: int = 0) -> bytes:
    """Return a policy that permits all peers these addresses. Args: groups: more of them, to make it large."""
    names = ", ".join(f'"{each}"' for each in addresses)
    more = "".join(f'[[group]]\nname = "g{n}"\nusers = ["user-{n}-*"]\nsend = ["of/{n}/#"]\n' for n in range(groups))
    return (
        f"version = {version}\n"
        f'[[group]]\nname = "all"\nsend = [{names}]\nreceive = [{names}]\n'
        'may = ["dynamic", "container"]\nmanage = ["read"]\n' + more
    ).encode()


class World:
    """Routers of a mesh that take policies, each with its own file."""

    def __init__(self, mesh: Mesh, folder: Path) -> None:
        self.mesh = mesh
        self.folder = folder

    def file(self, router: str) -> Path:
        (self.folder / router).mkdir(exist_ok=True)
        return self.folder / router / "policy.toml"

    async def start(self, *routers: str, first: bytes = policy(1, "a"), **settings: Any) -> None:
        """Start a line of routers. Args: first: their policy. settings: of `[policy]`."""
        for each in routers:
            await self.add(each, first, **settings)
        for one, other in pairwise(routers):
            self.mesh.link(one, other)
        await self.mesh.settled()

    async def add(self, router: str, first: bytes = policy(1, "a"), **settings: Any) -> None:
        self.file(router).write_bytes(first)
        config = PolicyConfig(file=self.file(router), **{"push": True, **settings})
        await self.mesh.router(router, policy=config)
        self.listen(router)

    def listen(self, router: str) -> None:
        """Let clients of a router make changes."""
        listener = ListenerConfig(url="amqp://127.0.0.1:5672", name="in", manage=True)
        self.mesh[router].serve(CLIENTS, listener)

    async def push(self, router: str, data: bytes) -> str:
        """Push a policy to a router. Returns: the description of the last answer."""
        async with self.mesh.connect(router) as client, client.requester(ADDRESS) as management:
            for piece in pieces(data):
                answer = await management.request(piece)
                if answer.application_properties["statusCode"] != 200:
                    break
            return str(answer.application_properties["statusDescription"])

    def version(self, router: str) -> int:
        (told,) = self.mesh[router].statistics().policies
        return told.version

    def refused(self, router: str) -> str | None:
        (told,) = self.mesh[router].statistics().policies
        return told.refused_reason

    def versions(self, routers: str) -> list[int]:
        return [self.version(each) for each in routers]

    async def until(self, routers: str, version: int, timeout: float = 20.0) -> float:
        """Wait until these routers have a version. Returns: the seconds that it took."""
        began = trio.current_time()
        with trio.fail_after(timeout):
            while self.versions(routers) != [version] * len(routers):
                await trio.sleep(0.01)
        return trio.current_time() - began


@pytest.fixture
def world(mesh: Mesh, tmp_path: Path) -> World:
    return World(mesh, tmp_path)


@INSECURE
async def test_a_pushed_policy_is_in_force_and_stored_at_each_router_of_a_line(world: World) -> None:
    await world.start("A", "B", "C", "D")
    new = policy(2, "b")
    assert await world.push("B", new) == "OK"
    assert world.version("B") == 2
    assert await world.until("ABCD", 2) < 2.0
    for router in "ABCD":
        assert world.file(router).read_bytes() == new
        assert world.file(router).with_name("policy.toml.previous").read_bytes() == policy(1, "a")
        async with world.mesh.connect(router) as client:
            async with client.receiver("b"):
                pass
            with pytest.raises(LinkDetachedError, match="not permitted"):
                async with client.receiver("a"):
                    pass
    await world.mesh.crash("D")
    await world.mesh.restart("D")
    assert world.version("D") == 2


@INSECURE
async def test_a_large_policy_comes_in_pieces(world: World) -> None:
    await world.start("A", "B", "C")
    new = policy(2, "b", groups=2_000)
    assert len(new) > 100_000
    assert await world.push("A", new) == "OK"
    await world.until("ABC", 2)
    assert world.file("C").read_bytes() == new
    assert world.mesh["C"].statistics().policies[0].groups == 2_001


@INSECURE
async def test_a_router_that_was_away_takes_the_newer_version_when_it_is_back(world: World) -> None:
    await world.start("A", "B", "C")
    await world.mesh.stop("B")
    assert await world.push("A", policy(2, "b")) == "OK"
    assert await world.push("A", policy(5, "e")) == "OK"
    await trio.sleep(5)
    assert world.versions("AC") == [5, 1]
    await world.mesh.restart("B")
    world.listen("B")
    await world.until("ABC", 5)
    await world.mesh.settled()


@INSECURE
async def test_a_partition_ends_with_the_newer_version(world: World) -> None:
    await world.start("A", "B", "C", "D")
    world.mesh.cut("B", "C")
    assert await world.push("A", policy(2, "two")) == "OK"
    assert await world.push("D", policy(3, "three")) == "OK"
    await world.until("AB", 2)
    await world.until("CD", 3)
    world.mesh.heal("B", "C")
    await world.until("ABCD", 3)


@INSECURE
async def test_of_two_policies_of_one_version_pushed_at_once_all_routers_take_the_same(world: World) -> None:
    await world.start("A", "B", "C", "D")
    one, two = policy(2, "one"), policy(2, "two")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.push, "A", one)
        nursery.start_soon(world.push, "D", two)
    await world.until("ABCD", 2)
    await trio.sleep(5)
    stored = {world.file(each).read_bytes() for each in "ABCD"}
    assert stored == {max(one, two, key=lambda each: PolicyVersion.of(each, 2))}


@INSECURE
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (policy(1, "b"), "another policy of version 1 is in force"),
        (policy(3, "b").replace(b"version = 3\n", b""), "it has no version"),
        (b"version = 2\n[[group]\n", "policy.toml: file"),
        (b'version = 2\n[[group]]\nname = "g"\nsend = ["$management"]\n', "group[0].send"),
        (b"version = -1\n", "version: must be a number"),
        (b"version = true\n", "version: must be a number"),
    ],
)
async def test_a_policy_that_is_refused_changes_nothing_and_says_why(world: World, data: bytes, reason: str) -> None:
    await world.start("A", "B")
    assert reason in await world.push("A", data)
    assert reason in str(world.refused("A"))
    await trio.sleep(3)
    assert world.versions("AB") == [1, 1]
    assert world.file("A").read_bytes() == policy(1, "a")
    assert world.refused("B") is None, "nobody offers it"


@INSECURE
async def test_a_lower_version_is_refused_and_the_same_file_is_no_change(world: World) -> None:
    await world.start("A", first=policy(4, "a"))
    assert "version 4 is in force, and this is version 3" in await world.push("A", policy(3, "b"))
    assert await world.push("A", policy(4, "a")) == "OK"


@INSECURE
async def test_a_router_that_cannot_store_it_refuses_it_and_passes_it_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("A", "B", "C")
    replace = os.replace

    def refuse(source: str, target: Path) -> None:
        if Path(target).parent.name == "B":
            raise OSError(30, "Read-only file system")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    assert await world.push("A", policy(2, "b")) == "OK"
    await world.until("AC", 2)
    assert world.version("B") == 1
    assert "Read-only file system" in str(world.refused("B"))
    assert [each.name for each in world.file("B").parent.iterdir() if each.name.startswith(".")] == []


@INSECURE
async def test_a_router_takes_part_only_if_it_is_configured_to(world: World) -> None:
    await world.start("A", "B", push=False)
    assert "push = true" in await world.push("A", policy(2, "b"))
    await trio.sleep(3)
    assert world.versions("AB") == [1, 1]


@INSECURE
async def test_a_router_without_a_file_permits_nothing_until_the_mesh_gives_it_a_policy(world: World) -> None:
    await world.start("A", first=policy(7, "a"))
    await world.mesh.router("B", policy=PolicyConfig(file=world.folder / "none.toml", push=True))
    assert world.version("B") == 0
    async with world.mesh.connect("B") as client:
        with pytest.raises(LinkDetachedError):
            async with client.receiver("a"):
                pass
    world.mesh.link("A", "B")
    await world.until("AB", 7)
    async with world.mesh.connect("B") as client, client.receiver("a"):
        pass


@INSECURE
async def test_a_policy_that_is_read_again_from_its_file_spreads_as_well(world: World) -> None:
    await world.start("A", "B", "C")
    world.file("C").write_bytes(policy(2, "b"))
    await world.mesh["C"].router.reload_aside()
    await world.until("ABC", 2)
    world.file("A").write_bytes(policy(1, "a"))
    await world.mesh["A"].router.reload_aside()
    await world.until("ABC", 2)
    assert world.file("A").read_bytes() == policy(2, "b"), "the others had a newer one"


@INSECURE
async def test_nobody_without_the_right_pushes_a_policy(world: World) -> None:
    await world.start("A")
    world.mesh["A"].serve(CLIENTS, ListenerConfig(url="amqp://127.0.0.1:5672", name="in"))
    assert await world.push("A", policy(2, "b")) == "Forbidden: not permitted"
    assert world.version("A") == 1


@INSECURE
async def test_a_router_without_a_policy_takes_none(world: World) -> None:
    await world.mesh.router("A")
    world.listen("A")
    assert "push = true" in await world.push("A", policy(2, "b"))
    assert world.mesh["A"].statistics().policies == ()


@INSECURE
async def test_routers_that_share_a_file_keep_the_one_before_it(world: World) -> None:
    """Workers of one router do."""
    await world.start("A")
    await world.mesh.router("B", policy=PolicyConfig(file=world.file("A"), push=True))
    world.mesh.link("A", "B")
    await world.mesh.settled()
    assert await world.push("A", policy(2, "b")) == "OK"
    await world.until("AB", 2)
    assert world.file("A").with_name("policy.toml.previous").read_bytes() == policy(1, "a")


@INSECURE
async def test_routers_that_store_in_one_file_at_once_keep_the_one_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("A")
    await world.mesh.router("B", policy=PolicyConfig(file=world.file("A"), push=True))
    stores = [world.mesh[each].router._policies for each in "AB"]
    new = policy(2, "b")
    fsync = os.fsync

    def between(descriptor: int) -> None:
        fsync(descriptor)
        if len(stores) == 2:
            stores.pop()._store(new)

    monkeypatch.setattr(os, "fsync", between)
    stores[0]._store(new)
    assert len(stores) == 1
    folder = world.file("A").parent
    assert sorted(each.name for each in folder.iterdir()) == ["policy.toml", "policy.toml.previous"]
    assert world.file("A").read_bytes() == new
    assert world.file("A").with_name("policy.toml.previous").read_bytes() == policy(1, "a")


@INSECURE
async def test_a_policy_that_comes_while_the_file_is_read_again_stays_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("A")
    router = world.mesh["A"].router
    was_read = trio.Event()

    async def aside_slowly(work: Callable[..., Reloaded], *args: Any) -> Reloaded:
        found = work(*args)
        if isinstance(found, Reloaded):
            was_read.set()
            await trio.sleep(5)
        return found

    monkeypatch.setattr(applying, "aside", aside_slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.reload_aside)
        await was_read.wait()
        assert await world.push("A", policy(2, "b")) == "OK"
    assert world.version("A") == 2


@INSECURE
async def test_an_internal_error_leaves_the_policy_in_force(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start("A", "B")
    read = PolicyStore._read

    def fail(self: PolicyStore, data: bytes) -> PolicyText:
        if self is world.mesh["B"].router._policies:
            raise ZeroDivisionError
        return read(self, data)

    monkeypatch.setattr(PolicyStore, "_read", fail)
    assert await world.push("A", policy(2, "b")) == "OK"
    await trio.sleep(3)
    assert world.versions("AB") == [2, 1]
    assert world.refused("B") == "internal error"
    world.mesh.log.faults.clear()


@INSECURE
@pytest.mark.parametrize(
    "data",
    [
        b"version = 2\n" + b"a = " + b"[" * 100_000,
        b"\xff\xfe",
        b"version = 1e400\n",
        b"x",
        b"version = 2\n" + b".".join([b"a"] * 10**5) + b" = 1\n",
        b'version = 2\n  ["a"' + b'."="' * 10**5 + b"]\n",
        b"version = 2\ngroup = [{ " + b".".join([b"'='"] * 10**5) + b" = 1 }]\n",
    ],
)
async def test_a_policy_that_is_made_to_break_the_reader_is_refused(world: World, data: bytes) -> None:
    await world.start("A")
    assert (await world.push("A", data)).startswith("Conflict: ")
    assert world.version("A") == 1


@CERTIFIED
async def test_a_policy_has_to_be_signed_where_that_is_demanded(world: World, mesh: Mesh) -> None:
    files = mesh._certificate_files
    assert files is not None
    authority = files._authority
    first = signed(policy(1, "a"), authority)
    await world.start("A", "B", first=first, signed=True)
    assert "is not signed" in await world.push("A", policy(2, "b"))
    other = Authority.create("simulated", 0.0)
    assert "is not signed by an authority" in await world.push("A", signed(policy(2, "b"), other))
    changed = signed(policy(2, "b"), authority).replace(b'"b"', b'"c"')
    assert "was changed since" in await world.push("A", changed)
    assert world.versions("AB") == [1, 1]
    assert await world.push("A", signed(policy(2, "b"), authority)) == "OK"
    await world.until("AB", 2)


@CERTIFIED
@pytest.mark.parametrize(
    "change", [lambda x: x[:-1], lambda x: x[:-1] + b"  \n", lambda x: x[:-4] + bytes([x[-4] + 1]) + b"==\n"]
)
async def test_a_signed_policy_has_one_spelling(world: World, mesh: Mesh, change: Callable[[bytes], bytes]) -> None:
    """A router on the way cannot make it another file, with another digest, again and again."""
    files = mesh._certificate_files
    assert files is not None
    await world.start("A", first=signed(policy(1, "a"), files._authority), signed=True)
    right = signed(policy(2, "b"), files._authority)
    other = change(right)
    assert other != right
    assert await world.push("A", other) != "OK"
    assert world.version("A") == 1
    assert await world.push("A", right) == "OK"
    assert signed(other, files._authority) == right


@CERTIFIED
async def test_a_router_that_demands_a_signature_takes_no_other_policy_of_a_neighbour(world: World, mesh: Mesh) -> None:
    files = mesh._certificate_files
    assert files is not None
    await world.add("A")
    await world.add("B", signed(policy(1, "a"), files._authority), signed=True)
    mesh.link("A", "B")
    await mesh.settled()
    assert await world.push("A", policy(2, "b")) == "OK"
    await trio.sleep(3)
    assert world.versions("AB") == [2, 1]
    assert "is not signed" in str(world.refused("B"))
