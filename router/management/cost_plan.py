"""Plans: new costs of links, their predicted effect, and the results of their checks.

`amqpmesh pipeline plan` writes a plan as JSON for people to read; `amqpmesh routes apply` applies it. Reading is
strict: a plan with any unknown key is not applied.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.config.limits import USHORT_MAX

FORMAT: Final = "amqpmesh plan"

VERSION: Final = 1
"""The version of the format. Plans of other versions are not read."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a router's cost for sending to a neighbour. Args: before, after: 1 to 65535, and different."""

    router: str
    neighbour: str
    before: int
    after: int

    @property
    def name(self) -> str:
        """The two routers, as `A -> B`."""
        return f"{self.router} -> {self.neighbour}"

    def reverse(self) -> Change:
        """Return the change that takes this one back."""
        return Change(self.router, self.neighbour, self.after, self.before)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of the busiest direction of a link. Args: router, neighbour: its ends; None: there is no traffic."""

    share: float
    router: str | None
    neighbour: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Args: passed: None: the check was not made. sentence: the finding, or the reason why the check was not made.
    """

    passed: bool | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in their order, and their reasons.

    Args: made: the time of making, in ISO 8601. since, until: the time of the traffic; None: without bound.
        events: the directories of its records. routers, links: numbers of the graph.
        relative: the capacities are unknown: a use of 1 is that of the busiest direction before.
        before, after: predictions for the recorded traffic. between: the greatest use during the changes.
        contingency: the check that single failures are survived as before. simulation: the check that simulated routers
        behave as predicted.
    """

    made: str
    since: str | None
    until: str | None
    events: tuple[str, ...]
    routers: int
    links: int
    relative: bool
    before: Use
    after: Use
    between: float
    contingency: Verdict
    simulation: Verdict
    changes: tuple[Change, ...]

    @property
    def refusal(self) -> str | None:
        """The reason why the plan should not be applied; None: it was checked, and passed."""
        for name, verdict in (("contingency", self.contingency), ("simulation", self.simulation)):
            if verdict.passed is None:
                return f"it was not checked by {name}: {verdict.sentence}"
            if not verdict.passed:
                return f"it did not pass the check by {name}: {verdict.sentence}"
        return None


def to_json(plan: Plan) -> str:
    """Return a plan as JSON that ends with a newline."""
    told = {
        "format": FORMAT,
        "version": VERSION,
        "made": plan.made,
        "of": {
            "events": list(plan.events),
            "since": plan.since,
            "until": plan.until,
            "routers": plan.routers,
            "links": plan.links,
        },
        "use": {
            "relative": plan.relative,
            "before": _of_use(plan.before),
            "after": _of_use(plan.after),
            "between": plan.between,
        },
        "contingency": _of_verdict(plan.contingency),
        "simulation": _of_verdict(plan.simulation),
        "changes": [
            {"router": each.router, "neighbour": each.neighbour, "from": each.before, "to": each.after}
            for each in plan.changes
        ],
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _of_use(use: Use) -> dict[str, Any]:
    return {"most": use.share, "router": use.router, "neighbour": use.neighbour}


def _of_verdict(verdict: Verdict) -> dict[str, Any]:
    return {"passed": verdict.passed, "sentence": verdict.sentence}


def from_json(text: str | bytes) -> Plan:
    """Return a plan from JSON. Raises: CommandError: it is no plan, of another version, or has an impossible value."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"is no JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CommandError("is no plan of `amqpmesh pipeline plan`")
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise CommandError(f"is a plan of version {value.get('version')!r}, and this reads version {VERSION} alone")
    top = _Keys(value, "", ("format", "version", "made", "of", "use", "contingency", "simulation", "changes"))
    of = top.inner("of", ("events", "since", "until", "routers", "links"))
    use = top.inner("use", ("relative", "before", "after", "between"))
    events = of.get("events", "a list of texts", lambda it: _is_list(it) and all(isinstance(each, str) for each in it))
    return Plan(
        made=top.get("made", "a text", _is_text),
        since=of.get("since", "a text or null", _is_text_or_null),
        until=of.get("until", "a text or null", _is_text_or_null),
        events=tuple(events),
        routers=of.get("routers", "a number", _is_count),
        links=of.get("links", "a number", _is_count),
        relative=use.get("relative", "true or false", _is_flag),
        before=_use(use, "before"),
        after=_use(use, "after"),
        between=float(use.get("between", "a number", _is_amount)),
        contingency=_verdict(top, "contingency"),
        simulation=_verdict(top, "simulation"),
        changes=_changes(top.get("changes", "a list", _is_list)),
    )


def _use(of: _Keys, name: str) -> Use:
    keys = of.inner(name, ("most", "router", "neighbour"))
    router, neighbour = (keys.get(each, "a text or null", _is_text_or_null) for each in ("router", "neighbour"))
    return Use(float(keys.get("most", "a number", _is_amount)), router, neighbour)


def _verdict(of: _Keys, name: str) -> Verdict:
    keys = of.inner(name, ("passed", "sentence"))
    passed = keys.get("passed", "true, false or null", lambda it: it is None or isinstance(it, bool))
    return Verdict(passed, keys.get("sentence", "a text", _is_text))


def _changes(found: Sequence[Any]) -> tuple[Change, ...]:
    changes: dict[tuple[str, str], Change] = {}
    for place, each in enumerate(found):
        keys = _Keys(each, f"changes[{place}]", ("router", "neighbour", "from", "to"))
        router, neighbour = (keys.get(name, "a name", _is_name) for name in ("router", "neighbour"))
        what = f"a cost from 1 to {USHORT_MAX}"
        change = Change(router, neighbour, keys.get("from", what, _is_cost), keys.get("to", what, _is_cost))
        if router == neighbour:
            raise CommandError(f"changes[{place}]: {router} is no neighbour of itself")
        if change.before == change.after:
            raise CommandError(f"changes[{place}]: {change.name} costs {change.after} before, too")
        if (router, neighbour) in changes:
            raise CommandError(f"changes[{place}]: {change.name} is changed twice")
        changes[router, neighbour] = change
    return tuple(changes.values())


class _Keys:
    """A JSON object with exactly these keys."""

    def __init__(self, value: Any, place: str, names: Sequence[str]) -> None:
        self._place = place
        if not isinstance(value, dict):
            raise CommandError(f"{place} must be an object")
        for name in names:
            if name not in value:
                raise CommandError(f"{self._key_path(name)} is missing")
        for name in value:
            if name not in names:
                raise CommandError(f"{self._key_path(name)} is not known")
        self._value: Mapping[str, Any] = value

    def get(self, name: str, what: str, is_so: Callable[[Any], bool]) -> Any:
        if not is_so(self._value[name]):
            raise CommandError(f"{self._key_path(name)} must be {what}")
        return self._value[name]

    def inner(self, name: str, names: Sequence[str]) -> _Keys:
        return _Keys(self._value[name], self._key_path(name), names)

    def _key_path(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises: ValueError: it has a key twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: Any) -> bool:
    # JSON may hold lone surrogates, which are no valid text.
    return isinstance(value, str) and bool(value) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_cost(value: Any) -> bool:
    return type(value) is int and 1 <= value <= USHORT_MAX


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max
