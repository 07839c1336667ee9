"""Random changes of a mesh: once they end, all routers agree and send nothing but HELLOs."""

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.topology.linkstate import Dropped, IdentityConflict, Settings
from tests.support.data.authorities import World
from tests.support.worlds.topologies import EPOCH, Line, Mesh

NAMES = ("A", "B", "C", "D", "E", "F", "G", "H")
SETTINGS = Settings(penalty_half_life=2.0)
LONGEST_DAMPING = 3 * SETTINGS.penalty_half_life

Deed = Callable[[Mesh, Random], Any]


def any_line(mesh: Mesh, random: Random) -> Line | None:
    lines = [line for line in mesh.lines if line.is_open]
    return random.choice(lines) if lines else None


def any_two(mesh: Mesh, random: Random) -> tuple[str, str]:
    a, b = random.sample(sorted(mesh.routers), 2)
    return a, b


def connect(mesh: Mesh, random: Random) -> None:
    mesh.connect(*any_two(mesh, random), random.randint(1, 3), random.randint(1, 3), random.choice((0.0, 0.001, 0.04)))


def cut(mesh: Mesh, random: Random) -> None:
    if line := any_line(mesh, random):
        mesh.cut(line)


def cut_on_one_side(mesh: Mesh, random: Random) -> None:
    if line := any_line(mesh, random):
        mesh.cut(line, seen_by=(random.choice(line.ends),))


def silence_or_wake(mesh: Mesh, random: Random) -> None:
    if line := any_line(mesh, random):
        line.is_silent = not line.is_silent


def flap(mesh: Mesh, random: Random) -> None:
    if line := any_line(mesh, random):
        for _ in range(3):
            mesh.cut(line)
            mesh.run(0.05)
            line = mesh.connect(*line.ends)
            mesh.run(0.05)


def part(mesh: Mesh, random: Random) -> None:
    """Cut the mesh in two, silently."""
    some = {name for name in mesh.routers if random.random() < 0.5}
    for line in mesh.lines:
        if len(some & set(line.ends)) == 1:
            line.is_silent = True


def heal(mesh: Mesh, random: Random) -> None:
    for line in mesh.lines:
        line.is_silent = False


def restart(mesh: Mesh, random: Random) -> None:
    """Let a router die and restart with the same id, with any clock; some routers do not notice its death."""
    name = random.choice(sorted(mesh.routers))
    neighbours = []
    for line in mesh.lines_of(name):
        neighbours.append(line.other(name))
        mesh.cut(line, seen_by=(line.other(name),) if random.random() < 0.7 else ())
    mesh.run(random.choice((0.0, 0.01, 1.0)))
    mesh.start(name, epoch=EPOCH + random.choice((-1_000_000, -1, 0, 1, 1000, 1_000_000)))
    for other in neighbours:
        mesh.connect(name, other)


def set_cost(mesh: Mesh, random: Random) -> None:
    if line := any_line(mesh, random):
        mesh.set_cost(line, random.choice(line.ends), random.randint(1, 4))


def advertise(mesh: Mesh, random: Random) -> None:
    name = random.choice(sorted(mesh.routers))
    for _ in range(random.choice((1, 1, 40))):
        mesh.advertise(name, f"address {random.randrange(60)}", random.randint(0, 3))


DEEDS: tuple[Deed, ...] = (
    connect, connect, cut, cut_on_one_side, silence_or_wake, flap, part, heal, restart, set_cost, advertise, advertise,
)  # fmt: skip


def live_through(mesh: Mesh, random: Random, deeds: list[Deed], routers: int) -> None:
    """Make a mesh, change it at random, and check that it comes to rest."""
    names = NAMES[:routers]
    mesh.start(*names)
    for number, name in enumerate(names[1:], 1):
        mesh.connect(random.choice(names[:number]), name, random.randint(1, 3), random.randint(1, 3))
    for _ in range(routers // 2):
        connect(mesh, random)
    for deed in deeds:
        mesh.run(random.choice((0.0, 0.003, 0.03, 0.3, 1.5)))
        deed(mesh, random)
    mesh.run(mesh.settings.hold + LONGEST_DAMPING + 12)
    assert mesh.disagreement() == ""
    said = sum(router.sent.total() - router.sent["Hello"] for router in mesh.routers.values())
    mesh.run(5)
    assert sum(router.sent.total() - router.sent["Hello"] for router in mesh.routers.values()) == said
    # There is no storm. Each change makes records of a few routers, which cross each line at most twice and are
    # acknowledged; summaries for new neighbours and lines are added.
    assert said < 60 * len(mesh.lines) * (len(deeds) + routers)
    for name, router in mesh.routers.items():
        assert mesh.told(name, IdentityConflict) == []
        assert not {"malformed", "oversized", "version", "kind", "area", "untrusted", "full"} & router.dropped.keys()


@settings(max_examples=60)
@given(st.integers(2, 8), st.lists(st.sampled_from(DEEDS), max_size=12), st.integers(0, 2**32))
def test_a_mesh_that_is_left_alone_agrees_and_falls_quiet(routers: int, deeds: list[Deed], seed: int) -> None:
    live_through(Mesh(SETTINGS), Random(seed), deeds, routers)


@settings(max_examples=8)
@given(st.lists(st.sampled_from(DEEDS), max_size=8), st.integers(0, 2**32))
def test_so_does_one_that_signs_what_it_says(deeds: list[Deed], seed: int) -> None:
    world = World()

    def identity(name: str) -> Any:
        trust = world.trust()
        return world.identity(name, trust=trust), trust

    live_through(Mesh(SETTINGS, identity), Random(seed), deeds, 5)


def test_the_same_calls_give_the_same_steps() -> None:
    def history() -> list[tuple[str, bytes]]:
        said: list[tuple[str, bytes]] = []
        mesh = Mesh(SETTINGS, intercept=lambda line, sender, data: said.append((sender, data)) or data)
        live_through(mesh, Random(7), list(DEEDS), 6)
        return said

    assert history() == history()


def test_messages_that_are_lost_are_sent_again() -> None:
    random = Random(3)
    mesh = Mesh(SETTINGS, intercept=lambda line, sender, data: data if random.random() < 0.8 else None)
    mesh.start("A", "B", "C", "D")
    for a, b in ("AB", "BC", "CD", "DA"):
        mesh.connect(a, b)
    for number in range(200):
        mesh.advertise(random.choice("ABCD"), f"address {number % 20}", random.randint(0, 2))
        mesh.run(0.05)
    mesh.intercept = lambda line, sender, data: data
    mesh.run(40)
    assert mesh.disagreement() == ""
    assert all(mesh.told(name, Dropped) == [] for name in mesh.routers)
