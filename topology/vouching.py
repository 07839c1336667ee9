"""Vouches: what a router says about the client that a request to another router comes from.

The client's router signs the vouch with its own certificate, for one request and one run of the other router. So no
router on the way can make one, change one, or use one for another request; and none is good a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.topology.records import EPOCH, ROUTER_ID, SEQUENCE, TENANT
from amqpmesh.topology.schema import (
    Array,
    Binary,
    Body,
    Boolean,
    Nullable,
    Text,
    UnreadableError,
    body,
    decode,
    encode,
    item,
)
from amqpmesh.topology.signing import UntrustedError

if TYPE_CHECKING:
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.signing import Signer, Verifier

KIND: Final = 64
"""The kind under which vouches are signed: no record has it, so no signature is good for both."""

MAX_VOUCH: Final = 16 * 1024
"""Octets of the largest vouch: its peer is in some hundred groups."""

MAX_GROUPS: Final = 256
"""Groups of a vouched peer at most."""

MAX_SCOPES: Final = 8
"""Scopes of a vouched peer at most. There are two that give rights at management nodes."""

WINDOW: Final = 1024
"""Requests of one router that may come in another order than they were sent."""

KEPT: Final = 4096
"""Routers at least whose used numbers are kept after they have left: one may come back in the same run, and a router
that has held it off could repeat its requests.
"""


@body("Vouch", "says which client of a router a request comes from; signed by that router")
class Vouch(Body):
    """A statement of a router about a client, for one request."""

    router: str = item("o", ROUTER_ID, "the router that signs, which the client is connected to")
    epoch: int = item("e", EPOCH, "its epoch")
    sequence: int = item("s", SEQUENCE, "the number of the vouch; no number is good twice")
    to: str = item("r", ROUTER_ID, "the router that the request goes to")
    to_epoch: int = item("p", EPOCH, "the epoch of that router")
    digest: bytes = item("d", Binary(32), "SHA-256 of the bare message of the request")
    tenant: str = item("t", TENANT, "the tenant of the client", default="")
    user: str | None = item("u", Nullable(Text(1024)), "its user; nil: none", default=None)
    groups: tuple[str, ...] | None = item(
        "g", Nullable(Array(Text(1024), MAX_GROUPS)), "its groups; nil: the policy does not rule it", default=None
    )
    manage: bool = item("m", Boolean(), "whether its listener permits changes", default=False)
    host: str = item("h", Text(255), "the address of its host", default="")
    container_id: str = item("c", Text(1024), "its container-id", default="")
    scopes: tuple[str, ...] = item(
        "b", Array(Text(64), MAX_SCOPES), "scopes of its token that give rights at management nodes", default=()
    )


@body("SignedVouch", "a vouch on its way")
class SignedVouch(Body):
    """A vouch with its signature."""

    key_id: bytes = item("k", Binary(64), "the certificate that signs")
    vouch: bytes = item("b", Binary(MAX_VOUCH), "the vouch, as it was signed")
    signature: bytes = item("s", Binary(512), "the signature")


class Client(NamedTuple):
    """The client that a router vouches for. Args: as the items of `Vouch`."""

    tenant: str
    user: str | None
    groups: tuple[str, ...] | None
    manage: bool
    host: str
    container_id: str
    scopes: tuple[str, ...] = ()


class _Numbers:
    """The numbers of vouches of one router that were used."""

    __slots__ = ("_seen", "epoch", "highest")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.highest = -1
        self._seen = 0  # a bit for each of the last numbers, the highest first

    def use(self, number: int) -> bool:
        """Use a number. Returns: False: it was used before, or is so old that this is not known."""
        if number > self.highest:
            self._seen = (self._seen << min(number - self.highest, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self.highest = number
            return True
        bit = 1 << (self.highest - number) if self.highest - number < WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


class Vouching:
    """The vouches of a router in a mesh with certificates: those that it gives, and its judgement of others'."""

    def __init__(self, topology: Topology, signer: Signer, verifier: Verifier) -> None:
        self._topology = topology
        self.signer = signer
        self._verifier = verifier
        self._number = 0
        self._numbers: dict[str, _Numbers] = {}

    def vouch(self, client: Client, router: str, digest: bytes) -> bytes | None:
        """Return a signed vouch for a client.

        Args: router: where the request goes. digest: SHA-256 of its bare message.
        Returns: None: the router is not known, or the client has names that no vouch has room for.
        """
        origin = self._topology.database.origins.get(router)
        if origin is None:
            return None
        self._number += 1
        made = Vouch(
            self._topology.router, self._topology.epoch, self._number, router, origin.pair.epoch, digest, *client
        )
        try:
            signed = encode(made)
            decode(Vouch, signed, MAX_VOUCH)
        except (UnicodeEncodeError, UnreadableError):
            return None
        key_id, signature = self.signer.sign(KIND, signed)
        return encode(SignedVouch(key_id, signed, signature))

    def believe(self, data: bytes, digest: bytes) -> Vouch:
        """Return a vouch that another router has signed for a request to this router. It is good once.

        Args: digest: SHA-256 of the bare message of the request.
        Raises: UntrustedError: it is not to be believed.
        """
        try:
            envelope = decode(SignedVouch, data, 2 * MAX_VOUCH)
            vouch = decode(Vouch, envelope.vouch, MAX_VOUCH)
        except UnreadableError as error:
            raise UntrustedError(str(error)) from None
        self._verifier.verify(vouch.router, KIND, envelope.key_id, envelope.vouch, envelope.signature)
        if vouch.to != self._topology.router or vouch.to_epoch != self._topology.epoch:
            raise UntrustedError("for another router, or for another run of it")
        if vouch.digest != digest:
            raise UntrustedError("for another request")
        origin = self._topology.database.origins.get(vouch.router)
        if origin is not None and vouch.epoch < origin.pair.epoch:
            raise UntrustedError("of a run of its router that has ended")
        if not self._use(vouch):
            raise UntrustedError("used before")
        return vouch

    def _use(self, vouch: Vouch) -> bool:
        known = self._numbers.get(vouch.router)
        if known is None or vouch.epoch > known.epoch:
            origins = self._topology.database.origins
            if len(self._numbers) > max(KEPT, 2 * len(origins)):
                self._numbers = {router: each for router, each in self._numbers.items() if router in origins}
            if vouch.router not in origins:
                return False  # a router that has left: nothing would bound these entries
            known = self._numbers[vouch.router] = _Numbers(vouch.epoch)
        return vouch.epoch == known.epoch and known.use(vouch.sequence)
