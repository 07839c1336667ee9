"""Changes of a router that clients of `$management` ask for: costs, and the end of connections and links."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.conditions import ConnectionCondition, LinkCondition
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.delivery.link_loss import close_connection, fail_link
from amqpmesh.router.statistics.router_statistics import ConnectionStatistics, TerminusStatistics

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.statistics.router_statistics import Costly, Removable

REMOVED: Final = "removed by management"
"""The description that a peer gets."""


def kind_of(told: Removable) -> str:
    """Return the type of entities that one is of, without its prefix."""
    if isinstance(told, TerminusStatistics):
        return "terminus"
    return "connection" if isinstance(told, ConnectionStatistics) else "link"


class NoClientError(Exception):
    """A connection that no client has made to a listener, or a link of one."""


def set_cost(core: Core, told: Costly, cost: int, now: float) -> None:
    """Change the cost of sending to neighbours. Raises: LookupError: as `change_cost`; or there is no mesh."""
    if core.mesh is None:
        raise LookupError("this router has no neighbours: it is in no mesh")
    core.change(partial(core.mesh.change_cost, told, cost), now)


def remove(core: Core, told: Removable, now: float) -> None:
    """Close a connection (`amqp:connection:forced`), or detach a link (`amqp:link:detach-forced`); its client may come
    again.

    The end of a link that is kept for a client expires: nothing is known of its deliveries when the client comes back.
    Args: told: with the numbers that the operator sees.
    Raises: LookupError: it is gone. NoClientError: it is no client's: the router or the program around it needs it.
    """
    if isinstance(told, TerminusStatistics):
        _expire(core, told, now)
        return
    number = told.number if isinstance(told, ConnectionStatistics) else told.connection
    record = next((each for each in core.context.connections if each.number == number and not each.own), None)
    if record is None or record.lost or record.peer.tenant != told.tenant:
        raise LookupError("it is gone")
    if record.listener is None or record.listener.is_mesh or record.inside:
        raise NoClientError
    if isinstance(told, ConnectionStatistics):
        error = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=REMOVED)
        core.change(partial(close_connection, core.context, record, error), now)
        return
    links = (*record.incoming, *record.outgoing, *record.detached_unsettled)
    link = next((each for each in links if each.number == told.number), None)
    if link is None:
        raise LookupError("it is gone")
    error = Error(condition=LinkCondition.DETACH_FORCED, description=REMOVED)
    core.change(partial(fail_link, core.context, link, error), now)


def _expire(core: Core, told: TerminusStatistics, now: float) -> None:
    termini = core.context.termini
    found = next((each for each in termini.kept() if each.link.number == told.number), None)
    if found is None or found.link.connection.peer.tenant != told.tenant:
        raise LookupError("it is gone")
    core.change(partial(termini.end, found, REMOVED), now)
