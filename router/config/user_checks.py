"""Users that a function of the program checks, in place of a file of users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login that a program has to judge."""

    user: str
    """The name that the client gives, prepared with SASLprep (RFC 4013)."""
    password: str = field(repr=False)
    """Prepared likewise."""
    host: str
    """The address of the client's host, without a port."""
    listener: str
    """The name of the listener."""


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """A user that has logged in, as policies see it.

    Raises: TypeError: a value of another type. ValueError: an empty name.
    """

    user: str
    """The name; it may be another one than the client has given."""
    groups: tuple[str, ...] = ()
    """Names for the key `groups` of groups in a policy."""
    tenant: str | None = None
    """The name of the tenant; None: the ways into tenants choose it."""

    def __post_init__(self) -> None:
        """Check the values: the identity is made by another program than ours."""
        texts = (self.user, *self.groups, *(() if self.tenant is None else (self.tenant,)))
        if isinstance(self.groups, str) or not all(isinstance(each, str) for each in texts):
            raise TypeError("the user and the tenant are texts, and the groups a tuple of texts")
        if not self.user:
            raise ValueError("the user has no name")
        object.__setattr__(self, "groups", tuple(self.groups))


UserCheck: TypeAlias = Callable[[Login], UserIdentity | Awaitable[UserIdentity | None] | None]
"""A function that returns who has logged in; None: nobody. It may be async; else it is called in a thread."""
