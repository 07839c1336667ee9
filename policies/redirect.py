"""Where instead: what the configuration answers an attach with, or a whole connection (§2.8.16, §2.8.18).

The rule of an address is the redirect that its most specific pattern says. It holds for whoever names the address, as
the target of what is sent, as the source of what is received, or in the `to` of one message.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """A place elsewhere. What is None is not said: for who follows it stays as it is."""

    hostname: str | None = None
    """What `open`, SASL and TLS are to name there."""
    network_host: str | None = None
    """Where to connect: a name of DNS, or an IP address."""
    port: int | None = None
    address: str | None = None
    """What to attach to there."""

    def for_address(self, name: str) -> "Redirect":
        """The same, for who asked for `name`: that is its address there, too, unless another is said."""
        return self if self.address is not None else replace(self, address=name)


def comes_back(first: Redirect, rule: Callable[[str], Redirect | None], is_here: Callable[[Redirect], bool]) -> bool:
    """Whether who follows a redirect, and those that it meets here, never arrives.

    Args: rule: the redirect of an address here. is_here: whether a redirect leads to this router. What others do with
        who comes to them is theirs.
    """
    met: set[str] = set()
    redirect: Redirect | None = first
    while redirect is not None and is_here(redirect):
        # Without an address of its own it sends whoever comes to the address that it was asked for.
        if redirect.address is None or redirect.address in met:
            return True
        met.add(redirect.address)
        redirect = rule(redirect.address)
    return False
