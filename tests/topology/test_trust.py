"""Trust of a router: signatures, certificates, revocations, and a wrong clock."""

import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.authority import DAY, Authority, certificate_pem, key_pem, revocations_pem
from amqpmesh.topology.certificates import CertificateError
from amqpmesh.topology.records import Kind
from amqpmesh.topology.signing import Certified, Revoked, SignedRecord, UntrustedError
from amqpmesh.topology.trust import (
    CLOCK_TOLERANCE,
    EXPIRY_WARNING,
    MAX_CERTIFICATES,
    Identity,
    Trust,
    VerifiedRecords,
    signed_octets,
)
from tests.support.data.authorities import NOW, World, strange

BODY = b"what A says"


@pytest.fixture
def world() -> World:
    return World()


def refusal(trust: Trust, origin: str, key_id: bytes, signature: bytes, kind: int = 1, body: bytes = BODY) -> str:
    with pytest.raises(UntrustedError) as refused:
        trust.verify(origin, kind, key_id, body, signature)
    assert not refused.value.unknown_key
    return refused.value.reason


def strangers(trust: Trust, certificate: bytes) -> str:
    """Return the reason to refuse a certificate: the same in a record and in a handshake."""
    with pytest.raises(UntrustedError) as refused:
        trust.router_of(certificate)
    with pytest.raises(UntrustedError, match=refused.value.reason):
        trust.learn(certificate)
    return refused.value.reason


# ---------------------------------------------------------------------------------------------------------- signatures


@given(st.binary(max_size=200), st.integers(0, 255))
def test_what_a_router_signs_is_believed(body: bytes, kind: int) -> None:
    world = World()
    identity, trust = world.identity("A"), world.trust()
    assert trust.learn(identity.certificate.der) == Certified("A", identity.certificate.key_id)
    key_id, signature = identity.sign(kind, body)
    trust.verify("A", kind, key_id, body, signature)


def test_its_workers_are_believed_and_nobody_else(world: World) -> None:
    identity, trust = world.identity("A"), world.trust()
    trust.learn(identity.certificate.der)
    signed = identity.sign(1, BODY)
    trust.verify("A.7", 1, signed[0], BODY, signed[1])
    for other in ("B", "A.x", "AA", "", "A.1.1"):
        assert refusal(trust, other, *signed) == "certificate of another router"


def test_another_body_kind_or_signature_is_not_believed(world: World) -> None:
    identity, trust = world.identity("A"), world.trust()
    trust.learn(identity.certificate.der)
    key_id, signature = identity.sign(1, BODY)
    trust.verify("A", 1, key_id, BODY, signature)
    assert refusal(trust, "A", key_id, signature, kind=2) == "bad signature"
    assert refusal(trust, "A", key_id, signature, body=BODY + b"x") == "bad signature"
    for kind in (-1, 256, 10**30):
        assert refusal(trust, "A", key_id, signature, kind=kind) == "bad signature"
    for wrong in (b"", bytes(64), signature[:-1], signature + b"\0", bytes([signature[0] ^ 1]) + signature[1:]):
        assert refusal(trust, "A", key_id, wrong) == "bad signature"


def test_a_signature_of_one_mesh_is_not_good_in_another() -> None:
    key = Ed25519PrivateKey.generate()
    meshes = [World("m1"), World("m2")]
    identities = [Identity(each.certificate("A", key=key), key, each.trust()) for each in meshes]
    trust = meshes[1].trust()
    trust.learn(identities[1].certificate.der)
    assert refusal(trust, "A", identities[1].certificate.key_id, identities[0].sign(1, BODY)[1]) == "bad signature"


@given(st.tuples(st.sampled_from(["m", "m1", "1", "m11"]), st.integers(0, 255), st.binary(max_size=4)), st.data())
def test_no_two_things_have_the_same_octets_to_sign(one: tuple[str, int, bytes], data: st.DataObject) -> None:
    other = data.draw(st.tuples(st.sampled_from(["m", "m1", "1", "m11"]), st.integers(0, 255), st.binary(max_size=4)))
    assert (signed_octets(*one) == signed_octets(*other)) == (one == other)


