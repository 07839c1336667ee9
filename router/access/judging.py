"""Judgements of links that exist, by other rights than those that their peers had before.

Of a hundred thousand links a changed policy concerns a few. So each connection knows the rights by which all its links
were judged: what these permitted, and the new ones permit as well, is not judged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqpmesh.policies.access import PREFIXES
from amqpmesh.policies.groups import May
from amqpmesh.policies.lost_rights import LostRights
from amqpmesh.router.access.crossings import crossing
from amqpmesh.router.access.needs import right_to
from amqpmesh.router.access.rights import lack, why
from amqpmesh.router.address_syntax import split
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.context import Context


class Comparison:
    """The differences of a policy from those before it, as far as the peers of a router meet them."""

    def __init__(self, now: Policy) -> None:
        self._now = now
        self._lost: dict[tuple[Rights | None, Rights], LostRights] = {}
        self._are_exports_equal: dict[Policy, bool] = {now: True}

    def lost(self, before: Rights | None, now: Rights) -> LostRights:
        """Return what a peer may not do any more. Args: before, now: its rights; None: they are not known."""
        found = self._lost.get((before, now))
        if found is None:
            equal = before is not None and self._are_equal(before.policy)
            found = self._lost[before, now] = LostRights(before, now, are_exports_equal=equal)
        return found

    def are_rates_equal(self, before: Rights | None, now: Rights) -> bool:
        """Tell whether the links of a peer have the same rates as before, as far as its rights say so."""
        if before is None or before.limits != now.limits or before.tenant_limits != now.tenant_limits:
            return False
        # Imported addresses have the rates of their owners.
        return before.policy is now.policy or not (before.policy.exports or now.policy.exports)

    def _are_equal(self, before: Policy) -> bool:
        found = self._are_exports_equal.get(before)
        if found is None:
            found = self._are_exports_equal[before] = before.exports.are_as(self._now.exports)
        return found


class Verdict(NamedTuple):
    """A link that its peer may not have any more."""

    link: IncomingLink | OutgoingLink
    lacking: str | None
    """The reason, for the log; None: the right to its address alone."""

    @property
    def reason(self) -> str:
        """The reason, for the log."""
        if self.lacking is not None:
            return self.lacking
        assert self.link.node is not None
        return why(right_to(self.link.node.name, sends=isinstance(self.link, IncomingLink)))


def judge(
    context: Context, link: IncomingLink | OutgoingLink, rights: Rights | None, lost: LostRights | None
) -> Verdict | None:
    """Judge a link. Returns: None: its peer may have it.

    Args: rights: of the peer; None: groups do not judge it, but exports do. lost: what it may not do any more.
    """
    if lost is not None:
        permitted = _is_permitted(link, lost)
        if permitted is not None:
            return None if permitted else Verdict(link, None)
    lacking = None if rights is None else _lack(context, link, rights)
    reason = _foreign(context, link) if lacking is None else why(lacking)
    return None if reason is None else Verdict(link, reason)


def _is_permitted(link: IncomingLink | OutgoingLink, lost: LostRights) -> bool | None:
    """Tell whether a peer has the right to a link's address, and needs no other for it; None: that is not known."""
    node, sends = link.node, isinstance(link, IncomingLink)
    if node is None or link.foreign is not None or (lost.others and isinstance(link, OutgoingLink) and link.copy):
        return None
    name = node.name
    return None if name.startswith(PREFIXES) or "@" in name else lost.permits(name, sends=sends)


def _foreign(context: Context, link: IncomingLink | OutgoingLink) -> str | None:
    """Return the reason why a link's node is not, or not any more, the one that its peer's name stands for.

    The link of a peer to its own tenant's node ends, too, if the tenant imports the name now.
    """
    policy, node, foreign, tenant = context.policy, link.node, link.foreign, link.connection.peer.tenant
    if policy is None or node is None or not (foreign is not None or policy.exports):
        return None
    if isinstance(node, DynamicNode):
        may = foreign is None or policy.exports.replies(tenant, node.tenant) is not None
        return None if may else "no export permits replies"
    name, container = split(name_of(link) or "")
    try:
        found = crossing(context, tenant, name, container, sends=isinstance(link, IncomingLink))
    except RefusedError as refusal:
        return refusal.reason
    before = None if foreign is None else foreign.crossing
    if before is None or found is None:
        return None if before is found else f"{name} does not stand for the same address"
    # An alias of the exporter's router may lead within one pattern, and out of the other.
    is_same = found[:2] == before[:2] and found.exported.offers(split(node.name)[0])
    return None if is_same else f"{name} does not stand for the same address"


def _lack(context: Context, link: IncomingLink | OutgoingLink, rights: Rights) -> str | None:
    """Return the right that a link needs and its peer does not have, for the log; None: there is none."""
    if isinstance(link, OutgoingLink) and link.copy and rights.may(May.COPY) is None:
        return May.COPY
    if isinstance(link.node, DynamicNode):
        is_made = link.node.maker is link.connection
        return May.DYNAMIC if is_made and rights.may(May.DYNAMIC) is None else None
    if link.node is not None:
        name, container = split(name_of(link) or "")
    else:  # each message of the link has an address of its own, but for a link that gives it by its target
        assert isinstance(link, IncomingLink), "an outgoing link has a node"
        name, container = ("", link.container) if link.to is None else split(link.to)
    return lack(context, rights, name, container, sends=isinstance(link, IncomingLink))
