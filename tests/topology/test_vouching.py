"""Vouches under attack by routers on the way, and by routers that have certificates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology import vouching
from amqpmesh.topology.schema import encode
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import UntrustedError
from amqpmesh.topology.vouching import (
    KIND,
    MAX_GROUPS,
    MAX_SCOPES,
    MAX_VOUCH,
    WINDOW,
    Client,
    SignedVouch,
    Vouch,
    Vouching,
    _Numbers,
)
from tests.support.worlds.topologies import Mesh
from tests.topology.test_signed_mesh import Routers, line

ALICE = Client("t", "alice", ("g", "h"), False, "192.0.2.1", "c")
DIGEST = bytes(32)


class World:
    """A line of routers, the last of which is B, and what each of them vouches and believes."""

    def __init__(self, names: str = "AMB") -> None:
        self.routers = Routers()
        self.mesh: Mesh = line(self.routers, *names)
        self.mesh.run(2)
        self.by = {each: self.vouching(each) for each in names}

    def vouching(self, router: str) -> Vouching:
        return Vouching(self.mesh.routers[router], self.routers.identities[router], self.routers.trusts[router])

    def vouch(self, router: str = "A", client: Client = ALICE, digest: bytes = DIGEST, to: str = "B") -> bytes:
        made = self.by[router].vouch(client, to, digest)
        assert made is not None
        return made

    def reason(self, data: bytes, digest: bytes = DIGEST) -> str | None:
        """Return the reason why B does not believe a vouch; None: it does."""
        try:
            self.by["B"].believe(data, digest)
        except UntrustedError as error:
            return error.reason
        return None


def test_a_vouch_says_what_was_signed() -> None:
    world = World()
    found = world.by["B"].believe(world.vouch(), DIGEST)
    assert (found.router, found.tenant, found.user, found.groups, found.manage) == (
        "A",
        "t",
        "alice",
        ("g", "h"),
        False,
    )


def test_a_vouch_is_good_once_for_one_request_at_one_router_in_one_run() -> None:
    world = World()
    data = world.vouch()
    assert world.reason(data, bytes([1]) * 32) == "for another request"
    assert world.reason(data) is None
    assert world.reason(data) == "used before"
    assert world.reason(world.vouch(to="M")) == "for another router, or for another run of it"
    old = world.vouch()
    world.mesh.crash("B")
    world.mesh.start("B", epoch=world.by["B"]._topology.epoch + 1)
    world.by["B"] = Vouching(world.mesh.routers["B"], world.routers.identities["B"], world.routers.trusts["B"])
    assert world.reason(old) == "unknown certificate", "it has no neighbour yet"
    world.mesh.connect("M", "B")
    world.mesh.run(5)
    assert world.reason(old) == "for another router, or for another run of it"
    assert world.reason(world.vouch()) is None


def test_a_vouch_that_was_held_back_is_not_good_after_its_router_has_restarted() -> None:
    world = World()
    old = world.vouch()
    epoch = world.by["A"]._topology.epoch
    world.mesh.crash("A")
    world.mesh.start("A", epoch=epoch + 1)
    world.mesh.connect("A", "M")
    world.mesh.run(5)
    assert world.reason(old) == "of a run of its router that has ended"


def test_a_router_that_holds_others_off_for_long_cannot_repeat_their_vouches() -> None:
    world = World("ACDEFMB")
    old = [world.vouch(each) for each in "ACDEFM"]
    assert [world.reason(each) for each in old] == [None] * len(old)
    (line_of_f,) = (each for each in world.mesh.lines_of("F") if each.other("F") == "M")
    world.mesh.cut(line_of_f)
    world.mesh.run(2 * Settings().max_age + 10)
    assert set(world.mesh.routers["B"].database.origins) == {"M", "B"}
    epoch = world.by["M"]._topology.epoch
    world.mesh.crash("M")
    world.mesh.start("M", epoch=epoch + 1)
    world.by["M"] = world.vouching("M")
    world.mesh.connect("M", "B")
    world.mesh.run(5)
    assert world.reason(world.vouch("M")) is None
    world.mesh.connect("F", "M")
    world.mesh.run(20)
    assert len(world.mesh.routers["B"].database.origins) == 7
    assert {world.reason(each) for each in old[:-1]} == {"used before"}
    assert world.reason(world.vouch("A")) is None


def test_numbers_of_routers_that_have_left_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "KEPT", 0)
    world = World()
    numbers = world.by["B"]._numbers
    numbers.update({f"gone-{each}": _Numbers(1) for each in range(100)})
    assert world.reason(world.vouch()) is None
    assert list(world.by["B"]._numbers) == ["A"]


def test_a_router_vouches_for_clients_of_no_other() -> None:
    world = World()
    envelope_of_m = world.vouch("M")
    world.by["M"]._topology.router = "A"  # its certificate is that of M
    assert world.reason(world.vouch("M")) == "certificate of another router"
    world.by["M"]._topology.router = "M"
    found = world.by["B"].believe(envelope_of_m, DIGEST)
    assert found.router == "M"


@pytest.mark.parametrize("part", ["vouch", "signature", "key_id"])
def test_a_changed_octet_is_seen(part: str) -> None:
    world = World()
    vouch = Vouch("A", 1, 1, "B", world.by["B"]._topology.epoch, DIGEST)
    key_id, signature = world.by["A"].signer.sign(KIND, encode(vouch))
    parts = {"key_id": key_id, "vouch": encode(vouch), "signature": signature}
    parts[part] = parts[part][:-1] + bytes([parts[part][-1] ^ 1])
    assert world.reason(encode(SignedVouch(**parts))) is not None


def test_a_signature_of_a_record_is_none_of_a_vouch() -> None:
    world = World()
    signed = encode(Vouch("A", 1, 1, "B", world.by["B"]._topology.epoch, DIGEST))
    key_id, signature = world.by["A"].signer.sign(1, signed)
    assert world.reason(encode(SignedVouch(key_id, signed, signature))) == "bad signature"


WORLD = World()


@given(data=st.binary(max_size=200))
def test_any_octets_are_refused(data: bytes) -> None:
    assert WORLD.reason(data) is not None


@given(order=st.permutations(range(8)))
def test_vouches_may_come_in_any_order_and_none_twice(order: list[int]) -> None:
    made = [WORLD.vouch() for _ in order]
    assert [WORLD.reason(made[each]) for each in order] == [None] * len(made)
    assert {WORLD.reason(each) for each in made} == {"used before"}


def test_a_vouch_that_is_overtaken_by_very_many_is_refused() -> None:
    world = World()
    first = world.vouch()
    assert world.reason(first) is None
    late = world.vouch()
    world.by["A"]._number += WINDOW
    assert world.reason(world.vouch()) is None
    assert world.reason(late) == "used before"


def test_a_certificate_that_is_revoked_vouches_for_nobody() -> None:
    world = World()
    data = world.vouch()
    certificate = world.routers.identities["A"].certificate
    revoked = world.routers.world.authority.revoke([certificate.serial], 1, world.routers.world.clock.now)
    world.routers.trusts["B"].revoke(revoked.der)
    assert world.reason(data) == "certificate revoked"


@pytest.mark.parametrize(
    "client",
    [
        ALICE._replace(groups=("g",) * (MAX_GROUPS + 1)),
        ALICE._replace(groups=("g" * 1000,) * (MAX_VOUCH // 1000 + 1)),
        ALICE._replace(user="x" * 2000),
        ALICE._replace(user="\ud800"),
    ],
)
def test_nobody_vouches_for_a_client_that_no_vouch_has_room_for(client: Client) -> None:
    assert World().by["A"].vouch(client, "B", DIGEST) is None


def test_a_router_that_is_not_known_gets_no_vouch() -> None:
    assert World().by["A"].vouch(ALICE, "Z", DIGEST) is None


def test_a_vouch_has_the_scopes_of_the_client_up_to_a_bound() -> None:
    world = World()
    few = tuple(f"tag:{number}" for number in range(MAX_SCOPES))
    assert world.by["B"].believe(world.vouch(client=ALICE._replace(scopes=few)), DIGEST).scopes == few
    for scopes in ((*few, "tag:more"), ("x" * 65,)):
        assert world.by["A"].vouch(ALICE._replace(scopes=scopes), "B", DIGEST) is None