def test_a_certificate_that_is_not_known_is_asked_for(world: World) -> None:
    identity, trust = world.identity("A"), world.trust()
    signed = identity.sign(1, BODY)
    with pytest.raises(UntrustedError) as refused:
        trust.verify("A", 1, signed[0], BODY, signed[1])
    assert refused.value.unknown_key
    trust.learn(identity.certificate.der)
    trust.verify("A", 1, signed[0], BODY, signed[1])
    trust.forget(signed[0])
    trust.forget(signed[0])
    with pytest.raises(UntrustedError) as refused:
        trust.verify("A", 1, signed[0], BODY, signed[1])
    assert refused.value.unknown_key


@pytest.mark.filterwarnings("error")
def test_a_certificate_with_a_serial_that_no_authority_gives_is_refused_without_a_warning(world: World) -> None:
    good = world.certificate("A")
    serial = good.serial.to_bytes((good.serial.bit_length() + 8) // 8, "big")
    for wrong in (bytes(len(serial)), bytes([serial[0] | 0x80]) + serial[1:]):
        strangers(world.trust(), good.der.replace(serial, wrong, 1))


def test_what_has_been_verified_is_not_verified_again_but_certificates_are_looked_at(world: World) -> None:
    shared = VerifiedRecords(size=2)
    identity, first, second = world.identity("A"), world.trust(verified=shared), world.trust(verified=shared)
    signed = identity.sign(1, BODY)
    first.learn(identity.certificate.der)
    first.verify("A", 1, signed[0], BODY, signed[1])
    with pytest.raises(UntrustedError, match="unknown certificate"):
        second.verify("A", 1, signed[0], BODY, signed[1])
    second.learn(identity.certificate.der)
    second.verify("A", 1, signed[0], BODY, signed[1])
    second.revoke(world.revoke(identity.certificate).der)
    assert refusal(second, "A", *signed) == "certificate revoked"
    first.verify("A", 1, signed[0], BODY, signed[1])


def test_what_is_remembered_is_bounded() -> None:
    verified = VerifiedRecords(size=2)
    for digest in (b"a", b"b", b"a", b"c"):
        verified.add(digest)
    assert [digest in verified for digest in (b"a", b"b", b"c")] == [False, True, True]


# -------------------------------------------------------------------------------------------------------- certificates


def test_certificates_of_other_authorities_and_meshes_are_not_taken(world: World) -> None:
    assert strangers(world.trust(), World("m1").certificate("A").der) == "certificate of an unknown authority"
    assert strangers(world.trust(), World("m2").certificate("A").der) == "certificate of another mesh"


def test_the_authority_is_no_router_and_a_router_no_authority(world: World) -> None:
    assert "names no router" in strangers(world.trust(), world.authority.certificate.der)
    key = Ed25519PrivateKey.generate()
    router = world.certificate("A", key=key)
    # A router's own key cannot sign for the authority, under any name.
    assert strangers(world.trust(), strange(world.authority, signing_key=key)) == "certificate of an unknown authority"
    for trusted in (certificate_pem(router), world.pem + certificate_pem(router)):
        with pytest.raises(CertificateError):
            Trust.load(trusted, world.clock)


def test_keys_of_another_kind_are_not_taken(world: World) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    assert "not Ed25519" in strangers(world.trust(), strange(world.authority, key=other))


@given(st.binary(max_size=600))
def test_garbage_is_not_taken(octets: bytes) -> None:
    trust = World().trust()
    strangers(trust, octets)
    with pytest.raises(UntrustedError):
        trust.revoke(octets)


def test_not_an_octet_of_a_certificate_or_a_list_can_be_changed(world: World) -> None:
    trust, certificate = world.trust(), world.certificate("A").der
    revocations = world.revoke(world.certificate("B")).der
    for take, good in ((trust.learn, certificate), (trust.revoke, revocations)):
        for at in range(len(good)):
            for flip in (0x01, 0x80):
                with pytest.raises(UntrustedError):
                    take(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
        for cut in (good[:-1], good + b"\0", b"\0" + good):
            with pytest.raises(UntrustedError):
                take(cut)
        take(good)


def test_no_signature_can_be_written_in_another_way(world: World) -> None:
    # DER ends with the signature, 64 octets; the octet before it is the number of unused bits.
    trust = world.trust()
    for _ in range(10):
        certificate = world.certificate("A").der
        for take, good in ((trust.learn, certificate), (trust.revoke, world.revoke().der)):
            take(good)
            for unused in range(1, 8):
                with pytest.raises(UntrustedError):
                    take(good[:-65] + bytes([unused]) + good[-64:])


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (-CLOCK_TOLERANCE - 301, "certificate not yet valid"),
        (-CLOCK_TOLERANCE - 299, None),
        (0, None),
        (2 * DAY + CLOCK_TOLERANCE - 1, None),
        (2 * DAY + CLOCK_TOLERANCE + 1, "certificate expired"),
    ],
)
def test_the_clock_may_be_five_minutes_off(world: World, at: float, reason: str | None) -> None:
    certificate, trust = world.certificate("A", days=2).der, world.trust()
    world.clock.now = NOW + at
    if reason is None:
        assert trust.router_of(certificate) == "A"
        trust.learn(certificate)
    else:
        assert strangers(trust, certificate) == reason


