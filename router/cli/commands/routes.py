"""`amqpmesh routes apply PLAN`: set or take back the costs that `amqpmesh pipeline plan` proposed."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.managed import ManagementClients
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.terminal import printable, table
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.cli.process.stdio import lines
from amqpmesh.router.cli.router_state import TIME_OUT, width
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.management.apply_plan import ChangeState, ReroutingError, UnwillingError, change_states, set_cost
from amqpmesh.router.management.cost_plan import Change, Plan, Use, Verdict, from_json

MAX_PLAN: Final = 64 * 2**20
"""Octets of a plan's file."""

BACK_TIME: Final = 10.0
"""Seconds that each router has to take back changes, after a failure or a signal."""


class DeclinedError(AmqpMeshError):
    """The user did not confirm."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = command.add_subparsers(metavar="ACTION", required=True)
    apply = actions.add_parser(
        "apply",
        help="apply a plan, or undo it",
        description="Apply a plan of `amqpmesh pipeline plan`. Show the current costs and those of the plan, ask for "
        "confirmation, and change the costs one by one. If a change fails, or a signal arrives, undo the changes "
        "made so far. Costs that the plan has already reached stay as they are, so the command can be repeated. The "
        "router at --url reads the costs of all routers. To change a cost, the command must connect to its router "
        "directly, through a listener with manage = true. --at gives the URL of that listener.",
        epilog=EPILOG,
    )
    apply.add_argument("plan", metavar="PLAN", type=Path, help="plan.json")
    apply.add_argument(
        "--at",
        metavar="ROUTER=URL",
        dest="places",
        action="append",
        default=[],
        type=_place,
        help="the URL of a router whose costs change; may be repeated; not needed for the router at --url",
    )
    apply.add_argument("--take-back", action="store_true", help="restore the costs from before the plan")
    what = apply.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="show the changes, but make none")
    what.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    apply.add_argument(
        "--force", action="store_true", help="apply the plan even if it was not checked, or failed a check"
    )
    apply.add_argument(
        "--timeout",
        metavar="S",
        type=arguments.seconds,
        default=TIME_OUT,
        help=f"seconds to wait for each router; default: {TIME_OUT:g}",
    )
    apply.add_argument(
        "--json", action="store_true", help="print the result as one JSON object; needs --yes or --dry-run"
    )
    client_peer.add_options(apply, reconnect=None)
    apply.set_defaults(command=apply_plan)


def _place(text: str) -> tuple[str, str]:
    router, equals, url = text.partition("=")
    if not router or not equals or not url:
        raise argparse.ArgumentTypeError(f"must be ROUTER=URL, not {text!r}")
    return router, url


def apply_plan(given: argparse.Namespace) -> int:
    """Apply a plan. Returns: 0, also without changes. Raises: AmqpMeshError: it failed; the current costs
    are printed.
    """
    plan = _read(given.plan)
    if plan.changes and plan.refusal is not None and not (given.force or given.take_back or given.dry_run):
        raise CommandError(f"{given.plan}: {plan.refusal}; --force applies it anyway")
    if given.json and not (given.yes or given.dry_run):
        raise CommandError("--json cannot ask for confirmation: it needs --yes or --dry-run")
    places = dict(given.places)
    if len(places) != len(given.places):
        raise CommandError("--at: a router is named twice")
    run = _Run(given, plan)
    if plan.changes:
        first = client_peer.connection(given, "routes")
        others = {
            router: client_peer.connection(argparse.Namespace(**{**vars(given), "url": url}), "routes")
            for router, url in places.items()
        }
        try:
            trio.run(run.main, first, others)
        except UnwillingError as error:
            raise RefusedError(str(error)) from None
    elif not given.json:
        print("the plan changes nothing")
    if given.json:
        print(dump({"plan": str(given.plan), "changed": run.changed, "in_force": run.in_force}))
    return Exit.DONE


def _read(file: Path) -> Plan:
    """Read a plan. Raises: CommandError: the file cannot be read, or is no plan."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_PLAN + 1)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    if len(text) > MAX_PLAN:
        raise CommandError(f"{file} is too large for a plan")
    try:
        return from_json(text)
    except CommandError as error:
        raise CommandError(f"{file}: {error}") from None


