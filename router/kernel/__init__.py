"""The kernel: the handling of transfers and dispositions, in typed Python that runs uncompiled or compiled.

This module is the only door: code outside of this room imports from here, and never from a part. A name with a leading
underscore is private to the kernel, and invisible to Python in the compiled one.
"""

from typing import Final

from amqpmesh.router.kernel.binding import Bound, bind

#: The kernel that runs in this process. The imports below take it.
BOUND: Final[Bound] = bind()

from amqpmesh.router.kernel.anonymous_routes import MOST_OCTETS, MOST_ROUTES, AnonymousRoutes
from amqpmesh.router.kernel.away import (
    end_away,
    expanded,
    keep_outcomes,
    note_mode,
    set_aside,
    settle_away,
    take_up,
    told_outcome,
)
from amqpmesh.router.kernel.backpressure import IMPATIENCE, LONGEST, ONE_WAY, PACE, PATIENCE, SMALL, goes_by, may_go_on
from amqpmesh.router.kernel.budget import OVERHEAD, Budget, Chunk
from amqpmesh.router.kernel.client_batch import ReceivedBatch
from amqpmesh.router.kernel.connection_endpoint import KernelConnection, write_grants
from amqpmesh.router.kernel.credit_counting import count_relayed
from amqpmesh.router.kernel.credit_dealing import deal
from amqpmesh.router.kernel.credit_pool import Pool
from amqpmesh.router.kernel.credit_sinks import MANY_SENDERS, CreditSink, Grant, allowed, credit_ahead, granted, release
from amqpmesh.router.kernel.credit_sources import CreditSource
from amqpmesh.router.kernel.delivery_keys import onward
from amqpmesh.router.kernel.dispositions import PendingDisposition, apply_more, receive_disposition
from amqpmesh.router.kernel.encoded_states import (
    ACCEPTED,
    ACCEPTED_STATE,
    DECLARED,
    EXTENSION,
    FAILED_STATE,
    LONG_STATE,
    MODIFIED,
    RECEIVED,
    REJECTED,
    RELEASED,
    RELEASED_STATE,
    TRANSACTIONAL,
    UNDELIVERABLE_STATE,
    is_terminal,
    state_kind,
)
from amqpmesh.router.kernel.encoded_values import descriptor_code, skip
from amqpmesh.router.kernel.fast_deliveries import FastDelivery, expand, expand_link
from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
from amqpmesh.router.kernel.fast_path import relay_frames
from amqpmesh.router.kernel.fast_route import ALL, FIRST, LEAST, NO_LINKS, TURNS, FastRoute
from amqpmesh.router.kernel.fast_settlement import settle_put_off
from amqpmesh.router.kernel.fast_shares import FastShare
from amqpmesh.router.kernel.field_lists import FieldList, ListField
from amqpmesh.router.kernel.flow_control import ANY_EFFECT, NEVER_SENT, WINDOW_OPENED, apply_flow
from amqpmesh.router.kernel.frame_buffer import Frame, FrameReader
from amqpmesh.router.kernel.frame_fields import MAX_TAG, DispositionFrame, DispositionRun, FlowFrame, TransferFrame
from amqpmesh.router.kernel.frame_reading import frame_size, read_flow, skim_disposition, skim_transfer, split_attach
from amqpmesh.router.kernel.frame_writing import (
    OUTGOING_WINDOW,
    write_disposition,
    write_dispositions,
    write_flow,
    write_transfer,
)
from amqpmesh.router.kernel.going_ahead import (
    AHEAD_AT_ONCE,
    AHEAD_EACH,
    AHEAD_PAUSE,
    AHEAD_PERIOD,
    FEW_TAKEN,
    pause_ahead,
)
from amqpmesh.router.kernel.head_sections import (
    PASS_ALL,
    PASS_NONE,
    PASS_THEIRS,
    Head,
    patch_ttl,
    read_expiry,
    read_head,
    read_header_info,
    read_to,
)
from amqpmesh.router.kernel.held_back import HELD_AT_ONCE, HeldDelivery, take_held
from amqpmesh.router.kernel.hop_recorder import UNRECORDED, Recorder
from amqpmesh.router.kernel.kept_messages import Keeper, SentMessages
from amqpmesh.router.kernel.ledger import Delivery, Ledger
from amqpmesh.router.kernel.link_endpoint import LATENCY_BOUNDS, KernelLink, disable_fast_path, enable_fast_path
from amqpmesh.router.kernel.link_sweep import Sweep, abandon, end_link, sweep
from amqpmesh.router.kernel.message_ids import LONGEST_ID, read_message_id
from amqpmesh.router.kernel.outcome_steps import (
    SETTLE_RECEIVER,
    SETTLE_SENDER,
    TELL_RECEIVER,
    TELL_SENDER,
    outcome_step,
)
from amqpmesh.router.kernel.parked_links import expand_sent, left_in_second, parked_ids, sent_tag
from amqpmesh.router.kernel.rate_meter import RateMeter, TokenBucket
from amqpmesh.router.kernel.relays import Leg, Relay
from amqpmesh.router.kernel.router_state import UNIT, UNIT_IN_MESH, KernelRouter
from amqpmesh.router.kernel.section_walk import SectionWalk
from amqpmesh.router.kernel.seen_messages import (
    JOINED_OCTETS,
    SEEN_OCTETS,
    WINDOWS_PART,
    MessageWindow,
    MessageWindows,
    SeenMessage,
)
from amqpmesh.router.kernel.serial import MANY, serial_add, serial_distance
from amqpmesh.router.kernel.session_endpoint import KernelSession
from amqpmesh.router.kernel.small_sets import SmallSet, first, shared, with_item, with_item_first, without_item
from amqpmesh.router.kernel.trace_contexts import ALL_IDS, MOST_KEYS, TraceContexts, read_trace_context
from amqpmesh.router.kernel.transfer_accounting import (
    discard_transfer,
    dispose,
    forget,
    receive_transfer,
    resume_transfer,
    send_transfer,
)
from amqpmesh.router.kernel.transit_routes import SettledRoute, TransitRoute
from amqpmesh.router.kernel.tree_history import TreeHistory
from amqpmesh.router.kernel.user_ids import UserIdRule, read_user_id
from amqpmesh.router.kernel.violations import CONNECTION, LINK, SESSION, Incomplete, Violation

