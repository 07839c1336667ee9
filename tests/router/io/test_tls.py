"""TLS contexts: admitted clients, trusted authorities, and names in certificates."""

import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.io.tls import certificate_user, client_context, mesh_contexts, server_context
from amqpmesh.topology.authority import Authority, certificate_pem, key_pem


@dataclass(frozen=True)
class Files:
    """The certificate files of an operator."""

    trust: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path
    stranger_trust: Path
    stranger_certificate: Path
    stranger_key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")

    def write(leaf: trustme.LeafCert, name: str) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return certificate, key

    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    stranger.cert_pem.write_to_path(str(folder / "stranger-ca.pem"))
    return Files(
        folder / "ca.pem",
        *write(authority.issue_cert("router.example"), "router"),
        *write(authority.issue_cert("ada@example.org", common_name="ada"), "ada"),
        folder / "stranger-ca.pem",
        *write(stranger.issue_cert("mallory@example.org"), "mallory"),
    )


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, hostname: str = "router.example"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends after their handshake and a byte in each direction, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=hostname),
    )

    def pump(*steps: object) -> None:
        waiting = list(steps)
        for _ in range(10):  # no handshake has more flights
            for step in tuple(waiting):
                try:
                    step()  # type: ignore[operator]  # steps are callables of different results
                except ssl.SSLWantReadError:
                    continue
                waiting.remove(step)
            if not waiting:
                return
        raise AssertionError("the handshake does not end")

    pump(ends[0].do_handshake, ends[1].do_handshake)
    # In TLS 1.3 the client finishes before the server has checked its certificate: only data shows the result.
    for end in ends:
        end.write(b"x")
    pump(lambda: ends[0].read(1), lambda: ends[1].read(1))
    return ends


def test_a_client_that_trusts_the_authority_connects_with_tls_1_2_or_later(files: Files) -> None:
    server, client = shake_hands(server_context(files.certificate, files.key), client_context(files.trust))
    assert client.version() in ("TLSv1.2", "TLSv1.3")
    assert server.getpeercert() is None


def test_a_client_can_still_speak_tls_1_2(files: Files) -> None:
    old = client_context(files.trust)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, client = shake_hands(server_context(files.certificate, files.key), old)
    assert client.version() == "TLSv1.2"


@pytest.mark.parametrize("ours", ["server", "client"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")  # the test needs the old versions
def test_nothing_below_tls_1_2_is_spoken(files: Files, ours: str) -> None:
    contexts = {"server": server_context(files.certificate, files.key), "client": client_context(files.trust)}
    for context in contexts.values():
        context.set_ciphers("ALL:@SECLEVEL=0")  # so the peer refuses the version, not OpenSSL its ciphers
    theirs = contexts["client" if ours == "server" else "server"]
    theirs.minimum_version = ssl.TLSVersion.TLSv1
    theirs.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        shake_hands(contexts["server"], contexts["client"])


def test_a_client_refuses_a_server_of_another_authority(files: Files) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(files.certificate, files.key), client_context(files.stranger_trust))


def test_a_client_refuses_a_server_of_another_name(files: Files) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server_context(files.certificate, files.key), client_context(files.trust), "other.example")