def test_a_certificate_ends_while_it_is_known(world: World) -> None:
    trust, identity = world.trust(), world.identity("A", days=1)
    trust.learn(identity.certificate.der)
    signed = identity.sign(1, BODY)
    trust.verify("A", 1, signed[0], BODY, signed[1])
    world.clock.now += DAY + CLOCK_TOLERANCE + 1
    assert refusal(trust, "A", *signed) == "certificate expired"
    world.clock.now -= 60 * DAY  # the clock was set back
    assert refusal(trust, "A", *signed) == "certificate not yet valid"
    world.clock.now = NOW
    trust.verify("A", 1, signed[0], BODY, signed[1])


def test_a_certificate_ends_with_its_authority(world: World) -> None:
    trust = world.trust()
    world.clock.now += 3650 * DAY + CLOCK_TOLERANCE + 1
    later = strange(world.authority, days=4000)
    assert strangers(trust, later) == "certificate expired"


def test_every_certificate_of_a_router_is_good_while_one_follows_another(world: World) -> None:
    trust = world.trust()
    before, after = world.identity("A", days=1), world.identity("A", days=30)
    for identity in (before, after):
        trust.learn(identity.certificate.der)
    for identity in (after, before, after):
        signed = identity.sign(1, BODY)
        trust.verify("A", 1, signed[0], BODY, signed[1])
    world.clock.now += 2 * DAY
    assert refusal(trust, "A", *before.sign(1, BODY)) == "certificate expired"
    trust.verify("A", 1, *_of(after))


def _of(identity: Identity) -> tuple[bytes, bytes, bytes]:
    key_id, signature = identity.sign(1, BODY)
    return key_id, BODY, signature


def test_of_many_certificates_of_a_router_those_that_end_last_are_known(world: World) -> None:
    trust = world.trust()
    identities = [world.identity("A", days=days) for days in range(MAX_CERTIFICATES + 3, 0, -1)]
    other = world.identity("B", days=1)
    for identity in (other, *identities):
        trust.learn(identity.certificate.der)

    def knows(router: str, identity: Identity) -> bool:
        try:
            trust.verify(router, 1, *_of(identity))
        except UntrustedError as error:
            return not error.unknown_key
        return True

    assert [knows("A", identity) for identity in identities] == [True] * MAX_CERTIFICATES + [False] * 3
    assert knows("B", other)


# --------------------------------------------------------------------------------------------------------- revocations


def test_a_revoked_certificate_is_not_good_wherever_it_is_shown(world: World) -> None:
    trust, identity, other = world.trust(), world.identity("A"), world.identity("A")
    for each in (identity, other):
        trust.learn(each.certificate.der)
    made = world.revoke(identity.certificate)
    assert trust.revoke(made.der) == Revoked(world.authority.certificate.authority, 1)
    assert refusal(trust, "A", *identity.sign(1, BODY)) == "certificate revoked"
    assert strangers(trust, identity.certificate.der) == "certificate revoked"
    assert trust.router_of(other.certificate.der) == "A"
    trust.verify("A", 1, *_of(other))
    assert strangers(world.trust(), identity.certificate.der) == "certificate revoked"  # the trust file has it


