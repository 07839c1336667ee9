"""User-ids of messages, checked where they enter the mesh, as the policy asks (§3.2.4, user-id)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.kernel import Incomplete, SectionWalk, Violation, read_user_id
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Head, Relay
    from amqpmesh.router.model.links import IncomingLink

_DESCRIPTION: Final = "not permitted"
_LONGEST: Final = 256
"""Octets of a user-id in the log."""


def foreign_user_id(
    context: Context, relay: Relay, incoming: IncomingLink, data: bytes, head: Head | None
) -> RefusedError | None:
    """Return the reason to refuse a message for its user-id; None: its link has no rule, or the rule permits it.

    A message in which a user-id could hide is refused, too: one of another format, or with sections that are malformed
    or out of order.

    Args: data: the message from its beginning. head: of it; None: it is not of message-format 0.
    Raises: Incomplete: `data` ends before the user-id, and more of the message follows.
    """
    rule = incoming.endpoint.flow_state.user_ids
    if rule is None:
        return None
    rule.walk, rule.skip = None, 0
    if head is None:
        reason = "a user-id cannot be checked in a message-format other than 0"
    elif head.irregular:
        reason = "its head sections are malformed, or out of order"
    else:
        walk = SectionWalk()
        try:
            found = read_user_id(data, head.bare_at)
            walk.feed(data)
            if relay.complete:
                walk.finish()
        except Violation as violation:
            reason = violation.description
        except Incomplete:
            if not relay.complete:
                raise
            reason = "its properties are incomplete"
        else:
            if rule.permits(found):
                if not relay.complete:
                    rule.walk, rule.skip = walk, walk.skip
                return None
            shown = "absence of a user-id" if not found else f"user-id {found[:_LONGEST].decode(errors='replace')}"
            groups = "none" if incoming.connection.rights is None else ", ".join(incoming.connection.rights.groups)
            reason = f"no group permits the {shown}; its groups: {groups}"
    return _refusal(context, incoming, reason)


def hidden_user_id(context: Context, incoming: IncomingLink, data: bytes, *, complete: bool) -> RefusedError | None:
    """Return the reason to refuse a message the first part of which was permitted; None: no user-id can hide in it.

    Args: data: what comes next of it. complete: it ends with this.
    """
    rule = incoming.endpoint.flow_state.user_ids
    if rule is None or not isinstance(rule.walk, SectionWalk):
        return None
    walk = rule.walk
    walk.skip = rule.skip
    try:
        walk.feed(data)
        if complete:
            walk.finish()
    except Violation as violation:
        rule.walk = None
        return _refusal(context, incoming, violation.description)
    rule.walk, rule.skip = None if complete else walk, walk.skip
    return None


def _refusal(context: Context, incoming: IncomingLink, reason: str) -> RefusedError:
    context.count_denied(incoming.connection.peer.tenant)
    return RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, _DESCRIPTION, reason=reason, rule={"right": "user_id"})