def test_a_client_without_authorities_of_its_own_trusts_those_of_the_system(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_context(files.certificate, files.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context())
    monkeypatch.setenv("SSL_CERT_FILE", str(files.trust))
    shake_hands(server, client_context())


@pytest.mark.parametrize("client", ["optional", "required"])
def test_a_client_certificate_names_the_user(files: Files, client: str) -> None:
    server, _ = shake_hands(
        server_context(files.certificate, files.key, files.trust, client),
        client_context(files.trust, files.client_certificate, files.client_key),
    )
    assert certificate_user(server.getpeercert()) == "ada@example.org"


def test_a_required_client_certificate_cannot_be_left_out(files: Files) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        shake_hands(server_context(files.certificate, files.key, files.trust, "required"), client_context(files.trust))


def test_an_optional_client_certificate_can(files: Files) -> None:
    server, _ = shake_hands(
        server_context(files.certificate, files.key, files.trust, "optional"), client_context(files.trust)
    )
    assert certificate_user(server.getpeercert()) is None


@pytest.mark.parametrize("client", ["optional", "required"])
def test_a_client_certificate_of_another_authority_is_refused(files: Files, client: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            server_context(files.certificate, files.key, files.trust, client),
            client_context(files.trust, files.stranger_certificate, files.stranger_key),
        )


def test_a_certificate_nobody_asked_for_names_nobody(files: Files) -> None:
    server, _ = shake_hands(
        server_context(files.certificate, files.key),
        client_context(files.trust, files.client_certificate, files.client_key),
    )
    assert certificate_user(server.getpeercert()) is None


def test_a_context_says_what_is_wrong_with_what_it_was_given(files: Files) -> None:
    with pytest.raises(CommandError, match="none, optional, required"):
        server_context(files.certificate, files.key, files.trust, "maybe")
    with pytest.raises(CommandError, match="trusted"):
        server_context(files.certificate, files.key, client="required")
    with pytest.raises(CommandError, match="needs its key"):
        client_context(files.trust, certificate=files.client_certificate)
    with pytest.raises(CommandError, match="needs its key"):
        client_context(files.trust, key=files.client_key)
    with pytest.raises(FileNotFoundError):
        server_context(files.certificate.with_name("absent.pem"), files.key)
    with pytest.raises(ssl.SSLError):
        server_context(files.certificate, files.client_key)
    with pytest.raises(ssl.SSLError):
        server_context(files.certificate, files.key, files.key, "required")


def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(files: Files, tmp_path: Path) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(ssl.SSLError):
        server_context(files.certificate, locked)


def test_an_encrypted_key_is_read_with_its_password(files: Files, tmp_path: Path) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    shake_hands(server_context(files.certificate, locked, password="secret"), client_context(files.trust))
    with pytest.raises(ssl.SSLError):
        server_context(files.certificate, locked, password="other")


def test_a_listener_may_demand_tls_1_3(files: Files) -> None:
    client = client_context(files.trust)
    shake_hands(server_context(files.certificate, files.key, minimum="1.3"), client)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(files.certificate, files.key, minimum="1.3"), client)


def test_a_listener_may_choose_its_ciphers(files: Files) -> None:
    client = client_context(files.trust)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    one = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
    server, _ = shake_hands(server_context(files.certificate, files.key, ciphers=one), client)
    cipher = server.cipher()
    assert cipher is not None
    assert cipher[0] in one.split(":")
    with pytest.raises(ssl.SSLError):
        server_context(files.certificate, files.key, ciphers="NONE-OF-THESE")


@pytest.mark.parametrize(
    ("name", "user"),
    [("any", "urn:ada"), ("uri", "urn:ada"), ("dns", "a"), ("email", None), ("ip", None), ("common-name", "ada")],
)
def test_an_operator_chooses_the_name_that_is_the_user(name: str, user: str | None) -> None:
    alternatives = (("URI", "urn:ada"), ("DNS", "a"))
    certificate = {"subject": ((("commonName", "ada"),),), "subjectAltName": alternatives}
    assert certificate_user(certificate, name) == user


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("commonName", "ada"),),)}, "ada"),
        ({"subject": ((("organizationName", "Engines"),), (("commonName", "ada"),))}, "ada"),
        ({"subject": ((("organizationName", "Engines"),),)}, None),
        ({"subject": ((("commonName", "ada"),),), "subjectAltName": (("URI", "urn:ada"), ("DNS", "a"))}, "urn:ada"),
        ({"subject": (), "subjectAltName": (("IP Address", "192.0.2.1"),)}, "192.0.2.1"),
        ({"subject": (), "subjectAltName": (("othername", "<unsupported>"), ("email", "a@b"))}, "a@b"),
        ({"subject": (), "subjectAltName": (("othername", "<unsupported>"),)}, None),
        ({"subject": ((("commonName", "ada"),),), "subjectAltName": (("DNS", ""),)}, "ada"),
    ],
)
def test_a_certificate_names_its_first_alternative_name_else_its_common_name(
    certificate: dict[str, object] | None, user: str | None
) -> None:
    assert certificate_user(certificate) == user


# Routers of a mesh.