def test_an_older_list_changes_nothing(world: World) -> None:
    certificate, trust = world.certificate("A"), world.trust()
    older, newer = world.revoke(), world.revoke(certificate)
    assert trust.revoke(newer.der).number == 2
    assert trust.revoke(older.der).number == 1
    assert [each.number for each in trust.revocations()] == [2]
    assert strangers(trust, certificate.der) == "certificate revoked"


def test_lists_of_others_are_not_taken(world: World) -> None:
    trust = world.trust()
    for other in (World("m1"), World("m2")):
        with pytest.raises(UntrustedError, match="unknown authority"):
            trust.revoke(other.revoke().der)
    # A router with the authority's name.
    key = Ed25519PrivateKey.generate()
    false = Authority(world.authority.certificate, key)
    with pytest.raises(CertificateError):
        false.revoke([1], 9, NOW)
    assert trust.revocations() == ()


def test_an_authority_revokes_its_own_certificates_only() -> None:
    one, other = World(), World()
    trust = Trust.load(one.pem + other.pem, one.clock)
    certificate = one.certificate("A")
    trust.revoke(other.revoke(certificate).der)
    assert trust.router_of(certificate.der) == "A"
    trust.revoke(one.revoke(certificate).der)
    assert strangers(trust, certificate.der) == "certificate revoked"


def test_a_renewed_authority_goes_on_with_its_list(world: World) -> None:
    certificate = world.certificate("A")
    world.revoke(certificate)
    pem = certificate_pem(world.authority.renewed(NOW).certificate) + revocations_pem(world.revoked[0])
    assert strangers(Trust.load(pem, world.clock), certificate.der) == "certificate revoked"


# --------------------------------------------------------------------------------------------------------------- files


def test_the_trust_file_must_hold_authorities_of_one_mesh() -> None:
    for pem in (b"", b"garbage", World("m1").pem + World("m2").pem):
        with pytest.raises(CertificateError):
            Trust.load(pem, lambda: NOW)


def test_a_list_in_the_trust_file_must_be_the_authoritys(world: World) -> None:
    stranger = World()
    with pytest.raises(CertificateError, match="unknown authority"):
        Trust.load(world.pem + revocations_pem(stranger.revoke()), world.clock)
    damaged = revocations_pem(world.revoke()).replace(b"M", b"!", 1)
    with pytest.raises(CertificateError):
        Trust.load(certificate_pem(world.authority.certificate) + damaged, world.clock)


def test_an_authority_that_is_gone_from_the_file_is_not_believed_any_more(world: World) -> None:
    after = World()
    trust = Trust.load(world.pem + after.pem, world.clock)
    old, new = world.identity("A", trust=trust), after.identity("B", trust=trust)
    trust.reload(after.pem)
    trust.verify("B", 1, *_of(new))
    with pytest.raises(UntrustedError, match="unknown certificate"):
        trust.verify("A", 1, *_of(old))
    assert strangers(trust, old.certificate.der) == "certificate of an unknown authority"


def test_reading_again_takes_newer_lists_and_forgets_none(world: World) -> None:
    trust, certificate, before = world.trust(), world.certificate("A"), world.pem
    trust.learn(certificate.der)
    world.revoke(certificate)
    trust.reload(world.pem)
    assert strangers(trust, certificate.der) == "certificate revoked"
    trust.reload(before)
    assert strangers(trust, certificate.der) == "certificate revoked"


def test_a_bad_file_changes_nothing(world: World) -> None:
    trust, certificate = world.trust(), world.certificate("A")
    stranger = World()
    bad = (b"", World("m2").pem, stranger.pem + revocations_pem(world.revoke(certificate)))
    for pem in bad:
        with pytest.raises(CertificateError):
            trust.reload(pem)
        assert trust.router_of(certificate.der) == "A"
    assert trust.revocations() == ()


# ------------------------------------------------------------------------------------------------------------ identity


