"""Settings of a listener's TLS, as they reach its connections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from amqpmesh import (
    ConfigError,
    Connection,
    ConnectionClosedError,
    ListenerConfig,
    PasswordConfig,
    Router,
    TlsConfig,
    connect,
)
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY


async def test_an_encrypted_key_a_least_version_and_the_name_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("localhost"), authority.issue_cert("ada@example.org", common_name="ada")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for leaf, name in ((ours, "router"), (theirs, "ada")):
        (tmp_path / f"{name}.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
        leaf.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
    key = load_pem_private_key(ours.private_key_pem.bytes(), None)
    (tmp_path / "router.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    tls = TlsConfig(
        certificate=tmp_path / "router.pem",
        key=tmp_path / "router.key",
        key_password=PasswordConfig(env="KEY_PASSWORD"),
        trust=tmp_path / "ca.pem",
        client="required",
        minimum="1.3",
        user="common-name",
    )
    listener = ListenerConfig(url="amqps://127.0.0.1:0", sasl=("EXTERNAL",), tls=tls)
    with pytest.raises(ConfigError, match="KEY_PASSWORD is not set"):
        async with Router(id="A", listeners=[listener]):
            pass
    monkeypatch.setenv("KEY_PASSWORD", "secret")
    files = {"trust": tmp_path / "ca.pem", "certificate": tmp_path / "ada.pem", "key": tmp_path / "ada.key"}
    async with Router(id="A", listeners=[listener]) as router:
        url = router.listeners[0].url.replace("127.0.0.1", "localhost")
        async with connect(url, **files) as client, client.receiver("q"):
            (seen,) = router.statistics().connections
            assert seen.user == "ada"
            assert seen.tls == "TLSv1.3"


async def test_an_open_connection_ends_once_its_certificate_is_in_the_list_that_is_read_again(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("localhost", "ada", "bob"):
        leaf = authority.issue_cert(name)
        (tmp_path / f"{name}.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
        leaf.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))

    def revoke(*names: str) -> None:
        issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now - timedelta(days=1))
        for name in names:
            serial = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(days=1))
            builder = builder.add_revoked_certificate(entry.build())
        key = load_pem_private_key(authority.private_key_pem.bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        signed = builder.next_update(now + timedelta(days=1)).sign(key, SHA256())
        (tmp_path / "revoked.pem").write_bytes(signed.public_bytes(Encoding.PEM))

    revoke()
    tls = TlsConfig(
        certificate=tmp_path / "localhost.pem",
        key=tmp_path / "localhost.key",
        trust=tmp_path / "ca.pem",
        client="required",
        revoked=tmp_path / "revoked.pem",
    )
    listener = ListenerConfig(url="amqps://127.0.0.1:0", sasl=("EXTERNAL",), tls=tls)

    def client(url: str, name: str) -> Connection:
        return connect(
            url, trust=tmp_path / "ca.pem", certificate=tmp_path / f"{name}.pem", key=tmp_path / f"{name}.key"
        )

    async with Router(id="A", listeners=[listener]) as router:
        url = router.listeners[0].url.replace("127.0.0.1", "localhost")
        async with client(url, "bob") as bob, bob.receiver("q"):
            with pytest.raises(ConnectionClosedError, match="not permitted"):
                async with client(url, "ada") as ada, ada.receiver("q") as receiver:
                    revoke("ada")
                    router.reload()
                    await receiver.receive()
            async with bob.receiver("p"):
                pass
            with pytest.raises(ConnectionClosedError):
                async with client(url, "ada"):
                    pass