class _Run:
    """One run of the command, with the changes that it has made."""

    def __init__(self, given: argparse.Namespace, plan: Plan) -> None:
        self.changed: list[dict[str, Any]] = []
        self.in_force: list[dict[str, Any]] = []
        self._given = given
        self._plan = plan
        self._patience = PeerTimeout(given.timeout)

    async def main(self, first: Connection, others: Mapping[str, Connection]) -> None:
        """Read the state, show the plan, ask, and change. Args: first: to the router at --url. others: by the routers
        at --at.
        """
        await run_interruptible(lambda: self._work(first, others), self._patience)

    async def _work(self, first: Connection, others: Mapping[str, Connection]) -> None:
        changes = self._plan.changes
        if self._given.take_back:
            changes = tuple(each.reverse() for each in reversed(changes))
        async with AsyncExitStack() as stack:
            self._wait("the router at --url")
            mesh = await ManagementClients.connected(first, others, stack, self._wait)
            found = await self._read_states(changes, mesh)
            self._say(*_head(self._plan, found, back=self._given.take_back))
            todo = [each for each in found if not each.is_done]
            if not todo:
                self._say("", "all changes are in force already: nothing to do")
            elif self._given.dry_run:
                self._say("", f"nothing was changed; {len(todo)} of {len(found)} costs would change")
            else:
                self._wait("the routers that are to be changed")
                await mesh.demand_direct({each.change.router for each in todo})
                await self._ask()
                await self._change(todo, mesh)
                self._say("", "all changes are in force")
                found = await self._read_states(changes, mesh)
                for each in found:
                    if not each.is_done:
                        raise ReroutingError(f"{each.change.name} costs {each.cost} again: its connection was replaced")
                self._say(*_duration_lines(found, back=self._given.take_back))
            self._patience.rest()

    async def _read_states(self, changes: Sequence[Change], mesh: ManagementClients) -> list[ChangeState]:
        """Return the state of all changes, in their order."""
        by_router: dict[str, list[Change]] = defaultdict(list)
        for each in changes:
            by_router[each.router].append(each)
        found: dict[Change, ChangeState] = {}
        for router, some in by_router.items():
            self._wait(f"an answer of {router}")
            found.update((each.change, each) for each in await change_states(router, some, mesh.asking(router)))
        self._patience.rest()
        self.in_force = [_object(each) for each in (found[change] for change in changes)]
        return [found[each] for each in changes]

    async def _ask(self) -> None:
        self._patience.rest()
        if self._given.yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise CommandError("without a terminal it needs --yes; nothing was changed")
        question = "undo? [y/N] " if self._given.take_back else "apply? [y/N] "
        print(question, end="", flush=True)
        async with aclosing(lines()) as typed:
            answer = await anext(typed, b"")
        if answer.strip().lower() not in (b"y", b"yes"):
            raise DeclinedError("nothing was changed")

    async def _change(self, todo: Sequence[ChangeState], mesh: ManagementClients) -> None:
        """Make the changes in order. Raises: the error of a change; then the changes made before are taken back."""
        begun: list[ChangeState] = []
        try:
            for each in todo:
                self._wait(f"an answer of {each.change.router}")
                begun.append(each)
                try:
                    await set_cost(each, each.change.after, mesh.asking(each.change.router))
                except UnwillingError:
                    begun.pop()  # the router has refused
                    raise
                self._say(f"{each.change.name} costs {each.change.after}")
        except BaseException:
            for line in await _undo_changes(begun, mesh):
                print(f"amqpmesh: {printable(line)}", file=sys.stderr)
            raise
        self.changed = [{**_object(each), "cost": each.change.after, "before": each.cost} for each in todo]

    def _wait(self, what: str) -> None:
        self._patience.rest()
        self._patience.wait(what)

    def _say(self, *told: str) -> None:
        if told and not self._given.json:
            print("\n".join(map(printable, told)), flush=True)


