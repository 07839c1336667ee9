"""Certificates of routers and authorities: required contents."""

from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.certificates import (
    MAX_CERTIFICATE,
    CertificateError,
    certificates_in,
    fingerprint,
    read_authority,
    read_router,
    router_uri,
)
from amqpmesh.topology.workers import covers
from tests.support.data.authorities import NOW, World, san, strange

WORLD = World()
ROUTER = WORLD.certificate("A")
ROUTER_IDS = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="@/#*"), min_size=1, max_size=255
)


@given(ROUTER_IDS)
def test_an_id_comes_back_from_the_certificate(router: str) -> None:
    assert WORLD.certificate(router).router == router


def test_a_certificate_names_its_router_and_its_end() -> None:
    read = read_router(ROUTER.der)
    assert (read.mesh, read.router) == ("m1", "A")
    assert (read.not_before, read.not_after) == (NOW - 300, NOW + 30 * 86_400)
    assert read.key_id == fingerprint(read.der)


@pytest.mark.parametrize("router", ["", "a b", "a/b", "a@b", "a#", "*", "\u00e9", "x" * 256])
def test_what_is_no_router_id_gets_no_certificate(router: str) -> None:
    with pytest.raises(CertificateError, match="no router can have this id"):
        WORLD.certificate(router)


@pytest.mark.parametrize("mesh", ["", "M1", "-m", "m.", "a b", "m/1", "m" * 64, "\u00e9"])
def test_what_is_no_name_of_a_mesh_gets_no_authority(mesh: str) -> None:
    with pytest.raises(CertificateError, match="the name of a mesh"):
        World(mesh)


@pytest.mark.parametrize("mesh", ["m", "m1", "a.b-c", "0", "m" * 63])
def test_an_authority_tells_its_mesh(mesh: str) -> None:
    world = World(mesh)
    assert read_authority(world.authority.certificate.der).mesh == mesh
    assert world.certificate("x").mesh == mesh


@pytest.mark.parametrize("router", ["A.1", "A.2", "A.10", "A.999999", "A"])
def test_a_certificate_covers_the_router_and_its_workers(router: str) -> None:
    assert covers("A", router)


@pytest.mark.parametrize(
    "router", ["A.0", "A.01", "A.", "A.x", "A.1.1", "A1", "AA.1", "B.1", "A.1 ", "A.\u0661", "a.1"]
)
def test_a_certificate_covers_nobody_else(router: str) -> None:
    assert not covers("A", router)


def named(*uris: str) -> Any:
    return lambda extensions: extensions.update({x509.SubjectAlternativeName: (san(*uris), False)})


def without(kind: type[x509.ExtensionType]) -> Any:
    return lambda extensions: extensions.pop(kind)


def signing_certificates(extensions: Any) -> None:
    usage, _ = extensions[x509.KeyUsage]
    words = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    fields = {word: getattr(usage, word) for word in words}
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, encipher_only=False, decipher_only=False, **fields
    )
    extensions[x509.KeyUsage] = usage, True


STRANGE = {
    "no URI": named(),
    "two URIs": named(router_uri("m1", "A"), router_uri("m1", "B")),
    "another scheme": named("https://m1/router/A"),
    "the authority's URI": named("amqpmesh://m1"),
    "no id": named("amqpmesh://m1/router/"),
    "an id that no router has": named("amqpmesh://m1/router/a%2Fb"),
    "another spelling": named("amqpmesh://m1/router/%41"),
    "lower-case hexadecimal": named("amqpmesh://m1/router/%7b"),
    "a path below": named("amqpmesh://m1/router/A/more"),
    "a query": named("amqpmesh://m1/router/A?x"),
    "no mesh": named("amqpmesh:///router/A"),
    "a port": named("amqpmesh://m1:5671/router/A"),
    "a host name": lambda each: each.update(
        {x509.SubjectAlternativeName: (x509.SubjectAlternativeName([x509.DNSName("amqpmesh://m1/router/A")]), False)}
    ),
    "no alternative name": without(x509.SubjectAlternativeName),
    "no basic constraints": without(x509.BasicConstraints),
    "no key usage": without(x509.KeyUsage),
    "no purposes": without(x509.ExtendedKeyUsage),
    "an authority's": lambda each: each.update({x509.BasicConstraints: (x509.BasicConstraints(True, None), True)}),
    "may sign certificates": signing_certificates,
    "for servers only": lambda each: each.update(
        {x509.ExtendedKeyUsage: (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)}
    ),
    "something critical": lambda each: each.update(
        {x509.UnrecognizedExtension: (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b"\x05\x00"), True)}
    ),
    "a name that cannot be read": lambda each: each.update(
        {
            x509.SubjectAlternativeName: (
                x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x05\x86\xff"),
                False,
            )
        }
    ),
}


def test_the_certificates_below_are_good_but_for_one_thing() -> None:
    assert read_router(strange(WORLD.authority)).router == "A"


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_certificate_is_no_routers(what: str) -> None:
    with pytest.raises(CertificateError):
        read_router(strange(WORLD.authority, STRANGE[what]))


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), ed448.Ed448PrivateKey.generate()])
def test_a_key_of_another_kind_is_no_routers(key: Any) -> None:
    with pytest.raises(CertificateError, match="not Ed25519"):
        read_router(strange(WORLD.authority, key=key))


def test_an_authority_is_no_router_and_a_router_no_authority() -> None:
    with pytest.raises(CertificateError):
        read_router(WORLD.authority.certificate.der)
    with pytest.raises(CertificateError):
        read_authority(ROUTER.der)


def test_an_authority_has_signed_itself() -> None:
    der = bytearray(WORLD.authority.certificate.der)
    der[-1] ^= 1
    with pytest.raises(CertificateError, match="has not signed itself"):
        read_authority(bytes(der))


@given(st.binary(max_size=600))
def test_garbage_is_no_certificate(octets: bytes) -> None:
    for read in (read_router, read_authority, certificates_in):
        with pytest.raises(CertificateError):
            read(octets)


@given(st.data())
def test_a_damaged_certificate_is_read_or_refused_and_nothing_else_happens(data: st.DataObject) -> None:
    der = bytearray(data.draw(st.sampled_from([ROUTER.der, WORLD.authority.certificate.der])))
    for at, octet in data.draw(st.dictionaries(st.integers(0, len(der) - 1), st.integers(0, 255), max_size=4)).items():
        der[at] = octet
    damaged = bytes(der)[: data.draw(st.integers(len(der) - 3, len(der)))]
    for read in (read_router, read_authority):
        try:
            assert read(damaged).der == damaged
        except CertificateError:
            continue


def test_a_certificate_that_is_too_long_is_not_looked_at() -> None:
    long = named("amqpmesh://m1/router/" + "x" * MAX_CERTIFICATE)
    with pytest.raises(CertificateError, match="longer than"):
        read_router(strange(WORLD.authority, long))


def test_all_certificates_of_a_file_are_found_and_the_rest_is_passed_over() -> None:
    world = World()
    first, second = world.certificate("A"), world.certificate("B")
    world.revoke(first)
    pem = b"a comment\n" + world.pem + b"".join(each.parsed.public_bytes(Encoding.PEM) for each in (first, second))
    assert certificates_in(pem) == [world.authority.certificate.der, first.der, second.der]
