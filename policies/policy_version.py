"""Versions of a policy: a number in its file, and the digest of the file."""

import re
import tomllib
from hashlib import sha256
from typing import Final, NamedTuple, Self

LARGEST: Final = 4 * 2**20
"""Octets of the largest policy file: a policy of some ten thousand groups."""

MAX_NUMBER: Final = 2**53 - 1
"""The highest number of a version: JSON can express it exactly."""

_KEY: Final = re.compile(rb"""^[ \t]*(?:version|"version"|'version')[ \t]*=[^\r\n]*""", re.MULTILINE)
_TABLE: Final = re.compile(rb"^[ \t]*\[", re.MULTILINE)


class PolicyVersion(NamedTuple):
    """A version of the policy. Of two, the greater one is newer: the digest decides between two of one number."""

    number: int
    """The key `version` of the file; 0: it has none, and each other policy is newer."""
    digest: bytes
    """SHA-256 of the whole file."""

    @classmethod
    def of(cls, data: bytes, number: int) -> Self:
        """Return the version of a file. Args: data: its octets. number: the one in it."""
        return cls(number, sha256(data).digest())

    @property
    def short_digest(self) -> str:
        """The first digits of the digest, for people."""
        return self.digest.hex()[:12]


def with_number(data: bytes, number: int) -> bytes:
    """Return the octets of a policy file with another number.

    Args: data: of a valid file: TOML. Raises: ValueError: its number is written in a way that is not found.
    """
    line = b"version = %d" % number
    begin = _TABLE.search(data)
    head, rest = (data, b"") if begin is None else (data[: begin.start()], data[begin.start() :])
    changed, count = _KEY.subn(line, head, count=1)
    made = (changed if count else line + b"\n" + head) + rest
    try:
        is_right = tomllib.loads(made.decode()) == {**tomllib.loads(data.decode()), "version": number}
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError("has its version at an unusual place: begin it with a line such as version = 1")
    return made
