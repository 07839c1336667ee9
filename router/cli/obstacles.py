"""The steps that a message to an address takes, and the first thing that stops it.

Each step is judged by what the routers say of themselves: their answers to WHY, and their entities. Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amqpmesh.policies.tenants import OPERATOR

Entity = Mapping[str, Any]
Entities = Mapping[str, Sequence[Entity]]

NO_RECEIVER: Final = "attach a receiver, or look for one that has lost its connection"


@dataclass(frozen=True, slots=True)
class Step:
    """A step: `says` is a sentence on it. `stops` is True if it stops the message; then `do` says what helps."""

    name: str
    says: str
    stops: bool = False
    do: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The question, and the answers of the router that the peer is connected to.

    `facts` is its answer to WHY, `here` its entities, `there` the entities of other routers that have receivers.
    """

    address: str
    sends: bool
    user: str | None
    facts: Entity
    here: Entities
    there: Mapping[str, Entities] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """The key of the tenant."""
        tenant = str(self.facts["tenant"])
        return "" if tenant == OPERATOR else tenant

    @property
    def owner(self) -> str:
        """The key of the tenant that the address belongs to."""
        exporter = self.facts["exporter"]
        return self.tenant if exporter is None else "" if exporter == OPERATOR else str(exporter)

    @property
    def name(self) -> str:
        """The address, after aliases, as its owner names it."""
        return str(self.facts["exported"] or self.facts["address"] or self.address)

    def of_address(self, entities: Entities, kind: str) -> list[Entity]:
        """Return the entities of a type that are of the address."""
        key = "name" if kind in ("address", "advert") else "address"
        return [each for each in entities[kind] if (each["tenant"], each[key]) == (self.owner, self.name)]


def routers_to_ask(question: Question) -> list[str]:
    """Return the other routers that the address leads to, as far as there are paths."""
    reachable = {each["router"] for each in question.here["route"] if each["distance"] is not None}
    return sorted(_routers(question) & reachable)


def _routers(question: Question) -> set[str]:
    """Return the other routers with receivers, or the one that the address names."""
    _, at, container = question.name.rpartition("@")
    if at:
        return {container} & {each["router"] for each in question.here["route"]}
    return {each["router"] for each in question.of_address(question.here, "advert")}


def steps(question: Question) -> Iterator[Step]:
    """Yield the steps, in the order in which they can stop a message. The last one may be an obstacle.

    After the first obstacle nothing is yielded: what is behind it was not reached.
    """
    for each in _all(question):
        yield each
        if each.stops:
            return


def _all(question: Question) -> Iterator[Step]:
    yield from _rights(question)
    yield from _address(question)
    yield from _limits(question)
    if question.facts["follows"] and question.facts["redirect"]:
        yield from _elsewhere(question)
        return
    if not question.sends:
        yield from _senders(question)
        return
    yield from _receivers(question)
    yield from _paths(question)
    yield from _credit(question)
    yield from _disagreements(question)


def _rights(question: Question) -> Iterator[Step]:
    facts = question.facts
    who = "the peer" if question.user is None else question.user
    if facts["admitted"] is False:
        yield Step("rights", f"no tenant has {who}", True, "add a way into a tenant: `match` of [[tenant]]")
        return
    if facts["rights"] is None:
        yield Step("rights", "not judged: there is no policy, or no peer was named")
        return
    for right, line in facts["rights"]:
        if line is None:
            says = f"{who} of tenant {facts['tenant']} may not: no line of the policy gives `{right}`"
            yield Step("rights", says, True, _give(right, question))
        else:
            yield Step("rights", f"{right}: {line}")


def _give(right: str, question: Question) -> str:
    if right.startswith(("send to ", "receive from ")):
        key = "send" if question.sends else "receive"
        return f'add the address to a group: {key} = ["{question.facts["address"]}"]'
    if right == "export":
        return "the exporter has to offer this use of the address: `may` of its `exports`"
    return f'add the right to a group: may = ["{right}"]' if " " not in right else f"add the right to a group: {right}"


def _address(question: Question) -> Iterator[Step]:
    facts = question.facts
    if facts["refused"] is not None:
        do = "use another address, or change its [[address]]"
        yield Step("address", f"a link is refused: {facts['refused']}", True, do)
        return
    if facts["redirect"] and not facts["follows"]:
        do = 'the client has to go there; with follow = "router" this router goes there for it'
        yield Step("address", f"clients are redirected to {facts['redirect']}", True, do)
        return
    alias = "" if facts["address"] == question.address else f"{question.address} stands for {facts['address']}; "
    owner = "" if facts["exporter"] is None else f", which is {facts['exported']} of tenant {facts['exporter']}"
    pattern = "" if facts["pattern"] is None else f" by the pattern {facts['pattern']}"
    yield Step("address", f"{alias}{facts['distribution']}{pattern}{owner}")
    if facts.get("resumption") == "required":  # routers of earlier versions do not tell
        asked = "target" if question.sends else "source"
        says = f"only links that can be resumed: rcv-settle-mode second, and a timeout of the {asked}"
        yield Step("resumption", says)


