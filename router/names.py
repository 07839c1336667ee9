"""Addresses taken apart: `name`, or `name@container`."""


def split(address: str) -> tuple[str, str | None]:
    """The name and the container of an address, which splits at its last `@`; without one the container is None."""
    name, at, container = address.rpartition("@")
    return (name, container) if at else (address, None)
