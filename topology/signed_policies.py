"""Signatures of policy files by the authority of a mesh.

The signature is the last line of the file, a comment: so the file stays one file, and is read as before. It covers all
octets before that line, with a prefix that no record and no certificate has.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Final

from cryptography.exceptions import InvalidSignature

from amqpmesh.topology.authority import Authority
from amqpmesh.topology.certificates import AuthorityCertificate, CertificateError, certificates_in, read_authority
from amqpmesh.topology.trust import signed_octets

KIND: Final = 65
"""The kind under which policies are signed: no record and no vouch has it."""

MARK: Final = b"# signature: "
"""The beginning of the line with the signature, in base64."""

_SIGNATURE: Final = 64  # octets (RFC 8032, 5.1.6)


def signed(text: bytes, authority: Authority) -> bytes:
    """Return a policy with the signature of an authority, in place of a signature that it has."""
    body, _ = _parts(text)
    if body and not body.endswith(b"\n"):
        body += b"\n"
    signature = authority.key.sign(signed_octets(authority.certificate.mesh, KIND, body))
    return body + _line(signature)


def fault(text: bytes, authorities: Iterable[AuthorityCertificate]) -> str | None:
    """Return the reason not to trust a policy; None: one of these authorities has signed it."""
    body, signature = _parts(text)
    if signature is None:
        return "is not signed: its last line is no signature"
    # Other spellings would be other files of the same version, and each of them would replace the one before it.
    if text[len(body) :] != _line(signature):
        return "has a signature that was written in another way since"
    for authority in authorities:
        try:
            authority.key.verify(signature, signed_octets(authority.mesh, KIND, body))
        except InvalidSignature:
            continue
        return None
    return "is not signed by an authority of the mesh, or was changed since"


def authorities_in(pem: bytes) -> list[AuthorityCertificate]:
    """Return the authorities of a trust file. Raises: CertificateError: there is none, or one is malformed."""
    found = [read_authority(der) for der in certificates_in(pem)]
    if not found:
        raise CertificateError("there is no authority")
    return found


def _line(signature: bytes) -> bytes:
    """Return the line with a signature. There is one for each."""
    return MARK + b64encode(signature) + b"\n"


def _parts(text: bytes) -> tuple[bytes, bytes | None]:
    """Return what is signed of a policy, and its signature; None: it has none."""
    at = text.rfind(b"\n" + MARK) + 1 if not text.startswith(MARK) else 0
    line = text[at:]
    if not line.startswith(MARK) or line.count(b"\n") > 1 or (b"\n" in line and not line.endswith(b"\n")):
        return text, None
    try:
        signature = b64decode(line[len(MARK) :].strip(), validate=True)
    except ValueError:
        return text, None
    return (text[:at], signature) if len(signature) == _SIGNATURE else (text, None)
