"""The record of a lost connection, as long as links of it are kept for their peer (§2.6.13)."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast

from amqpmesh.router.amqp.dismantling import gone_session
from amqpmesh.router.model.connections import ConnectionRecord

#: The links of connections that are lost; nothing is ever added to them.
_NONE: Final[dict[Any, Any]] = {}


class LostConnection:
    """In place of the `ConnectionRecord` of a lost connection: the same fields, most of them with one value for all.

    A record has 400 octets, and refers to more. A peer may have one connection for each link.
    """

    __slots__ = (
        "__weakref__",
        "account",
        "connected_at",
        "engine",
        "freed",
        "host",
        "limits",
        "listener",
        "number",
        "peer",
        "rights",
        "token",
    )

    certificate: ClassVar = None
    certificate_subject: ClassVar = None
    certificate_user: ClassVar = None
    cipher: ClassVar = None
    closed: ClassVar = None
    congested: ClassVar = False
    connector: ClassVar = None
    contender: ClassVar = None
    cost: ClassVar = None
    counted: ClassVar = 0
    cut: ClassVar = False
    detached_unsettled: ClassVar = _NONE
    doubtful: ClassVar = False
    incoming: ClassVar = _NONE
    inside: ClassVar = False
    is_handed_over: ClassVar = False
    judged: ClassVar = None
    lanes_of: ClassVar = None
    login: ClassVar = None
    lost: ClassVar = True
    octets_in: ClassVar = 0
    octets_out: ClassVar = 0
    outgoing: ClassVar = _NONE
    own: ClassVar = False
    remembered: ClassVar = 0
    role: ClassVar = "normal"
    stalled: ClassVar = _NONE
    stands_by: ClassVar = False
    tls: ClassVar = None
    tls_requested: ClassVar = None
    trace_frames: ClassVar = False
    unfinished: ClassVar = None
    unsettled_after_detach: ClassVar = _NONE
    usage: ClassVar = None  # it has left

    def __init__(self, record: ConnectionRecord) -> None:
        """Args: record: of a client's connection, that a listener has accepted."""
        self.number = record.number
        self.host = record.host
        self.peer = record.peer
        self.listener = record.listener
        self.limits = record.limits
        self.connected_at = record.connected_at
        self.rights = record.rights
        self.token = record.token
        self.freed = record.freed
        self.engine = gone_session(record.engine.remote_max_frame_size).connection
        #: What is yet to be counted for it counts for the router alone.
        self.account = record.account.whole or record.account

    @property
    def as_record(self) -> ConnectionRecord:
        """It, where a record is asked for."""
        return cast("ConnectionRecord", self)

    # These ask for nothing but the fields above.
    held = ConnectionRecord.held
    held_frames = ConnectionRecord.held_frames
    holder = ConnectionRecord.holder
    is_congested = ConnectionRecord.is_congested
    origin = ConnectionRecord.origin
    principal = ConnectionRecord.principal
    unwritten = ConnectionRecord.unwritten

    @property
    def output_backlog(self) -> int:
        """The limit of unwritten octets, of which there are none."""
        return self.limits.output_backlog

    @property
    def strict_annotations(self) -> bool:
        """True if the peer's messages must not have reserved annotations (§3.2.10)."""
        return self.listener is not None and self.listener.strict_annotations
