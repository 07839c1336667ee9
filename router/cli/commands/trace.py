"""`amqpmesh trace ADDRESS`: a message is followed from router to router, and its way is shown while it happens."""

import argparse
import sys
from contextlib import suppress
from typing import Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli import arguments, asked_routers, client_peer
from amqpmesh.router.cli.asked_routers import AskedRouters
from amqpmesh.router.cli.exit_status import EPILOG, Exit, RefusedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.trace_tree import AskedRouter, as_object, tree, verdict
from amqpmesh.router.cli.watching import draw
from amqpmesh.router.management.queries import AnswerError, body_of
from amqpmesh.router.management.service import FORBIDDEN, NOT_FOUND, NOT_IMPLEMENTED
from amqpmesh.router.management.trace import WAIT, events_request, start_request

PAUSE: Final = 0.1
"""Seconds between two questions to a router."""

LATE: Final = 2.0
"""Seconds after the end at the first router until the others are no longer asked: a mark may be lost on the way."""

GRACE: Final = 5.0
"""Seconds by which the command waits longer for an answer than for one router, so that others are still shown."""

MOST_ROUTERS: Final = 256
"""Routers that are asked at most."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Follow a message through the mesh: when it came to each router and left it, which way was chosen, how long it "
        "waited and for what, and its outcome on the way back. The router sends a small message of its own to the "
        "address, and its receivers get it; with --next, the next message that comes there is followed. Times are "
        "those since the message came to a router, by its own clock."
    )
    command.epilog = EPILOG
    command.add_argument("address", metavar="ADDRESS", type=arguments.name, help="the address, as a client names it")
    asked_routers.add_options(
        command,
        option="--at",
        router="the router where the message begins, or is looked for; default: the router at --url",
        waited="each answer, and for an outcome after --wait",
    )
    command.add_argument("--next", action="store_true", help="send nothing: follow the next message that comes there")
    command.add_argument(
        "--wait",
        metavar="S",
        type=arguments.seconds,
        default=WAIT,
        help=f"seconds until the message is given up, for want of credit or of a message; default: {WAIT:g}",
    )
    command.add_argument("--json", action="store_true", help="print the events as one JSON object, at the end")
    client_peer.add_options(command, reconnect=None)
    command.set_defaults(command=follow)


def follow(given: argparse.Namespace) -> int:
    """Show the trace of a message.

    Returns: 0: it was delivered; 1: it was not; 4: it has no outcome yet. Raises: AmqpMeshError: there is no answer.
    """
    shown = Shown(given.address, is_live=sys.stdout.isatty() and not given.json)

    async def work(routers: AskedRouters) -> None:
        others = await _begin(routers, given, shown)
        if others:
            await _await_first(routers, given, shown, others)
        await _ask_on(routers, given, shown)

    asked_routers.ask(client_peer.connection(given, "trace"), given.timeout + GRACE, work)
    first = shown.routers[shown.first]
    ended = verdict(first)
    if given.json:
        print(dump(as_object(given.address, shown.trace, shown.first, shown.routers)))
    else:
        shown.draw(last=True)
        print("it has no outcome yet" if ended is None else ended.says)
    return Exit.TIMED_OUT if ended is None else Exit.DONE if ended.delivered else Exit.FAILED


class Shown:
    """The trace as it is known."""

    def __init__(self, address: str, *, is_live: bool) -> None:
        """Args: is_live: it is drawn whenever it changes."""
        self.address = address
        self.trace = ""
        self.first = ""
        #: The name that the first router is asked by; None: it is the connected one.
        self.at: str | None = None
        self.routers: dict[str, AskedRouter] = {}
        self._is_live = is_live
        self._drawn: list[str] = []

    def begin(self, router: str, trace: str, at: str | None) -> None:
        """Show the trace that has begun at a router. Args: at: the name that it is asked by; None: it is connected."""
        self.first, self.trace, self.at = router, trace, at
        self.routers = {router: AskedRouter(router)}

    def draw(self, *, last: bool = False) -> None:
        """Draw the trace, if that is due and it has changed."""
        if not (last or self._is_live):
            return
        lines = [f"trace {self.trace} of {self.address}", *tree(self.first, self.routers)]
        if last or lines != self._drawn:
            draw(lines, is_live=self._is_live and not last, is_first=True)
        self._drawn = lines


async def _begin(routers: AskedRouters, given: argparse.Namespace, shown: Shown) -> dict[str, str]:
    """Begin the trace. Returns: the traces of the router's other workers, of which each may be the one that follows the
    next message: by the ids of the workers.
    """
    asked = start_request(given.address, follows_next=given.next, wait=given.wait)
    try:
        begun = body_of(await routers.request(given.router, asked))
        shown.begin(str(begun["router"]), str(begun["trace"]), given.router)
    except (AnswerError, KeyError) as error:
        raise RefusedError(f"the router {error}") from None
    workers = [str(each) for each in begun.get("workers", ()) if each != shown.first]
    if workers:
        shown.at = shown.first  # the name of the router stands for any of them
    found: dict[str, str] = {}
    for worker in workers if given.next else ():
        # One that does not answer is about to be started again; what comes there meanwhile is not followed.
        with suppress(AmqpMeshError, KeyError, trio.TooSlowError), trio.fail_after(given.timeout):
            found[worker] = str(body_of(await routers.request(worker, asked))["trace"])
    return found


async def _await_first(routers: AskedRouters, given: argparse.Namespace, shown: Shown, others: dict[str, str]) -> None:
    """Wait until a worker follows a message, and show that one; the others await none any more."""
    traces = {shown.first: shown.trace, **others}
    until = trio.current_time() + given.wait
    while trio.current_time() < until and len(traces) > 1:
        for worker, trace in list(traces.items()):
            try:
                with trio.fail_after(given.timeout):
                    events = body_of(await routers.request(worker, events_request(trace, 0)))["events"]
            except (AmqpMeshError, KeyError, trio.TooSlowError):
                if worker != shown.first:
                    del traces[worker]
                continue
            if any(each["event"] == "came" for each in events):
                shown.begin(worker, traces.pop(worker), worker)
                for other, waiting in traces.items():
                    with suppress(AmqpMeshError, trio.TooSlowError), trio.fail_after(given.timeout):
                        await routers.request(other, events_request(waiting, 0, end=True))
                return
        await trio.sleep(PAUSE)


async def _ask_on(routers: AskedRouters, given: argparse.Namespace, shown: Shown) -> None:
    """Ask all routers that the message has come to, until it has ended everywhere."""
    first = shown.routers[shown.first]
    until = trio.current_time() + given.wait + given.timeout
    late: float | None = None
    while True:
        for each in list(shown.routers.values()):
            if not each.over:
                await _ask(routers, shown.at if each is first else each.name, each, shown, given.timeout)
                shown.draw()
        now = trio.current_time()
        if first.over and late is None:
            late = now + LATE
        if all(each.over for each in shown.routers.values()) or now >= until:
            return
        if late is not None and now >= late:
            for each in shown.routers.values():
                if not (each.over or each.begins):
                    each.over, each.silence = True, "nothing is known of the message here: the mark was lost on the way"
        await trio.sleep(PAUSE)


async def _ask(routers: AskedRouters, router: str | None, asked: AskedRouter, shown: Shown, time_out: float) -> None:
    """Ask one router for further events."""
    try:
        with trio.fail_after(time_out):
            told = body_of(await routers.request(router, events_request(shown.trace, len(asked.events))))
        events = list(told["events"])
    except AnswerError as error:
        if error.status == NOT_FOUND and not asked.events and asked.name != shown.first:
            return  # its mark may be on the way
        asked.over, asked.silence = True, _SILENCES.get(error.status or 0, f"the router {error}")
        return
    except (AmqpMeshError, KeyError, TypeError, trio.TooSlowError) as error:
        asked.over, asked.silence = True, f"the router does not answer: {error or 'too slow'}"
        return
    asked.events += events
    asked.over, asked.lost = bool(told.get("over")), int(told.get("lost", 0))
    for _, name in asked.next_routers():
        if len(shown.routers) < MOST_ROUTERS:
            shown.routers.setdefault(name, AskedRouter(name))


_SILENCES: Final = {
    NOT_FOUND: "the router has forgotten the trace",
    FORBIDDEN: "the router does not tell this client: it is not permitted, or not vouched for",
    NOT_IMPLEMENTED: "the router does not know of traces: it is of an older version",
}
