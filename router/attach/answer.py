"""Answers to attaches, and stolen links (§2.6.1, §2.6.3, §3.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.groups import May
from amqpmesh.router.access import caps
from amqpmesh.router.access.contention import share_credit
from amqpmesh.router.access.rates import limit_rates
from amqpmesh.router.access.rights import check, check_address, check_user_ids, is_judged
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.link import Link, Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import (
    SENDER,
    AmqpCondition,
    Error,
)
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.transactions import Coordinator
from amqpmesh.router.attach.dynamic_nodes import lifetime_of, make_dynamic
from amqpmesh.router.attach.joining import join
from amqpmesh.router.attach.reattaching import (
    bring,
    end_undecided,
    fitting,
    in_common,
    is_incomplete,
    is_known,
    room_of_map,
    settle_rest,
    states,
)
from amqpmesh.router.attach.resolve import is_cut_off
from amqpmesh.router.attach.resumable import check_terms, check_ungranted
from amqpmesh.router.attach.rounds import Round
from amqpmesh.router.attach.stealing import Claim, Claims
from amqpmesh.router.attach.terms import COPY, answer_receiver, answer_sender
from amqpmesh.router.attach.thefts import Thefts
from amqpmesh.router.attach.told_outcomes import ToldOutcomes
from amqpmesh.router.credit.anonymous_window import SharedWindow
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.delivery.link_loss import suspend
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.kernel import ACCEPTED, is_terminal, state_kind, told_outcome
from amqpmesh.router.memory.retained import is_too_much, size_of_attach
from amqpmesh.router.model.blocked import why_address, why_node
from amqpmesh.router.model.foreign_links import Foreign, ForeignIncomingLink, ForeignOutgoingLink, name_of
from amqpmesh.router.model.lane import tenant_of_attach
from amqpmesh.router.model.lasting_sources import OurMap, SuspendedSource
from amqpmesh.router.model.lasting_targets import SuspendedTarget
from amqpmesh.router.model.lasting_termini import is_lasting
from amqpmesh.router.model.links import IncomingLink, LinkKey, OutgoingLink
from amqpmesh.router.model.node import DynamicNode, IngressNode
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.small_set import with_item
from amqpmesh.router.statistics.common import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.attach.resolve import Lookup
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Pool
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import Grant, SuspendedTerminus
    from amqpmesh.router.model.node import LocalNode, Node

_NEVER: Final = TerminusExpiryPolicy.NEVER


class Attaching:
    """The answers of a router to the attaches of peers."""

    def __init__(self, context: Context, lookup: Lookup) -> None:
        self._context = context
        self._lookup = lookup
        self._claims = Claims(context)
        self.thefts = Thefts(context)
        self.told = ToldOutcomes(context)
        self.rounds: dict[IncomingLink, Round] = {}

    def answer(self, record: ConnectionRecord, event: LinkAttached) -> None:
        """Answer a peer's attach.

        Raises: ProtocolError(SESSION, resource-limit-exceeded): the peer has not detached too many ended links.
        """
        endpoint, attach = event.link, event.attach
        octets = size_of_attach(attach, event.alike)
        if len(record.engine.channels.incoming) > 1 or len(endpoint.session.links) > record.limits.links:
            self._check_handles(record)
        key = self._key(record, endpoint)
        known = self._context.link_names.having(key)
        claim = endpoint.context if isinstance(endpoint.context, Claim) else None
        # The same link on this connection. If the peer resumes, the new link takes over its live deliveries.
        resumed: list[IncomingLink | OutgoingLink] = []
        is_counted = False
        try:
            if octets and is_too_much(self._context.memory, record, octets):
                raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, "names and addresses are too long")
            if attach.incomplete_unsettled and not self._has_history(record, endpoint, attach, key):
                # Neither side may send new deliveries until both maps are complete: the peer attaches again (§2.7.3).
                endpoint.attach(
                    source=attach.source,
                    target=attach.target,
                    unsettled=self._unsettled(record, endpoint, attach),
                )
                endpoint.detach(closed=False)
                return
            if len(record.incoming) + len(record.outgoing) + len(record.detached_unsettled) >= record.limits.links:
                raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, f"more than {record.limits.links} links")
            holders = [each.connection for each in known if each.connection is not record] if known else None
            # A peer with an unsettled map resumes its own link. So it steals the link at once, as §2.6.1 says.
            asks = attach.unsettled is None or self.thefts.has_twins(key)
            if holders and claim is None and asks and self._context.config.theft_wait:
                lifetime_of(attach.target if isinstance(endpoint, Receiver) else attach.source)
                self._claims.ask(Claim(record, endpoint, attach, octets), holders)
                return
            robbed = [each for each in known if _is_robbed(record, claim, each)] if known else []
            if record.usage is not None:
                caps.attach(self._context, record, sends=isinstance(endpoint, Receiver), replaces=bool(robbed))
            is_counted = True
            if attach.unsettled is not None:
                resumed = [
                    each
                    for each in known
                    if each.connection is record or (is_lasting(each) and _is_robbed(record, claim, each))
                ]
                for each in resumed:
                    if each.connection is not record:
                        self.thefts.watch(key, record, each.connection)
                    suspend(self._context, each)
            kept = self._context.termini.suspended(key)
            if kept is not None:
                kept = self._kept(key, kept)
                if kept is not None and attach.unsettled is not None:
                    self._context.termini.move_now(kept)
            if isinstance(endpoint, Receiver):
                assert kept is None or isinstance(kept, SuspendedTarget)
                link: IncomingLink | OutgoingLink = self._producer(record, endpoint, event, kept)
            else:
                assert isinstance(endpoint, Sender)
                assert kept is None or isinstance(kept, SuspendedSource)
                link = self._consumer(record, endpoint, event, robbed, kept)
        except (RefusedError, ProtocolError) as refusal:
            if is_counted:
                caps.give_back(record, sends=isinstance(endpoint, Receiver))
            refused: RefusedError | None = None
            if isinstance(refusal, RefusedError):
                error, refused = refusal.error, refusal
            elif refusal.scope is Scope.LINK:  # an error in its unsettled map, which is read only now
                error = Error(condition=refusal.condition, description=str(refusal))
            else:
                raise
            for each in resumed:
                self.thefts.steal(record, each)
            endpoint.refuse(error)
            self.refused(record, endpoint, error, refused)
            return
        endpoint.context = link
        if octets:
            link.remembered = octets
            record.account.add(octets)
        if self._context.recording is not None:
            self._context.recording.up(link)
        others = [*resumed, *self._context.link_names.having(key)] if known or resumed else None
        self._context.link_names.add(key, link)
        for holder in others or ():
            if _is_robbed(record, claim, holder):
                self.thefts.steal(record, holder)
            else:
                self.thefts.log_shared(record, holder)

    def _kept(self, key: LinkKey, kept: SuspendedTerminus) -> SuspendedTerminus | None:
        """Return the terminus that is kept for a link; None: it may be another client's."""
        if self.thefts.has_twins(key):
            self._context.termini.end(kept, "two clients have its name")
            return None
        return kept

    def _has_history(self, record: ConnectionRecord, endpoint: Link, attach: Attach, key: LinkKey) -> bool:
        """Tell whether a peer may resume deliveries of a former link, in rounds."""
        if self._context.termini.suspended(key) is not None:
            return attach.unsettled is not None
        is_sender = isinstance(endpoint, Receiver)
        return (is_sender and is_known(record, endpoint)) or any(
            is_lasting(each) or (is_sender and each.connection is record)
            for each in self._context.link_names.having(key)
        )

    def _grant(
        self,
        record: ConnectionRecord,
        endpoint: Receiver | Sender,
        own: Source | Target,
        node: Node | None,
        kept: SuspendedTerminus | None,
    ) -> Grant | None:
        """Return the time that our end of a link is kept; None: it goes with its link.

        Args: own: the terminus at this router, as the peer asks for it. kept: as of `_producer`.
        Raises: RefusedError: the address takes only links that are granted some time, and this one is not.
        """
        grant: Grant | None = None
        # Most links ask for no time: nothing else needs to be known of them.
        if (own.timeout or own.expiry_policy is _NEVER) and not self.thefts.has_twins(self._key(record, endpoint)):
            grant = self._context.termini.grant(record, endpoint, own, node, kept)
        if grant is None:
            check_ungranted(record, node)
        return grant

    def _unsettled(self, record: ConnectionRecord, endpoint: Link, attach: Attach) -> Mapping[bytes, object] | None:
        """Return the unsettled map that answers an incomplete one of a peer that resumes nothing here."""
        if isinstance(endpoint, Receiver) or not is_known(record, endpoint):
            return None
        end_undecided(self._context, record, endpoint, attach)
        return {}

    def refused(
        self, record: ConnectionRecord, endpoint: Link, error: Error, refusal: RefusedError | None = None
    ) -> None:
        """Log and record that a peer's attach was refused.

        Args: refusal: has the reason for the log; None: that is the description of the error.
        Raises: as `answer`.
        """
        reason = error.description if refusal is None else refusal.reason
        self._context.log.info(
            "link refused",
            connection=record.number,
            peer=record.host,
            link=endpoint.name,
            condition=error.condition,
            reason=reason,
        )
        audit = self._context.audit
        if audit is not None:
            rule = {} if refusal is None else refusal.rule
            audit.of("link refused", record, reason=reason, link=endpoint.name, condition=error.condition, rule=rule)
        if self._context.recording is not None:
            self._context.recording.refused(endpoint, record, error)
        endpoint.let_go()
        self._check_handles(record)

    @staticmethod
    def _check_handles(record: ConnectionRecord) -> None:
        """Check the number of handles that a peer uses: an ended link keeps its handle until the peer detaches it.

        Raises: ProtocolError(SESSION, resource-limit-exceeded): the peer uses more than twice as many handles as it
            may have links.
        """
        handles = 0
        for each in record.engine.channels.incoming.values():
            handles += len(each.links)
        if handles > 2 * record.limits.links:
            description = f"more than {record.limits.links} links are not detached"
            raise ProtocolError(Scope.SESSION, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description)

    # ---------------------------------------------------------------------------------------------------- producers

    def _producer(
        self, record: ConnectionRecord, endpoint: Receiver, event: LinkAttached, kept: SuspendedTarget | None
    ) -> IncomingLink:
        """Attach a sender. Args: kept: the terminus that it has here from a former connection; None: none."""
        context, attach = self._context, event.attach
        if attach.target is None and kept is not None and attach.unsettled is not None:
            # The sender does not know its target any more: it asks for the one that is kept (§2.6.13).
            attach = event.attach = endpoint.remote = replace(attach, target=kept.grant.target)
        target = attach.target
        if isinstance(target, Coordinator):
            raise RefusedError(AmqpCondition.NOT_IMPLEMENTED, "this router coordinates no transactions")
        if target is None:
            raise RefusedError(AmqpCondition.NOT_FOUND, "the link has no target, and none is known by its name")
        assert isinstance(target, Target)
        node: Node | None
        to: str | None = None
        container: str | None = None
        foreign: Foreign | None = None
        if target.dynamic:
            check(context, record, May.DYNAMIC)
            node = make_dynamic(context, record, endpoint, lifetime_of(target))
            address: str | None = f"{node.name}@{context.id}"
        elif target.address is None:
            # The anonymous terminus: each message goes to the address in its `to`.
            check(context, record, May.ANONYMOUS)
            node, address = None, None
        else:
            address = target.address
            place = self._lookup.place(address)
            check_address(context, record, place.name, place.container, sends=True)
            tenant = tenant_of_attach(record, attach)
            owner = self._lookup.owner(tenant, place, sends=True)
            check_terms(context, record, owner.place, attach, target)
            node = self._lookup.target(record, attach, owner)
            if node is None:
                to, container = place.address if place.name else None, place.container
            elif node.tenant != tenant:
                foreign = Foreign(place.address, owner.crossing)
        pool: Pool | FixedCredit
        if node is None:
            pool = SharedWindow(record.limits.anonymous_window)
        else:
            pool = node.pool
        is_resumed = attach.unsettled is not None and (kept is not None or is_known(record, endpoint))
        both, rest = in_common(context, record, endpoint, attach, kept)
        room = room_of_map(endpoint, attach)
        named = fitting(both, room)
        is_part = len(named) < len(both)
        is_round = is_resumed and (is_part or is_incomplete(attach))
        if is_round:
            pool = FixedCredit(0)  # for what is resumed alone
        # Without a terminus that remembers them nothing is known of the sender's deliveries, which only null says.
        unsettled = states(named, room) if is_resumed else None
        if attach.unsettled and not is_resumed:
            context.termini.counts.in_doubt += len(attach.unsettled)
        grant = self._grant(record, endpoint, target, node, kept)
        try:
            limit = caps.message_size(record) or None
            answer_sender(endpoint, event, address, node, limit, unsettled, grant, is_incomplete=is_part)
        except Exception:
            if grant is not None:
                context.termini.take_back(grant)
            raise
        incoming = (IncomingLink if foreign is None else ForeignIncomingLink)(
            record, endpoint, node, pool, number=context.next_link_number(), now=context.now, to=to, container=container
        )
        if isinstance(incoming, ForeignIncomingLink):
            incoming.foreign = foreign
        incoming.grant = grant
        bring(context, both, incoming, kept, last=named)
        if named:
            pool.let_resume(incoming.credit_sink, len(named))
        if rest:
            context.chores.do(settle_rest(context, rest, kept))
        self.told.tell(incoming, named)
        if kept is not None:
            if is_resumed:
                context.termini.resumed(kept)
            else:
                context.termini.end(kept, "its sender cannot resume it, or does not want to")
        if isinstance(pool, FixedCredit):
            pool.set_suspended(context.draining or is_cut_off(context, incoming))
        record.incoming[incoming] = None
        if is_judged(context, record):
            limit_rates(context, incoming, record.rights)
            check_user_ids(incoming, record.rights)
        if is_round:
            tells = not both or any(is_outcome(told_outcome(each)) for each in named.values())
            Round(context, self.rounds, incoming, named, tells=tells)
        elif node is not None:
            node.incoming = with_item(node.incoming, incoming)
            share_credit(context, node, incoming)
            context.touch(node)
            if not node.has_consumers:
                context.log.info(
                    "sender waits",
                    connection=record.number,
                    link=endpoint.name,
                    peer=record.host,
                    address=name_of(incoming),
                    reason=_no_credit_reason(context, node).value,
                )
        context.touch_input(incoming)
        return incoming

    # ---------------------------------------------------------------------------------------------------- consumers

    def _consumer(
        self,
        record: ConnectionRecord,
        endpoint: Sender,
        event: LinkAttached,
        robbed: list[IncomingLink | OutgoingLink],
        kept: SuspendedSource | None,
    ) -> OutgoingLink:
        """Attach a receiver. Args: robbed: links of its name that end at once. kept: as of `_producer`."""
        context, attach = self._context, event.attach
        if attach.source is None and kept is not None and attach.unsettled is not None:
            # As for senders: it asks for the source that is kept.
            attach = event.attach = endpoint.remote = replace(attach, source=kept.grant.source)
        source = attach.source
        if source is None:
            raise RefusedError(AmqpCondition.NOT_FOUND, "the link has no source, and none is known by its name")
        assert isinstance(source, Source)
        node: LocalNode
        foreign: Foreign | None = None
        copy = source.distribution_mode is COPY
        if copy:
            check(context, record, May.COPY)
        if source.dynamic:
            check(context, record, May.DYNAMIC)
            node = make_dynamic(context, record, endpoint, lifetime_of(source))
            named = f"{node.name}@{context.id}"
        elif source.address is None:
            raise RefusedError(AmqpCondition.INVALID_FIELD, "the source has no address and is not dynamic")
        else:
            named = source.address
            place = self._lookup.place(named)
            check_address(context, record, place.name, place.container, sends=False)
            owner = self._lookup.owner(record.peer.tenant, place, sends=False)
            check_terms(context, record, owner.place, attach, source)
            node = self._lookup.source(record, attach, owner)
            if owner.crossing is not None:
                foreign = Foreign(place.address, owner.crossing)
            if isinstance(node, DynamicNode) and not (node.is_open or node.maker is record):
                description = "only its maker may receive from the node of a dynamic source"
                raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, description)
            # The maker of a dynamic node names no address (§3.5.3).
            if place.is_reserved and not (place.is_published or isinstance(node, DynamicNode) or record.own):
                raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, "this address is a router's own")
        default = encode_composite(source.default_outcome) if source.default_outcome is not None else None
        if default is not None and (not is_terminal(default) or state_kind(default) == ACCEPTED):
            # Only a receiver may accept a message: a router never accepts one for a receiver that is gone.
            default = None
        most = None if record.usage is None else caps.unsettled(context, record, node.config.max_unsettled, robbed)
        grant = None if copy else self._grant(record, endpoint, source, node, kept)
        ours: OurMap | None = None
        try:
            if attach.unsettled is None:
                pass
            elif kept is not None:
                ours = None if copy else context.termini.sources.compare(kept, endpoint, attach)
            elif is_known(record, endpoint):
                end_undecided(context, record, endpoint, attach)
                ours = OurMap({}, is_incomplete=False)
            if attach.unsettled and ours is None:
                context.termini.counts.in_doubt += len(attach.unsettled)
            answer_receiver(endpoint, event, named, node, ours, grant, with_default=default is not None)
        except Exception:
            if grant is not None:
                context.termini.take_back(grant)
            raise
        outgoing = (OutgoingLink if foreign is None else ForeignOutgoingLink)(
            record,
            endpoint,
            node,
            copy=copy,
            default_outcome=default,
            max_unsettled=node.config.max_unsettled if most is None else most,
            number=context.next_link_number(),
            now=context.now,
        )
        if isinstance(outgoing, ForeignOutgoingLink):
            outgoing.foreign = foreign
        if record.usage is not None and most is not None:
            record.usage.begin_lease(outgoing, most)
        record.outgoing[outgoing] = None
        if grant is not None:
            outgoing.grant = grant if default is None else grant._replace(default_outcome=default)
            if WHOLE_MAP not in attach.offered_capabilities:
                endpoint.flow_state.keeps = context.termini.sources.keeping(grant)
        if kept is None or ours is None or not context.termini.sources.bring(kept, outgoing):
            join(context, outgoing)
        if kept is not None:
            if ours is not None:
                context.termini.resumed(kept)
            else:
                context.termini.end(kept, "its receiver cannot resume it, or does not want to")
        return outgoing

    # ------------------------------------------------------------------------------------------------------- stealing

    def _key(self, record: ConnectionRecord, endpoint: Link) -> LinkKey:
        """Return the identity of a link between two containers (§2.6.1).

        A container-id proves nothing. So it only counts together with the tenant, the virtual host, and the user or
        else the host.
        """
        peer = record.peer
        role = endpoint.role is SENDER
        return peer.tenant, peer.hostname or "", record.principal, peer.container_id, endpoint.name, role


def _is_robbed(record: ConnectionRecord, claim: Claim | None, holder: IncomingLink | OutgoingLink) -> bool:
    """Tell whether a link ends because a peer attaches it again. Args: claim: of the attach; None: none was needed."""
    return claim is None or holder.connection is record or holder.connection in claim.silent


def _no_credit_reason(context: Context, node: Node) -> Reason:
    """Return the reason why a sender gets no credit for a node without consumers."""
    if context.routes.is_in_mesh and not isinstance(node, IngressNode):
        reason = why_node(node, draining=context.draining)
    else:
        seen = context.seen_as(node)
        consumers = context.routes.consumer_routers(seen.tenant, seen.name)
        reason = why_address(seen, draining=context.draining, consumers=consumers)
    return reason or Reason.NO_RECEIVER
