"""Addresses taken apart: `name`, or `name@container`."""

import hashlib
from typing import Final

DYNAMIC: Final = "$dynamic"
"""The names of dynamic nodes begin with it."""


def split(address: str) -> tuple[str, str | None]:
    """The name and the container of an address, which splits at its last `@`; without one the container is None."""
    name, at, container = address.rpartition("@")
    return (name, container) if at else (address, None)


def refusal(address: str) -> str | None:
    """Why a text is no address; None: it is one. `@container` is one: the whole of that."""
    if not address:
        return "must not be empty"
    return "must name a container behind its @" if address.endswith("@") else None


def as_known_at(container: str, name: str) -> str:
    """How a router knows an address of its own: by its name; by all of it, where that has an `@` already, which would
    part it anew.
    """
    return f"{name}@{container}" if "@" in name else name


def without_secret(address: str) -> str:
    """Return an address with a digest in place of the secret part of a dynamic node's name.

    Any peer that knows the address of a dynamic node can send there. The digest tells nodes apart.
    """
    if not address.startswith(f"{DYNAMIC}/"):
        return address
    name, container = split(address)
    made_for, _, secret = name.rpartition("/")
    shown = f"{made_for}/*{hashlib.blake2b(secret.encode(), digest_size=6).hexdigest()}"
    return shown if container is None else f"{shown}@{container}"
