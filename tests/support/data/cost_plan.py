"""A cost plan of two routers, for tests to change."""

from typing import Final

from amqpmesh.router.management.cost_plan import Change, Plan, Use, Verdict

PLAN: Final = Plan(
    made="2026-05-01T12:00:00+00:00",
    since=None,
    until=None,
    events=("/events",),
    routers=2,
    links=1,
    relative=True,
    before=Use(1.0, "A", "B"),
    after=Use(0.5, "B", "A"),
    between=1.0,
    contingency=Verdict(True, "as it was"),
    simulation=Verdict(True, "as predicted"),
    changes=(Change("A", "B", 1, 7), Change("B", "A", 4, 9)),
)
