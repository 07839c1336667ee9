"""An explanation of an address: what a link to it would meet, without a link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.redirect import RedirectPolicy
from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.access.crossings import crossing
from amqpmesh.router.access.rights import is_of_mesh, needs_here
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.policies.rights import Rights
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.attach.resolve import Lookup, ResolvedAddress
    from amqpmesh.router.context import Context

ATTRIBUTES: Final = (
    *("address", "pattern", "distribution", "redirect", "follows", "resumption"),
    *("refused", "rights", "exporter", "exported"),
)
"""The attributes of an explanation."""


def explain(
    context: Context,
    lookup: Lookup,
    tenant: str,
    address: str,
    *,
    sends: bool,
    rights: Rights | None = None,
    for_operator: bool = True,
) -> dict[str, Value]:
    """Return what is known of an address, as a map of attributes; null is for what does not apply.

    `address`: after the aliases of this router. `pattern`, `distribution`, `redirect`, `follows`: of its
    configuration; `follows`: this router follows the redirect. `resumption`: of the configuration of the address'
    owner: whether links may, or have to, be resumable. `refused`: the reason why a link is refused, whatever
    the rights are. `rights`: a list of the rights that the use needs, each with the line of the policy that gives it,
    or null; null if `rights` was not given. `exporter`, `exported`: the tenant, and the name there, of an imported
    address.

    Args: tenant: the key of the tenant that uses the address. rights: of the peer that would use it.
        for_operator: False: what the policy says, and to whom an imported address belongs, is left out.
    """
    found: dict[str, Value] = dict.fromkeys(ATTRIBUTES)
    try:
        place = lookup.place(address)
        found |= {"address": place.address, **_configured(place)}
        if rights is not None:
            needs = needs_here(context, rights, place.name, place.container, sends=sends)
            found["rights"] = [[right, line and (str(line) if for_operator else "permitted")] for right, line in needs]
        crossed = crossing(context, tenant, place.name, place.container, sends=sends) if place.name else None
        if crossed is not None and for_operator:
            found |= {"exporter": crossed.tenant or OPERATOR, "exported": crossed.name}
        if place.name and not place.is_reserved:
            found["resumption"] = str(lookup.owner(tenant, place, sends=sends).place.config.resumption)
        found["refused"] = _refusal(context, tenant, place, sends=sends)
    except RefusedError as refused:
        found["refused"] = refused.reason if for_operator else refused.error.description
    return found


def _configured(place: ResolvedAddress) -> dict[str, Value]:
    config = place.config
    redirect = None
    if config.redirect is not None:
        to = config.redirect
        host = to.network_host or to.hostname
        parts = ("" if host is None else f"host {host}", "" if to.port is None else f"port {to.port}")
        redirect = ", ".join(filter(None, (*parts, to.address and f"address {to.address}")))
    return {
        "pattern": None if place.is_reserved else config.pattern,
        "distribution": str(config.distribution),
        "redirect": redirect,
        "follows": config.redirect is not None and config.redirect.is_followed,
    }


def _refusal(context: Context, tenant: str, place: ResolvedAddress, *, sends: bool) -> str | None:
    """Return the reason why a link to an address is refused, whatever the rights are; None: it is not."""
    if not place.name and not sends:
        return "the whole of a container can be sent to, and not received from"
    if not place.is_available:
        return "the address is unavailable"
    domains = RedirectPolicy(allowed=context.config.elsewhere.domains)
    if not is_of_mesh(context, place.container) and not domains.allows(place.container or ""):
        return f"no container {place.container} is known here"
    if place.is_published:
        return "this address is a router's own" if sends else None
    if place.is_reserved and place.container in (None, *context.config.names):
        if not sends:
            return "this address is a router's own"
        if context.nodes.find(context.nodes.tenant_of_reserved(tenant, place.name), place.name) is None:
            return "no such node"
    return None