async def _undo_changes(begun: Sequence[ChangeState], mesh: ManagementClients) -> list[str]:
    """Take back the changes made. Returns: lines with the current cost of each, as far as known."""
    if not begun:
        return ["nothing was changed"]
    told = {each.change: f"{each.change.name} may cost {each.change.after} or {each.cost}: not known" for each in begun}

    async def take_back(some: Sequence[ChangeState]) -> None:
        for each in some:
            try:
                await set_cost(each, each.cost, mesh.asking(each.change.router))
                told[each.change] = f"{each.change.name} costs {each.cost}, as before"
            except AmqpMeshError as error:
                told[each.change] += f" ({error})"

    by_router: dict[str, list[ChangeState]] = defaultdict(list)
    for each in reversed(begun):
        by_router[each.change.router].append(each)
    # Shielded: the signal or time-out that ends the command does not end this. A hanging router does not delay others.
    with trio.move_on_after(BACK_TIME, shield=True):
        async with trio.open_nursery() as nursery:
            for some in by_router.values():
                nursery.start_soon(take_back, some)
    return list(told.values())


# ------------------------------------------------------------------------------------------------------- what is shown


def _object(standing: ChangeState) -> dict[str, Any]:
    return {"router": standing.change.router, "neighbour": standing.change.neighbour, "cost": standing.cost}


def _head(plan: Plan, found: Sequence[ChangeState], *, back: bool) -> Iterator[str]:
    """Yield lines on the plan, its state in the mesh, and its changes."""
    yield f"plan of {plan.made}, for {plan.routers:,} routers and {plan.links:,} links"
    yield f"traffic from {plan.since or 'the beginning'} to {plan.until or 'the end'} of {', '.join(plan.events)}"
    use = "use, relative to the busiest link" if plan.relative else "use, of the links' capacity"
    yield f"{use}: {_use_of(plan.before)}; with the plan {_use_of(plan.after)}, during the change {plan.between:.2f}"
    yield f"contingency {_verdict(plan.contingency)}"
    yield f"simulation {_verdict(plan.simulation)}"
    yield ""
    headings = ("ROUTER", "NEIGHBOUR", "COST NOW", "BEFORE THE PLAN" if back else "COST THEN", "")
    rows = [
        (each.change.router, each.change.neighbour, each.cost, each.change.after, "in force" if each.is_done else "")
        for each in found
    ]
    yield from table(headings, rows, width(), ("ROUTER", "NEIGHBOUR"))


def _use_of(use: Use) -> str:
    return f"{use.share:.2f}" if use.router is None else f"{use.share:.2f} ({use.router} -> {use.neighbour})"


def _verdict(verdict: Verdict) -> str:
    words = {True: "passed", False: "failed", None: "not made"}
    return f"{words[verdict.passed]}: {verdict.sentence}"


def _duration_lines(found: Sequence[ChangeState], *, back: bool) -> Iterator[str]:
    """Yield lines on how long the costs hold, and how to keep them."""
    if back:
        return
    yield ""
    yield "The configurations did not change. To keep the costs after a restart, write them there, and a cost at the"
    yield "other end of each connection, too: one that only one end has holds for both directions."
    yield ""
    rows = [
        (
            each.change.router,
            f"the connection to {each.change.neighbour} ends" if each.connector is None else "it ends",
            f"cost = {each.change.after}",
            f'[[listener]] "{each.listener}", for {each.change.neighbour} alone'
            if each.connector is None
            else f'[[connector]] "{each.connector}"',
        )
        for each in found
    ]
    yield from table(("ROUTER", "HOLDS UNTIL", "WRITE", "IN"), rows, width(), ("ROUTER",))
