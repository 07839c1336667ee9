"""The state of a router as text: lines, and tables of its entities."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from amqpmesh.policies.tenants import OPERATOR
from amqpmesh.router.cli.output.terminal import Cell, table
from amqpmesh.router.config.limits import ULONG_MAX

OWN: Final = "this command"
"""The text in place of the container-id of our own connection."""

Entity = Mapping[str, Any]
Entities = Mapping[str, Sequence[Entity]]


def lines(
    entities: Entities, width: int, own: int | None, *, tenants: bool = False, suspended: bool = False
) -> Iterator[str]:
    """Yield the lines.

    Args: width: columns of the terminal. own: the number of our own connection. tenants: show the limits, too.
        suspended: show the links of clients that are away, too.
    """
    router = entities["router"][0] if entities["router"] else None
    now = 0.0 if router is None else router["now"]
    if router is not None:
        yield from _router(router)
    for mesh in entities["mesh"]:
        yield from _mesh(mesh)
    for policy in entities["policy"]:
        yield from _policy(policy)
    containers = {each["number"]: _container(each, own) for each in entities["connection"]}
    has_tenants = any(each.get("tenant") for found in entities.values() for each in found)
    decided = [each for each in entities["address"] if each.get("decided")]
    listed = {**entities, "address": _addresses(entities), "decided": decided}
    if not tenants:
        listed["limit"] = listed["rate"] = []
    if not suspended:
        listed["terminus"] = []
    for kind, title, columns in _TABLES:
        if listed.get(kind):
            names = [name for name in columns if (entities["mesh"] or name not in _OF_MESHES) and name != "tenant"]
            if "tenant" in columns and has_tenants:
                names.insert(1, "tenant")
            rows = [[columns[name](each, now, containers) for name in names] for each in listed[kind]]
            yield from ("", title, *table(names, rows, width, _NAMES))


def _router(router: Entity) -> Iterator[str]:
    state = ", draining" if router["draining"] else ""
    if router["moving"]:
        state += f", connections left to move: {router['moving']:,}"
    yield f"router {router['id']}, up {_age(router['now'] - router['started_at'])}{state}"
    if router.get("changed"):
        yield f"changed by management: {', '.join(router['changed'])}"
    for names in (
        ("connections", "links", "addresses", "relays"),
        ("deliveries_in", "deliveries_out", "undelivered", "expired"),
        ("accepted", "rejected", "released", "modified", "presettled"),
    ):
        # A tenant is told some of them.
        told = (name for name in names if router[name] is not None)
        yield ", ".join(f"{name.replace('_', ' ')} {router[name]:,}" for name in told)
    if router.get("resumable"):
        of_links = ("resumable", "suspended", "resumed", "lapsed", "evicted", "in_doubt")
        yield "resumption: " + ", ".join(f"{name.replace('_', ' ')} {router[name]:,}" for name in of_links)
    if router.get("twins"):
        yield f"not resumed, since two clients have the name: {', '.join(router['twins'])}"
    if router["memory"] is None:
        yield f"buffered {_octets(router['buffered'])}"
        return
    used_up = ", used up" if router["memory_used_up"] else ""
    yield f"buffered {_octets(router['buffered'])} of {_octets(router['memory'])}{used_up}"


def _mesh(mesh: Entity) -> Iterator[str]:
    for names in (("routers", "reachable", "neighbours", "lanes"), ("no_path", "no_hops")):
        yield ", ".join(f"{name.replace('_', ' ')} {mesh[name]:,}" for name in names)
    begin = "dropped_"
    dropped = {name.removeprefix(begin): count for name, count in mesh.items() if name.startswith(begin) and count}
    if dropped:
        yield "advertisements dropped: " + ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())


def _policy(policy: Entity) -> Iterator[str]:
    version = f"version {policy['version']}, " if policy["version"] else ""
    yield f"policy {version}{policy['digest'][:12]}, tenants {policy['tenants']:,}, groups {policy['groups']:,}"
    if policy["refused_reason"] is not None:
        yield f"policy version {policy['refused_version']} refused: {policy['refused_reason']}"


def _addresses(entities: Entities) -> list[Entity]:
    """Return the addresses in use at this router, and those with receivers at other routers."""
    used = list(entities["address"])
    known = {(each["tenant"], each["name"]) for each in used}
    elsewhere: dict[tuple[str, str], dict[str, Any]] = {}
    for advert in entities["advert"]:
        key = advert["tenant"], advert["name"]
        if key not in known:
            blank = dict.fromkeys(("producers", "consumers", "deliveries_in", "deliveries_out", "waiting"))
            new = {**advert, **blank, "consumers_at": [], "out_of_reach": [], "reason": None}
            entity = elsewhere.setdefault(key, new)
            entity["consumers_at" if advert["reachable"] else "out_of_reach"].append(advert["router"])
    return used + list(elsewhere.values())


def _container(connection: Entity, own: int | None) -> str:
    number = connection["number"]
    return f"({OWN})" if number == own else connection["container_id"] or f"#{number}"


def _age(seconds: float) -> str:
    """Return a time in its two largest units."""
    whole = int(seconds)
    for name, unit, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {below}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def _octets(number: int) -> str:
    if number < 1024:
        return f"{number} B"
    size, units = number / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.1f} {units[0]}" if size < 10 else f"{size:,.0f} {units[0]}"


def _credit(link: Entity, now: float, _containers: Mapping[int, str]) -> Cell:
    since = _age_since(link["zero_credit_since"], now)
    return f"{link['credit']:,}" if since is None else f"none, {since}"


def _age_since(at: float | None, now: float) -> str | None:
    return None if at is None or now < at else _age(now - at)  # the time is told by the router's own row


def _receivers_at(address: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    """List the other routers with receivers of an address; those that cannot be reached are in brackets."""
    return ", ".join([*address["consumers_at"], *(f"({each})" for each in address["out_of_reach"])]) or None


def _connector_url(connector: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    """Return the URL that a connector uses and, after redirects, the URL of its configuration."""
    url, begun = connector["url"], connector["redirected_from"]
    return f"{url} (redirected from {begun})" if begun else url


def _state(neighbour: Entity, now: float, _containers: Mapping[int, str]) -> Cell:
    state, since = "up" if neighbour["up"] else "down", _age_since(neighbour["since"], now)
    return state if since is None else f"{state}, {since}"


def _kind(lane: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    return ", ".join([lane["kind"], *(name for name in ("bulk", "retired") if lane[name])])


def _hop(lane: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    return f"{_direction(lane)} {lane['neighbour']}"


def _direction(link: Entity) -> str:
    """Return the direction of deliveries, seen from this router."""
    return "from" if link["direction"] == "incoming" else "to"


def _role(link: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    """Return the role of the client."""
    return "sender" if link["direction"] == "incoming" else "receiver"


def _time_left(terminus: Entity, now: float, _containers: Mapping[int, str]) -> Cell:
    at = terminus["expires_at"]
    return "its time does not run yet" if at is None else _age(max(0.0, at - now))


def _why_no_route(route: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    if route["distance"] is None:
        return "no path"
    if not route["transit"]:
        return "stopping: no path leads through it"
    return "draining: paths lead around it" if route["overload"] else None


def _handled(address: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    return int(address["relayed"] + address["decided"])


def _share_decided(address: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    return _percent(address["decided"], address["relayed"] + address["decided"])


def _percent(part: int, whole: int) -> str:
    """Return a share of a whole; a small one is not none."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 else "< 1 %"