class Mesh:
    """An authority, and the certificates that it issues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(folder.name, time.time())
        (folder / "ca.pem").write_bytes(certificate_pem(self.authority.certificate))

    def contexts(self, certificate: bytes, key: Ed25519PrivateKey) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts of a router with a certificate, as the server and as the client."""
        (self.folder / "router.pem").write_bytes(certificate)
        (self.folder / "router.key").write_bytes(key_pem(key))
        return mesh_contexts(self.folder / "router.pem", self.folder / "router.key", self.folder / "ca.pem")

    def router(self, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Issue a certificate. Returns: the router's contexts, as the server and as the client."""
        key = Ed25519PrivateKey.generate()
        issued = self.authority.issue(name, key.public_key(), time.time())
        return self.contexts(certificate_pem(issued), key)


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    (tmp_path / "mill").mkdir()
    return Mesh(tmp_path / "mill")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_routers_of_a_mesh_know_each_other_whatever_their_hosts_are_called(mesh: Mesh, version: ssl.TLSVersion) -> None:
    server, client = mesh.router("A")[0], mesh.router("B")[1]
    client.minimum_version = client.maximum_version = version
    ends = shake_hands(server, client, "any.example")
    assert [certificate_user(end.getpeercert()) for end in ends] == [
        "amqpmesh://mill/router/B",
        "amqpmesh://mill/router/A",
    ]


def test_a_router_of_another_mesh_is_refused_by_either_side(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    server, client = mesh.router("A")
    stranger_server, stranger_client = Mesh(tmp_path / "other").router("B")
    for one, other in ((server, stranger_client), (stranger_server, client)):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(one, other)


def test_when_certificates_of_a_mesh_are_valid_is_not_for_tls_to_say(mesh: Mesh) -> None:
    key = Ed25519PrivateKey.generate()
    ended = mesh.authority.issue("B", key.public_key(), time.time() - 10 * 86_400, days=1)
    ends = shake_hands(mesh.router("A")[0], mesh.contexts(certificate_pem(ended), key)[1])
    assert certificate_user(ends[0].getpeercert()) == "amqpmesh://mill/router/B"


def test_nobody_comes_into_a_mesh_without_a_certificate(mesh: Mesh) -> None:
    visitor = client_context(mesh.folder / "ca.pem")
    visitor.check_hostname = False
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
        shake_hands(mesh.router("A")[0], visitor)


def test_a_certificate_of_a_mesh_keeps_to_the_standard_for_certificates(mesh: Mesh) -> None:
    key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    loose = (  # the key that signed it is not named (RFC 5280, 4.2.1.1)
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "B")]))
        .issuer_name(mesh.authority.certificate.parsed.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(mesh.authority.key, None)
    )
    client = mesh.contexts(loose.public_bytes(Encoding.PEM), key)[1]
    with pytest.raises(ssl.SSLCertVerificationError, match="Authority Key Identifier"):
        shake_hands(mesh.router("A")[0], client)


def revocation_list(authority: Authority, *serials: int, until: timedelta) -> bytes:
    """Return a revocation list of an authority, PEM."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.parsed.subject)
        .last_update(now - timedelta(days=2))
        .next_update(now + until)
    )
    for serial in serials:
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(days=1))
        builder = builder.add_revoked_certificate(revoked.build())
    return builder.sign(authority.key, None).public_bytes(Encoding.PEM)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_revoked_client_is_refused_and_others_are_not(mesh: Mesh, tmp_path: Path, version: ssl.TLSVersion) -> None:
    file = tmp_path / "revoked.pem"
    certificate, key, trust = (mesh.folder / name for name in ("router.pem", "router.key", "ca.pem"))
    mesh.router("B")
    serial = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number

    def shake() -> None:
        server = server_context(certificate, key, trust, "required", revoked=file)
        client = client_context(trust, certificate, key)
        client.check_hostname = False
        client.maximum_version = version
        shake_hands(server, client)

    file.write_bytes(revocation_list(mesh.authority, serial + 1, until=timedelta(days=1)))
    shake()
    file.write_bytes(revocation_list(mesh.authority, serial, until=timedelta(days=1)))
    with pytest.raises(ssl.SSLError):
        shake()
    file.write_bytes(revocation_list(mesh.authority, until=timedelta(days=-1)))
    with pytest.raises(ssl.SSLError):
        shake()  # the list is out of date, so nobody can tell
