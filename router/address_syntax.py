"""The syntax of addresses: `name`, or `name@container`."""

import hashlib
from typing import Final

DYNAMIC: Final = "$dynamic"
"""The first part of the names of dynamic nodes (§3.5.3)."""


def split(address: str) -> tuple[str, str | None]:
    """Return the name and the container of an address, which splits at its last `@`; container None: there is
    no `@`.
    """
    name, at, container = address.rpartition("@")
    return (name, container) if at else (address, None)


def of_tools(address: str) -> str:
    """Return an address as it is here: tools of Dispatch and Skupper call the management node of a router
    `_topo/AREA/ROUTER/$management`.
    """
    parts = address.split("/")
    is_management = len(parts) == 4 and parts[0] == "_topo" and parts[3] == "$management" and parts[2]
    return f"$management@{parts[2]}" if is_management else address


def refusal(address: str) -> str | None:
    """Return the reason why a text is no valid address; None: it is valid. `@container` is valid: all of it is the
    name.
    """
    if not address:
        return "must not be empty"
    return "must name a container behind its @" if address.endswith("@") else None


def local_key(container: str, name: str) -> str:
    """Return the key under which a container knows one of its own nodes: its name, or the full address if the name has
    an `@`.

    A name with an `@` would be split at that `@`.
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