def _decisions(address: Entity, _now: float, _containers: Mapping[int, str]) -> Cell:
    """List the reasons of decisions with their shares of all deliveries."""
    whole = address["relayed"] + address["decided"]
    return ", ".join(f"{reason} {_percent(count, whole)}" for reason, count in address["decisions"].items())


_OF_MESHES: Final = frozenset({"receivers at"})
"""Columns that are empty without a mesh."""

_NAMES: Final = _OF_MESHES | {
    *("name", "container", "address", "host", "user", "url", "by"),
    *("router", "other router", "next hops", "far router", "hop", "node"),
}

Column = Callable[[Entity, float, Mapping[int, str]], Cell]


def _plain(name: str) -> Column:
    return lambda entity, _now, _containers: entity[name]


def _rounded(name: str) -> Column:
    return lambda entity, _now, _containers: round(entity[name], 1)


_TABLES: Final[tuple[tuple[str, str, Mapping[str, Column]], ...]] = (
    (
        "listener",
        "LISTENERS",
        {
            "name": _plain("name"),
            "url": _plain("url"),
            "connections": _plain("connections"),
            "refused": _plain("refused"),
        },
    ),
    (
        "connector",
        "CONNECTORS",
        {
            "name": _plain("name"),
            "role": _plain("role"),
            "state": _plain("state"),
            "url": _connector_url,
            "failures": _plain("failures"),
            "why not connected": _plain("reason"),
        },
    ),
    (
        "container-link",
        "CONTAINER LINKS",
        {
            "name": _plain("name"),
            "by": _plain("connector"),
            "node": lambda link, _now, _containers: f"{_direction(link)} {link['node']}",
            "address": _plain("address"),
            "state": _plain("state"),
            "stolen": _plain("stolen"),
            "why not attached": _plain("reason"),
            "why not watched": _plain("unwatched"),
        },
    ),
    (
        "connection",
        "CONNECTIONS",
        {
            "tenant": _plain("tenant"),
            "container": lambda entity, _now, containers: containers[entity["number"]],
            "host": _plain("host"),
            "user": _plain("user"),
            "direction": _plain("direction"),
            "by": lambda entity, _now, _containers: entity["connector"] or entity["listener"],
            "role": _plain("role"),
            "tls": _plain("tls"),
            "links": _plain("links"),
            "in": lambda entity, _now, _containers: _octets(entity["octets_in"]),
            "out": lambda entity, _now, _containers: _octets(entity["octets_out"]),
            "age": lambda entity, now, _containers: _age_since(entity["connected_at"], now),
        },
    ),
    (
        "neighbour",
        "NEIGHBOURS",
        {
            "router": _plain("router"),
            "by": lambda entity, _now, _containers: entity["connector"] or entity["listener"],
            "state": _state,
            "cost": _plain("cost"),
            "cost back": _plain("remote_cost"),
            "lanes": _plain("lanes"),
            "why unused": _plain("reason"),
        },
    ),
    (
        "route",
        "ROUTES",
        {
            "router": _plain("router"),
            "cost": _plain("distance"),
            "hops": _plain("hops"),
            "next hops": lambda entity, _now, _containers: ", ".join(entity["next_hops"]) or None,
            "problem": _why_no_route,
        },
    ),
    (
        "address",
        "ADDRESSES",
        {
            "tenant": _plain("tenant"),
            "address": _plain("name"),
            "distribution": _plain("distribution"),
            "senders": _plain("producers"),
            "receivers": _plain("consumers"),
            "receivers at": _receivers_at,
            "in": _plain("deliveries_in"),
            "out": _plain("deliveries_out"),
            "waiting": _plain("waiting"),
            "why blocked": _plain("reason"),
        },
    ),
    (
        "limit",
        "LIMITS",
        {
            "tenant": lambda entity, _now, _containers: entity["tenant"] or OPERATOR,
            "user": _plain("user"),
            "host": _plain("host"),
            "limit": _plain("limit"),
            "used": lambda entity, _now, _containers: "unlimited" if entity["used"] == ULONG_MAX else entity["used"],
            "allowed": _plain("allowed"),
            "refused": _plain("refused"),
        },
    ),
    (
        "rate",
        "RATES",
        {
            "tenant": lambda entity, _now, _containers: entity["tenant"] or OPERATOR,
            "user": _plain("user"),
            "host": _plain("host"),
            "address": _plain("address"),
            "limit": _plain("limit"),
            "used/s": _rounded("used"),
            "allowed/s": _rounded("allowed"),
            "left": _rounded("left"),
            "waiting": _plain("waiting"),
        },
    ),
    (
        "user",
        "USERS",
        {
            "user": _plain("name"),
            "listeners": lambda entity, _now, _containers: ", ".join(entity["listeners"]),
            "state": lambda entity, _now, _containers: "disabled" if entity["disabled"] else "enabled",
            "groups": lambda entity, _now, _containers: ", ".join(entity["groups"]) or None,
        },
    ),
    (
        "decided",
        "DECISIONS",
        {
            "tenant": _plain("tenant"),
            "address": _plain("name"),
            "deliveries": _handled,
            "decided": _share_decided,
            "why decided": _decisions,
        },
    ),
    (
        "disagreement",
        "DISAGREEMENTS",
        {
            "tenant": _plain("tenant"),
            "address": _plain("address"),
            "router": _plain("here"),
            "distribution": _plain("ours"),
            "other router": _plain("router"),
            "distribution there": _plain("theirs"),
        },
    ),
    (
        "link",
        "LINKS",
        {
            "tenant": _plain("tenant"),
            "container": lambda entity, _now, containers: containers.get(entity["connection"]),
            "role": _role,
            "address": _plain("address"),
            "deliveries": _plain("deliveries"),
            "unsettled": _plain("unsettled"),
            "credit": _credit,
            "why blocked": _plain("reason"),
        },
    ),
    (
        "terminus",
        "SUSPENDED LINKS",
        {
            "tenant": _plain("tenant"),
            "container": _plain("container_id"),
            "host": _plain("host"),
            "user": _plain("user"),
            "name": _plain("name"),
            "role": _role,
            "address": _plain("address"),
            "unsettled": _plain("unsettled"),
            "kept": lambda entity, _now, _containers: _octets(entity["octets"]),
            "since": lambda entity, now, _containers: _age_since(entity["suspended_since"], now),
            "expires in": _time_left,
        },
    ),
    (
        "lane",
        "LANES",
        {
            "tenant": _plain("tenant"),
            "kind": _kind,
            "address": _plain("address"),
            "far router": _plain("far"),
            "hop": _hop,
            "deliveries": _plain("deliveries"),
            "unsettled": _plain("unsettled"),
            "waiting": _plain("waiting"),
            "credit": _credit,
            "why blocked": _plain("reason"),
        },
    ),
)
