"""A snapshot of the ends of links that are kept while their clients are away, and the counts of resumption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from amqpmesh.router.statistics.router_statistics import TerminusStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.lasting_termini import LastingTermini, SuspendedTerminus


class ResumptionFields(TypedDict):
    """The fields of `RouterStatistics` on resumption."""

    resumable: int
    suspended: int
    resumed: int
    lapsed: int
    evicted: int
    parked_unsettled: int
    kept_octets: int
    resumed_outcomes: int
    resumed_again: int
    aborted_resumes: int
    restated: int
    in_doubt: int


#: Termini that one step looks at.
STEP: Final = 200


def termini_snapshot(core: Core) -> Steps[list[TerminusStatistics]]:
    """Read the termini that are kept, in steps: there may be ten thousand."""
    found = []
    for number, each in enumerate(list(core.context.termini.kept())):
        if number % STEP == 0:
            yield
        found.append(_statistics(each))
    return found


def _statistics(terminus: SuspendedTerminus) -> TerminusStatistics:
    link, record, grant = terminus.link, terminus.link.connection, terminus.grant
    return TerminusStatistics(
        number=link.number,
        name=terminus.key[4],
        connection=record.number,
        direction=link.direction,
        address=grant.address,
        tenant=record.peer.tenant,
        user=record.peer.user,
        host=record.host,
        container_id=record.peer.container_id,
        unsettled=terminus.unsettled,
        octets=terminus.octets,
        timeout=grant.timeout,
        suspended_since=terminus.since,
        expires_at=terminus.expires,
    )


def resumption_counts(termini: LastingTermini, kept: Sequence[TerminusStatistics]) -> ResumptionFields:
    """Return the fields of `RouterStatistics` on resumption. Args: kept: all that are kept now."""
    counts = termini.counts
    return ResumptionFields(
        resumable=termini.granted,
        suspended=termini.suspended_number,
        resumed=termini.resumptions,
        lapsed=termini.lapsed,
        evicted=termini.evicted,
        parked_unsettled=sum(each.unsettled for each in kept),
        kept_octets=sum(each.octets for each in kept),
        resumed_outcomes=counts.resumed_outcomes,
        resumed_again=counts.resumed_again,
        aborted_resumes=counts.aborted_resumes,
        restated=counts.restated,
        in_doubt=counts.in_doubt,
    )