__all__ = [
    "ACCEPTED",
    "ACCEPTED_STATE",
    "AHEAD_AT_ONCE",
    "AHEAD_EACH",
    "AHEAD_PAUSE",
    "AHEAD_PERIOD",
    "ALL",
    "ALL_IDS",
    "ANY_EFFECT",
    "BOUND",
    "CONNECTION",
    "DECLARED",
    "EXTENSION",
    "FAILED_STATE",
    "FEW_TAKEN",
    "FIRST",
    "HELD_AT_ONCE",
    "IMPATIENCE",
    "JOINED_OCTETS",
    "LATENCY_BOUNDS",
    "LEAST",
    "LINK",
    "LONGEST",
    "LONGEST_ID",
    "LONG_STATE",
    "MANY",
    "MANY_SENDERS",
    "MAX_TAG",
    "MODIFIED",
    "MOST_KEYS",
    "MOST_OCTETS",
    "MOST_ROUTES",
    "NEVER_SENT",
    "NO_LINKS",
    "ONE_WAY",
    "OUTGOING_WINDOW",
    "OVERHEAD",
    "PACE",
    "PASS_ALL",
    "PASS_NONE",
    "PASS_THEIRS",
    "PATIENCE",
    "RECEIVED",
    "REJECTED",
    "RELEASED",
    "RELEASED_STATE",
    "SEEN_OCTETS",
    "SESSION",
    "SETTLE_RECEIVER",
    "SETTLE_SENDER",
    "SMALL",
    "TELL_RECEIVER",
    "TELL_SENDER",
    "TRANSACTIONAL",
    "TURNS",
    "UNDELIVERABLE_STATE",
    "UNIT",
    "UNIT_IN_MESH",
    "UNRECORDED",
    "WINDOWS_PART",
    "WINDOW_OPENED",
    "AnonymousRoutes",
    "Budget",
    "Chunk",
    "CreditSink",
    "CreditSource",
    "Delivery",
    "DispositionFrame",
    "DispositionRun",
    "FastDelivery",
    "FastLeg",
    "FastMulticast",
    "FastRoute",
    "FastShare",
    "FieldList",
    "FlowFrame",
    "Frame",
    "FrameReader",
    "Grant",
    "Head",
    "HeldDelivery",
    "Incomplete",
    "Keeper",
    "KernelConnection",
    "KernelLink",
    "KernelRouter",
    "KernelSession",
    "Ledger",
    "Leg",
    "ListField",
    "MessageWindow",
    "MessageWindows",
    "PendingDisposition",
    "Pool",
    "RateMeter",
    "ReceivedBatch",
    "Recorder",
    "Relay",
    "SectionWalk",
    "SeenMessage",
    "SentMessages",
    "SettledRoute",
    "SmallSet",
    "Sweep",
    "TokenBucket",
    "TraceContexts",
    "TransferFrame",
    "TransitRoute",
    "TreeHistory",
    "UserIdRule",
    "Violation",
    "abandon",
    "allowed",
    "apply_flow",
    "apply_more",
    "count_relayed",
    "credit_ahead",
    "deal",
    "descriptor_code",
    "disable_fast_path",
    "discard_transfer",
    "dispose",
    "enable_fast_path",
    "end_away",
    "end_link",
    "expand",
    "expand_link",
    "expand_sent",
    "expanded",
    "first",
    "forget",
    "frame_size",
    "goes_by",
    "granted",
    "is_terminal",
    "keep_outcomes",
    "left_in_second",
    "may_go_on",
    "note_mode",
    "onward",
    "outcome_step",
    "parked_ids",
    "patch_ttl",
    "pause_ahead",
    "read_expiry",
    "read_flow",
    "read_head",
    "read_header_info",
    "read_message_id",
    "read_to",
    "read_trace_context",
    "read_user_id",
    "receive_disposition",
    "receive_transfer",
    "relay_frames",
    "release",
    "resume_transfer",
    "send_transfer",
    "sent_tag",
    "serial_add",
    "serial_distance",
    "set_aside",
    "settle_away",
    "settle_put_off",
    "shared",
    "skim_disposition",
    "skim_transfer",
    "skip",
    "split_attach",
    "state_kind",
    "sweep",
    "take_held",
    "take_up",
    "told_outcome",
    "with_item",
    "with_item_first",
    "without_item",
    "write_disposition",
    "write_dispositions",
    "write_flow",
    "write_grants",
    "write_transfer",
]
