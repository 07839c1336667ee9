"""A mesh with certificates, which trusts its own routers only."""

from collections.abc import Callable
from itertools import pairwise

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from amqpmesh.topology.authority import DAY
from amqpmesh.topology.linkstate import Dropped
from amqpmesh.topology.signing import SignedRecord, Signer, Verifier
from amqpmesh.topology.trust import CLOCK_TOLERANCE, Identity, Trust, VerifiedRecords
from tests.support.data.authorities import World
from tests.support.worlds.topologies import Mesh


class Routers:
    """Routers with certificates, each with its own trust, and the files of `issued`."""

    def __init__(self, issued: Callable[[World, str], World] = lambda world, router: world) -> None:
        """Args: issued: returns the authority of a router, if it is not the mesh's own."""
        self.world = World()
        self.trusts: dict[str, Trust] = {}
        self.identities: dict[str, Identity] = {}
        self.verified = VerifiedRecords()
        self.issued = issued
        self.named: dict[str, str] = {}
        """The id in a router's certificate, if it is not the router's."""

    def __call__(self, router: str) -> tuple[Signer, Verifier]:
        self.trusts[router] = self.issued(self.world, router).trust(verified=self.verified)
        return self.renewed(router), self.trusts[router]

    def renewed(self, router: str, days: float = 30) -> Identity:
        """Give a router another certificate and key."""
        world = self.issued(self.world, router)
        self.identities[router] = world.identity(self.named.get(router, router), days, self.trusts[router])
        return self.identities[router]


def line(routers: Routers, *names: str) -> Mesh:
    mesh = Mesh(identity=routers)
    mesh.start(*names)
    for a, b in pairwise(names):
        mesh.connect(a, b)
    return mesh


def why(mesh: Mesh, router: str) -> set[tuple[str, str]]:
    """Return the drops of a router: origin and reason."""
    return {(change.origin, change.reason) for change in mesh.told(router, Dropped)}


def test_routers_with_certificates_find_each_other_and_drop_nothing() -> None:
    mesh = line(Routers(), "A", "B", "C", "D")
    mesh.advertise("D", "orders", 1)
    mesh.run(2)
    assert mesh.disagreement() == ""
    assert list(mesh.routers["A"].lookup("", "orders")) == ["D"]
    assert all(why(mesh, name) == set() for name in mesh.routers)


def test_workers_have_the_certificate_of_their_router() -> None:
    routers = Routers()
    routers.named = {"A.1": "A", "A.2": "A"}
    mesh = line(routers, "B", "A.1", "A.2")
    mesh.run(2)
    assert mesh.disagreement() == ""
    assert mesh.routers["B"].distance("A.2") == 2


def test_a_router_of_another_authority_is_not_in_the_mesh() -> None:
    stranger = World()
    mesh = line(Routers(lambda world, router: stranger if router == "X" else world), "A", "B", "X", "C")
    mesh.run(5)
    for name in ("A", "B", "C"):
        assert mesh.routers[name].distance("X") is None
        assert "X" not in mesh.routers[name].graph
        assert mesh.routers["X"].distance(name) is None
    assert "untrusted" in {reason for _, reason in why(mesh, "B")}
    assert mesh.routers["A"].distance("B") == 1
    assert mesh.routers["A"].distance("C") is None


def test_a_router_cannot_speak_for_another() -> None:
    routers = Routers()
    routers.named = {"B": "C"}  # it claims the id B, with the certificate of C
    mesh = line(routers, "A", "B")
    mesh.run(5)
    assert mesh.routers["A"].distance("B") is None
    assert ("B", "untrusted") in why(mesh, "A")


def test_one_certificate_follows_another_without_a_gap() -> None:
    routers = Routers()
    mesh = line(routers, "A", "B", "C")
    mesh.advertise("C", "orders", 1)
    mesh.run(1)
    mesh.call("C", lambda topology, now: topology.renew(routers.renewed("C", days=60), now))
    mesh.run(1)
    routers.world.clock.now += 30 * DAY + CLOCK_TOLERANCE - 1
    for name in ("A", "B"):  # the clocks of the others are slow, and still within the tolerance
        mesh.call(name, lambda topology, now, name=name: topology.renew(routers.renewed(name), now))
    mesh.run(1)
    routers.world.clock.now += 10
    mesh.advertise("C", "news", 1)
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert list(mesh.routers["A"].lookup("", "news")) == ["C"]
    assert all(why(mesh, name) == set() for name in mesh.routers)


def test_a_certificate_that_has_ended_says_nothing_new() -> None:
    routers = Routers()
    mesh = line(routers, "A", "B")
    mesh.run(1)
    routers.world.clock.now += 30 * DAY + CLOCK_TOLERANCE + 1
    mesh.call("A", lambda topology, now: topology.renew(routers.renewed("A"), now))
    mesh.advertise("B", "orders", 1)
    mesh.run(1)
    assert list(mesh.routers["A"].lookup("", "orders")) == []
    assert ("B", "untrusted") in why(mesh, "A")


def test_a_list_of_revocations_given_to_one_router_reaches_all() -> None:
    routers = Routers()
    mesh = line(routers, "A", "B", "C", "X")
    mesh.advertise("X", "orders", 1)
    mesh.run(1)
    assert mesh.routers["A"].distance("X") == 3
    routers.world.revoke(routers.identities["X"].certificate)
    routers.trusts["A"].reload(routers.world.pem)
    mesh.call("A", lambda topology, now: topology.renew(routers.identities["A"], now))
    mesh.run(2)
    for name in ("A", "B", "C"):
        assert mesh.routers[name].distance("X") is None
        assert not mesh.routers[name].lookup("", "orders")
    mesh.run(400)  # it does not come back, either
    assert [mesh.routers[name].distance("X") for name in ("A", "B", "C")] == [None] * 3
    assert mesh.routers["A"].distance("C") == 2
    # It can with another key.
    mesh.call("X", lambda topology, now: topology.renew(routers.renewed("X"), now))
    mesh.run(10)
    assert [mesh.routers[name].distance("X") for name in ("A", "B", "C")] == [3, 2, 1]


def test_a_list_that_the_authority_did_not_sign_goes_nowhere() -> None:
    routers = Routers()
    mesh = line(routers, "A", "B", "C")
    mesh.run(1)
    stranger = World()
    revocations = stranger.trust()
    revocations.revoke(stranger.revoke(routers.identities["C"].certificate).der)
    lists = stranger.identity("A", trust=revocations).records()
    assert len(lists) == 2

    class Forger(Identity):
        def records(self) -> tuple[SignedRecord, ...]:
            return lists

    key = Ed25519PrivateKey.generate()
    forger = Forger(routers.world.certificate("A", key=key), key, routers.trusts["A"])
    mesh.call("A", lambda topology, now: topology.renew(forger, now))
    mesh.run(2)
    assert [mesh.routers[name].distance("C") for name in ("A", "B")] == [2, 1]