def test_an_identity_comes_from_its_files(world: World) -> None:
    key = Ed25519PrivateKey.generate()
    certificate = world.certificate("A", key=key)
    identity = Identity.load(certificate_pem(certificate), key_pem(key), world.trust())
    assert (identity.router, identity.mesh, identity.certificate.der) == ("A", "m1", certificate.der)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (lambda w, k: (certificate_pem(w.certificate("A")), key_pem(k)), "the key is that of another"),
        (lambda w, k: (certificate_pem(World().certificate("A", key=k)), key_pem(k)), "unknown authority"),
        (lambda w, k: (certificate_pem(World("m2").certificate("A", key=k)), key_pem(k)), "another mesh"),
        (lambda w, k: (w.pem, key_pem(w.authority.key)), "names no router"),
        (lambda w, k: (b"", key_pem(k)), "not a certificate"),
        (lambda w, k: (certificate_pem(w.certificate("A", key=k)), b""), "not a key"),
        (lambda w, k: (certificate_pem(w.certificate("A", key=k)), key_pem(k, b"secret")), "has a passphrase"),
    ],
)
def test_an_identity_that_others_would_not_believe_is_none(world: World, files: Any, reason: str) -> None:
    certificate, key = files(world, Ed25519PrivateKey.generate())
    with pytest.raises(CertificateError, match=reason):
        Identity.load(certificate, key, world.trust())


def test_an_identity_that_has_expired_or_was_revoked_is_none(world: World) -> None:
    key = Ed25519PrivateKey.generate()
    certificate = world.certificate("A", days=1, key=key)
    world.revoke(certificate)
    with pytest.raises(CertificateError, match="revoked"):
        Identity(certificate, key, world.trust())
    world.clock.now += 2 * DAY
    with pytest.raises(CertificateError, match="expired"):
        Identity(certificate, key, Trust([world.authority.certificate], world.clock))


def test_a_connection_outlives_the_certificate_it_was_made_with_if_its_router_has_told_of_another(world: World) -> None:
    trust = world.trust()
    old, new = world.certificate("A", days=1), world.certificate("A", days=3)
    assert trust.still_router_of(old.der) == "A"
    world.clock.now += 2 * DAY
    with pytest.raises(UntrustedError, match="expired"):
        trust.still_router_of(old.der)
    trust.learn(world.certificate("B", days=3).der)
    with pytest.raises(UntrustedError, match="expired"):
        trust.still_router_of(old.der)
    trust.learn(new.der)
    assert trust.still_router_of(old.der) == "A"
    with pytest.raises(UntrustedError, match="expired"):
        trust.router_of(old.der)
    trust.revoke(world.revoke(old).der)
    with pytest.raises(UntrustedError, match="revoked"):
        trust.still_router_of(old.der)
    world.clock.now += 2 * DAY
    with pytest.raises(UntrustedError, match="revoked"):
        trust.still_router_of(old.der)


def test_what_must_be_known_to_believe_a_router_is_flooded_first(world: World) -> None:
    trust = world.trust()
    identity = world.identity("A", trust=trust)
    certificate = SignedRecord(Kind.CERTIFICATE, identity.certificate.key_id, identity.certificate.der, b"")
    assert identity.records() == (certificate,)
    made = world.revoke(world.certificate("B"))
    trust.revoke(made.der)
    assert identity.records() == (certificate, SignedRecord(Kind.REVOCATION, made.authority, made.der, b""))


def test_a_router_warns_before_its_certificate_ends(world: World) -> None:
    identity = world.identity("A", days=30)
    assert identity.expires_at == NOW + 30 * DAY
    assert identity.warn_at == identity.expires_at - EXPIRY_WARNING
    short = world.identity("A", days=1)
    assert NOW + 0.7 * DAY < short.warn_at < short.expires_at == NOW + DAY
    world.clock.now += 3649 * DAY
    assert world.identity("A", days=30).expires_at == world.authority.certificate.not_after


def test_believing_a_record_takes_a_fraction_of_a_millisecond(world: World) -> None:
    identity, trust = world.identity("A"), world.trust()
    trust.learn(identity.certificate.der)
    signed = [(b"%200d" % number, *identity.sign(1, b"%200d" % number)) for number in range(200)]
    took = []
    for body, key_id, signature in signed:
        began = time.thread_time()
        trust.verify("A", 1, key_id, body, signature)
        took.append(time.thread_time() - began)
    assert sorted(took)[100] < 0.001  # measured: 0.1 ms; the bound leaves room for slow machines
