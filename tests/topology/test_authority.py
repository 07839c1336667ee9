"""The authority of a mesh: certificates that OpenSSL accepts in strict mode, for TLS both ways."""

import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from amqpmesh.topology.authority import (
    DAY,
    MAX_DAYS,
    Authority,
    certificate_pem,
    is_encrypted,
    key_pem,
    load_key,
    revocations_pem,
)
from amqpmesh.topology.certificates import CertificateError, RouterCertificate, issued_by
from amqpmesh.topology.revocations import MAX_LIST, lists_in, read_revocations
from amqpmesh.topology.trust import Trust
from tests.support.data.authorities import NOW, World


class Files:
    """An authority and its files. It starts now, since OpenSSL uses the system's clock."""

    def __init__(self, folder: Path, mesh: str = "m1", now: float | None = None) -> None:
        self.now = time.time() if now is None else now
        self.authority = Authority.create(mesh, self.now, 90)
        self.folder = folder
        self.trust = folder / f"{mesh}.trust.pem"
        self.trust.write_bytes(certificate_pem(self.authority.certificate))

    def router(self, router: str, authority: Authority | None = None) -> RouterCertificate:
        """Make a router's certificate, `ID.pem`, and its key, `ID.key`."""
        key = Ed25519PrivateKey.generate()
        certificate = (authority or self.authority).issue(router, key.public_key(), self.now)
        (self.folder / f"{router}.pem").write_bytes(certificate_pem(certificate))
        (self.folder / f"{router}.key").write_bytes(key_pem(key))
        return certificate

    def context(self, protocol: int, router: str, version: ssl.TLSVersion) -> ssl.SSLContext:
        """Return a TLS context of a router that trusts this authority, under the strict rules."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = context.maximum_version = version
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        context.load_verify_locations(self.trust)
        context.load_cert_chain(self.folder / f"{router}.pem", self.folder / f"{router}.key")
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[bytes, bytes, str]:
    """Make a handshake in memory. Returns: the view of the client, that of the server, and the version of TLS."""
    upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(downward, upward), server.wrap_bio(upward, downward, server_side=True)]
    waiting = list(ends)
    for _ in range(10):
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    # A TLS 1.3 client finishes before the server has checked its certificate, so wait for a first octet.
    ends[0].write(b"x")
    assert ends[1].read(1) == b"x"
    seen = [end.getpeercert(binary_form=True) for end in ends]
    version = ends[0].version()
    assert seen[0] is not None
    assert seen[1] is not None
    assert version is not None
    return seen[0], seen[1], version


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("revoking", [False, True])
def test_two_routers_shake_hands_under_the_strict_rules(files: Files, version: ssl.TLSVersion, revoking: bool) -> None:
    first, second, revoked = files.router("A"), files.router("B" * 200), files.router("C")
    if revoking:  # the list in the same file does no harm
        with files.trust.open("ab") as stream:
            stream.write(revocations_pem(files.authority.revoke([revoked.serial], 1, files.now)))
    client = files.context(ssl.PROTOCOL_TLS_CLIENT, "A", version)
    server = files.context(ssl.PROTOCOL_TLS_SERVER, "B" * 200, version)
    saw = shake_hands(client, server)
    assert saw == (second.der, first.der, {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name])
    trust = Trust.load(files.trust.read_bytes(), time.time)
    assert [trust.router_of(der) for der in saw[:2]] == ["B" * 200, "A"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_router_of_another_authority_gets_no_connection(tmp_path: Path, version: ssl.TLSVersion) -> None:
    ours, theirs = Files(tmp_path), Files(tmp_path, "m2")
    ours.router("A")
    theirs.router("B")
    theirs.trust.write_bytes(ours.trust.read_bytes())
    client = theirs.context(ssl.PROTOCOL_TLS_CLIENT, "B", version)
    server = ours.context(ssl.PROTOCOL_TLS_SERVER, "A", version)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(client, server)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_renewed_authority_and_the_one_before_are_the_same_to_routers(files: Files, version: ssl.TLSVersion) -> None:
    renewed = files.authority.renewed(files.now, 365)
    files.router("A")
    files.router("B", renewed)
    before, after = files.trust.read_bytes(), certificate_pem(renewed.certificate)
    for pem in (before, after, before + after):
        files.trust.write_bytes(pem)
        client = files.context(ssl.PROTOCOL_TLS_CLIENT, "A", version)
        shake_hands(client, files.context(ssl.PROTOCOL_TLS_SERVER, "B", version))


@pytest.fixture
def openssl() -> Callable[..., subprocess.CompletedProcess[str]]:
    if shutil.which("openssl") is None:
        pytest.skip("NOT TESTED, missing: openssl")
    return lambda *words: subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("purpose", ["sslclient", "sslserver"])
def test_the_openssl_command_finds_the_chain_good(files: Files, openssl: Any, purpose: str) -> None:
    files.router("A")
    strict = ["verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(files.trust)]
    done = openssl(*strict, str(files.folder / "A.pem"))
    assert (done.returncode, done.stderr) == (0, "")
    assert openssl(*strict, str(files.trust)).returncode != 0  # the authority itself is neither client nor server


def test_the_openssl_command_understands_the_list_of_revocations(files: Files, openssl: Any) -> None:
    revoked = files.router("A")
    files.router("B")
    with files.trust.open("ab") as stream:
        stream.write(revocations_pem(files.authority.revoke([revoked.serial], 1, files.now)))
    strict = ["verify", "-x509_strict", "-crl_check", "-CAfile", str(files.trust), "-CRLfile", str(files.trust)]
    assert "certificate revoked" in openssl(*strict, str(files.folder / "A.pem")).stderr
    assert openssl(*strict, str(files.folder / "B.pem")).returncode == 0


# ------------------------------------------------------------------------------------------------------------- validity


def test_a_certificate_does_not_outlive_the_authority() -> None:
    world = World()
    world.clock.now += 3640 * DAY
    assert world.certificate("A").not_after == world.authority.certificate.not_after
    world.clock.now += 11 * DAY
    with pytest.raises(CertificateError, match="has expired"):
        world.certificate("A")


@pytest.mark.parametrize("days", [0, -1, MAX_DAYS + 1, float("nan"), float("inf")])
def test_a_certificate_is_good_for_some_days(days: float) -> None:
    with pytest.raises(CertificateError, match="days"):
        Authority.create("m1", NOW, days)
    with pytest.raises(CertificateError, match="days"):
        World().certificate("A", days)


def test_a_renewed_authority_has_signed_what_it_signed_before() -> None:
    world = World()
    certificate = world.certificate("A")
    renewed = world.authority.renewed(NOW + 100 * DAY)
    assert renewed.certificate.not_after == NOW + 3750 * DAY
    assert issued_by(certificate, renewed.certificate)
    assert renewed.certificate.authority == world.authority.certificate.authority
    assert not issued_by(certificate, World().authority.certificate)


# ----------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("passphrase", [None, b"secret"])
def test_an_authority_comes_back_from_its_files(passphrase: bytes | None) -> None:
    made = World().authority
    pem = key_pem(made.key, passphrase)
    assert is_encrypted(pem) == (passphrase is not None)
    loaded = Authority.load(made.certificate.der, pem, passphrase)
    assert loaded.certificate.der == made.certificate.der
    assert issued_by(loaded.issue("A", made.key.public_key(), NOW), made.certificate)


@pytest.mark.parametrize(
    ("stored", "given", "reason"),
    [
        (b"secret", b"other", "wrong passphrase"),
        (b"secret", None, "has a passphrase"),
        (None, b"secret", "has no passphrase"),
    ],
)
def test_the_passphrase_must_be_right(stored: bytes | None, given: bytes | None, reason: str) -> None:
    with pytest.raises(CertificateError, match=reason):
        load_key(key_pem(Ed25519PrivateKey.generate(), stored), given)


def test_a_key_is_an_ed25519_key() -> None:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(CertificateError, match="not Ed25519"):
        load_key(other)
    for garbage in (b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----\n", other[:60]):
        with pytest.raises(CertificateError, match="not a key"):
            load_key(garbage)


def test_the_key_must_be_that_of_the_certificate() -> None:
    one, other = World().authority, World().authority
    with pytest.raises(CertificateError, match="another certificate"):
        Authority.load(one.certificate.der, key_pem(other.key))


# ---------------------------------------------------------------------------------------------------------- revocations


def test_a_list_comes_back_with_its_number_and_what_is_revoked() -> None:
    authority = World().authority
    made = authority.revoke([7, 3, 7], 5, NOW)
    for der in (made.der, *lists_in(certificate_pem(authority.certificate) + revocations_pem(made))):
        read = read_revocations(der, (authority.certificate,))
        assert (read.number, read.serials) == (5, {3, 7})
        assert read.authority == authority.certificate.authority


def test_a_list_has_room_for_all_that_matters_and_an_end() -> None:
    authority = World().authority
    long = [2**158 + each for each in range(1500)]
    assert len(authority.revoke(long, 1, NOW).der) <= MAX_LIST
    with pytest.raises(CertificateError, match="would be longer"):
        authority.revoke([2**158 + each for each in range(1600)], 1, NOW)