def _limits(question: Question) -> Iterator[Step]:
    """Yield the limits that are used up, and the rates that make senders wait."""
    kinds = {"connections", "links", "senders" if question.sends else "receivers", "attaches"}
    for each in question.here["limit"]:
        is_ours = each["tenant"] == question.tenant and each["user"] in (None, question.user)
        if is_ours and each["limit"] in kinds and each["used"] >= each["allowed"]:
            of = f"user {each['user']}" if each["user"] else f"tenant {each['tenant'] or OPERATOR}"
            says = f"{of} has {each['used']:,} of {each['allowed']:,} {each['limit']}"
            yield Step("limits", says, True, "close some, or raise the limit in the policy")
            return
    for each in question.here["rate"]:
        names = (None, question.name, question.address)
        is_ours = each["tenant"] == question.tenant and each["user"] in (None, question.user)
        if question.sends and is_ours and each["address"] in names and each["waiting"]:
            says = f"{each['waiting']:,} links wait for the rate {each['limit']}: {each['allowed']:,.0f} in a second"
            yield Step("limits", says)


def _elsewhere(question: Question) -> Iterator[Step]:
    """Yield the state of the link to the container that the address leads to."""
    where = str(question.facts["redirect"])
    links = question.of_address(question.here, "container-link")
    if not links:
        yield Step("container", f"the router connects to {where} when a link for the address comes")
    for each in links:
        attached = each["state"] == "attached"
        says = f"the link to {each['node']} at {where} is {each['state']}"
        reason = "" if each["reason"] is None else f": {each['reason']}"
        yield Step("container", says + reason, not attached, "" if attached else "look at the other container")


def _senders(question: Question) -> Iterator[Step]:
    """Yield what keeps messages from a receiver that would attach."""
    found = question.of_address(question.here, "address")
    lanes = [each for each in question.of_address(question.here, "lane") if each["direction"] == "incoming"]
    if any(each["producers"] for each in found) or lanes:
        waiting = sum(each["waiting"] for each in found)
        yield Step("senders", f"senders are there; {waiting:,} deliveries wait here")
    else:
        says = "no sender is attached to this router, and no other router sends here"
        do = "attach a sender; one at another router is seen here once a receiver has given credit"
        yield Step("senders", says, bool(found) and any(each["consumers"] for each in found), do)


def _consumers(question: Question, entities: Entities) -> int:
    return sum(each["consumers"] for each in question.of_address(entities, "address"))


def _receivers(question: Question) -> Iterator[Step]:
    here, routers = _consumers(question, question.here), _routers(question)
    name, at, container = question.name.rpartition("@")
    if at and not name:
        yield Step("receivers", f"each message names an address at {container}")
        return
    nobody = bool(at) and container in question.there and not _consumers(question, question.there[container])
    if nobody or not (here or routers or at):
        yield Step("receivers", f"no receiver at {container}" if at else "no receiver anywhere", True, NO_RECEIVER)
        return
    places = [*([f"{here:,} at this router"] if here else []), *(f"at {each}" for each in sorted(routers))]
    yield Step("receivers", ", ".join(places) or f"those of {container}")


def _paths(question: Question) -> Iterator[Step]:
    """Yield the path to each router with receivers. One that can be reached is enough."""
    routes = {each["router"]: each for each in question.here["route"]}
    wanted = sorted(_routers(question))
    reached = bool(_consumers(question, question.here))
    for router in wanted:
        route = routes.get(router)
        if route is None or route["distance"] is None:
            yield Step("path", f"no path leads to {router}")
            continue
        reached = True
        hops, by = route["hops"], ", ".join(route["next_hops"])
        yield Step("path", f"to {router}: cost {route['distance']:,}, {hops:,} hop{'s' * (hops != 1)}, by {by}")
    if wanted and not reached:
        down = [each["router"] for each in question.here["neighbour"] if not each["up"]]
        waiting = [each["name"] for each in question.here["connector"] if each["reason"] and each["role"] == "mesh"]
        hints = [*(f"neighbour {each} is down" for each in down), *(f"connector {each} waits" for each in waiting)]
        do = ", ".join(hints) or "look at the connections between the routers: amqpmesh status"
        yield Step("path", f"no receiver can be reached: {', '.join(wanted)}", True, do)


def _credit(question: Question) -> Iterator[Step]:
    """Yield the credit of receivers, where they are attached, and of lanes to them. One with credit is enough."""
    blocked: list[str] = []
    credit = 0
    for router, entities in {"": question.here, **question.there}.items():
        for each in question.of_address(entities, "link"):
            if each["direction"] == "outgoing" and not each["copy"]:
                credit += each["credit"]
                if each["reason"] is not None:
                    blocked.append(f"a receiver{router and f' at {router}'}: {each['reason']}")
    for each in question.of_address(question.here, "lane"):
        if each["direction"] == "outgoing":
            credit += 0 if each["far"] in question.there else each["credit"]
            if each["reason"] is not None:
                blocked.append(f"the lane to {each['far']}: {each['reason']}")
    why = "; ".join(dict.fromkeys(blocked))
    if credit:
        yield Step("credit", f"receivers take {credit:,} deliveries now{why and f'; {why}'}")
    elif blocked:
        yield Step("credit", f"no receiver takes anything now: {why}", True, _FREE)
    else:
        yield Step("credit", "the routers do not tell how much credit receivers give")


_FREE: Final = "the receivers have to settle what they have, or give credit; amqpmesh status shows for how long"


def _disagreements(question: Question) -> Iterator[Step]:
    for each in question.of_address(question.here, "disagreement"):
        says = f"{each['here']} distributes it {each['ours']}, {each['router']} {each['theirs']}"
        yield Step("distribution", f"{says}: put the same [[address]] into both files")
