"""PUSH: a policy that comes to `$management` in pieces, since requests are short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from amqpmesh.policies.policy_version import LARGEST
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, CONFLICT, RequestError
from amqpmesh.router.message.content import Message

PUSH: Final = "PUSH"
"""The operation of the type `policy`."""

TYPE: Final = f"{PREFIX}policy"

PIECE: Final = 6 * 1024
"""Octets of a piece: with its properties it fits into the largest request."""

UPLOAD_TIME: Final = 30.0
"""Seconds without a piece after which the pieces so far are dropped."""


@dataclass(slots=True)
class _Upload:
    digest: str
    total: int
    at: float
    data: bytearray = field(default_factory=bytearray)


class PolicyUpload:
    """The pieces of a policy that have come; of one policy at a time."""

    def __init__(self) -> None:
        self._upload: _Upload | None = None

    def take(self, request: Message, now: float) -> bytes | None:
        """Take a piece. Returns: the whole policy once it is there; None: more is to come.

        Raises: RequestError: it is no piece of a policy, or not the next one.
        """
        properties, body = request.application_properties, request.body
        digest, offset, total = (properties.get(name) for name in ("digest", "offset", "total"))
        if not (
            isinstance(body, bytes)
            and isinstance(digest, str)
            and isinstance(offset, int)
            and isinstance(total, int)
            and 0 < total <= LARGEST
        ):
            raise RequestError(BAD_REQUEST, "PUSH needs `digest`, `offset`, `total` and a body of octets")
        upload = self._upload
        if offset == 0:  # of two pushes at once, the later one goes on
            upload = self._upload = _Upload(digest, total, now)
        if upload is None or (upload.digest, upload.total, len(upload.data)) != (digest, total, offset):
            raise RequestError(CONFLICT, "not the next piece: another push has begun, or this one took too long")
        upload.data += body
        upload.at = now
        if len(upload.data) < total and body:
            return None
        self._upload = None
        if len(upload.data) != total or sha256(upload.data).hexdigest() != digest:
            raise RequestError(BAD_REQUEST, "the pieces are not the policy of that digest")
        return bytes(upload.data)

    def forget(self, now: float) -> bool:
        """Drop pieces that nothing has followed for a while. Returns: whether there are still some."""
        if self._upload is not None and now >= self._upload.at + UPLOAD_TIME:
            self._upload = None
        return self._upload is not None


def pieces(data: bytes) -> Iterator[Message]:
    """Return the requests that push a policy."""
    digest = sha256(data).hexdigest()
    for offset in range(0, len(data), PIECE):
        yield Message(
            data[offset : offset + PIECE],
            application_properties={
                "operation": PUSH,
                "type": TYPE,
                "digest": digest,
                "offset": offset,
                "total": len(data),
            },
        )
