# The C types of all parts of the compiled kernel. Names that are missing here are Python objects.
# Hot functions that return nothing return a bint here: after one of type void the caller must ask for an error.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject_GenericSetAttr
from libc.string cimport memcpy

# In Python they are in uncompiled.py.
cdef inline Py_ssize_t grow(bytearray out, Py_ssize_t octets) except -1:
    cdef Py_ssize_t at = len(out)
    PyByteArray_Resize(out, at + octets)
    return at

cdef inline void copy(bytearray out, Py_ssize_t at, bytes data, Py_ssize_t begin, Py_ssize_t end) noexcept:
    memcpy(PyByteArray_AS_STRING(out) + at, PyBytes_AS_STRING(data) + begin, end - begin)

# Like object.__setattr__: past the `__setattr__` of the value's class.
cdef inline bint set_field(object value, str name, object item) except -1:
    PyObject_GenericSetAttr(value, name, item)
    return True

cdef long _AWAY
cdef long _MASK
cdef long _HALF
cdef long _SMALLEST
cdef long _TRANSFER_CODE
cdef long _DISPOSITION_CODE
cdef long _ATTACH_CODE
cdef long _FLOW_CODE
cdef long _OUTGOING_WINDOW
cdef long _COPIED
cdef long _WIDE
cdef long _HELD_AT_ONCE
cdef long _WIDENING
cdef double _BESIDE, _PATIENCE, _PACE, _PERIOD, _PAUSE, _OF_ALL
cdef long _AHEAD_EACH
cdef long _FEW_TAKEN, _NARROW
cdef long _SHORT
cdef long _MAX_TAG
cdef long _LONG_STATE
cdef long _HEADER
cdef long _DELIVERY_ANNOTATIONS
cdef long _PASS_THEIRS
cdef long _PASS_NONE
cdef long _PASS_ALL
cdef long _MESSAGE_ANNOTATIONS
cdef long _PROPERTIES, _APPLICATION_PROPERTIES, _DATA, _SEQUENCE, _VALUE, _FOOTER
cdef long _NESTED
cdef long _MOST_ROUTES
cdef long _MOST_OCTETS
cdef long _ENTRY
cdef long _UNIT
cdef long _MOST
cdef long _KEY
cdef long _NUMBER
cdef long _SETTLED
cdef long _BEGAN
cdef long _TIMED
cdef long _ANSWERED
cdef unsigned long _KEY_UNIT
cdef unsigned long _WIDE_UNIT
cdef long _LOW_TIME
cdef long _LOW_SIZE
cdef long _LOW_ANSWER
cdef long _LOW_CONDITION
cdef long _SPREAD
cdef long _LOOKS
cdef long _EXTENSION
cdef long _RECEIVED
cdef long _DECLARED
cdef long _TRANSACTIONAL
cdef long _ACCEPTED
cdef long _REJECTED
cdef long _RELEASED
cdef long _MODIFIED
cdef long _FIRST
cdef long _LEAST
cdef long _ALL
cdef long _MOST_WRITTEN
cdef long _LEGS_A_DELIVERY
cdef long _LEGS_AT_ONCE
cdef long _SETTLE_SENDER
cdef long _SETTLE_RECEIVER
cdef long _TELL_RECEIVER
cdef long _STEPS
cdef long _NEVER_SENT
cdef long _WINDOW_OPENED
cdef long _IDS_SKIPPED
cdef long _ECHO
cdef long _CREDIT_RAISED
cdef long _CREDIT_LOWERED
cdef long _DRAIN
cdef long _PART
cdef long _PASSED
cdef long _SWEPT_SLOTS
cdef long _SWEPT_FAST
cdef long _SWEPT_DELIVERIES
cdef long _SLOTS_AT_ONCE
cdef long _ROOM
cdef long _NO_LIMIT
cdef double _ERROR, _SLOWLY
cdef long _LEAST_SLOTS
cdef long _KEPT_SLOTS
cdef bytes _ACCEPTED_STATE
cdef bytes _OURS
cdef bytes _TRACEPARENT, _TRACESTATE
cdef long _MOST_KEYS, _PARENT_SIZE
cdef bytes _DIGITS
cdef tuple _HEADS
cdef long _FRAME_HEAD
cdef tuple _OCTETS
cdef dict _STATES

cdef long _UINT
cdef long _ULONG
cdef long _USHORT
cdef long _UBYTE
cdef long _BOOLEAN
cdef long _STRING
cdef long _BINARY
cdef long _DESCRIBED

cdef class ListField:
    cdef str _name
    cdef long _kind
    cdef object _readers, _write, _default
    cdef bint _mandatory
    cdef bytes _default_octets
    cdef dict _members, _written, _by_code, _by_class
    @cython.locals(end=Py_ssize_t, composite=FieldList)
    cdef tuple _read(self, bytes data, Py_ssize_t at, long code, long depth)
    @cython.locals(kind=long, composite=FieldList, octets=bytes)
    cdef bint _append(self, bytearray out, object item, long depth, bint full) except -1

cdef class FieldList:
    cdef object _made, _span, _leave, _explain, _refused, _empty
    cdef bytes _head
    cdef tuple _fields
    cdef long _width, _depth
    @cython.locals(number=long, field=ListField)
    cdef bint _is_any_mandatory(self) except -1
    @cython.locals(number=long, own=long, field=ListField)
    cpdef object like(self, object other, tuple first)
    @cython.locals(number=long, size=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, count=long, code=long, field=ListField)
    cdef tuple _read(self, bytes data, Py_ssize_t at, long depth)
    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t, count=long, number=long, at=Py_ssize_t, size=Py_ssize_t, is_null=bint, field=ListField)
    cdef bint _append(self, bytearray out, object value, long depth, bint full) except -1

cdef Py_ssize_t _scalar_end(long kind, bytes data, Py_ssize_t at, long code) except? -2
@cython.locals(number=long, octet=Py_ssize_t)
cdef object _scalar(long kind, bytes data, Py_ssize_t at, Py_ssize_t end)
@cython.locals(number=long)
cdef bint _append_scalar(bytearray out, long kind, object item) except -1
cdef bint _append_octets(bytearray out, long code, bytes octets) except -1

cpdef long serial_add(long value, long increment)
cpdef long serial_distance(long start, long end)

cdef class Delivery:
    cdef public KernelLink link
    cdef public bytes tag
    cdef public long message_format
    cdef public bint settled, remote_settled, second, complete, aborted, ignored
    cdef public long rcv_settle_mode, delivery_id, size
    cdef public bytes state, remote_state
    cdef public Relay relay
    cdef public Leg leg

@cython.final
cdef class Ledger:
    cdef public list slots
    cdef public dict beside
    cdef public long base, live, scanned
    @cython.locals(size=Py_ssize_t, found=object)
    cpdef object find(self, long delivery_id)
    @cython.locals(size=Py_ssize_t, at=long, slot=Py_ssize_t)
    cpdef bint put(self, long delivery_id, object delivery) except -1
    @cython.locals(size=Py_ssize_t, slot=Py_ssize_t)
    cpdef bint remove(self, long delivery_id) except -1
    @cython.locals(size=Py_ssize_t, least=long, last=long, begin=long, offset=long, each=long, slots=list, fewer=list,
                   entry=object)
    cdef void _shrink(self) except *
    @cython.locals(size=Py_ssize_t, offset=long, slots=list, entry=object)
    cpdef object oldest(self)
    @cython.locals(offset=long, begin=long, end=long, span=long, found=list, slots=list, size=Py_ssize_t, entry=object)
    cpdef list select(self, long first, long last)
    @cython.locals(offset=long, begin=long, after=long, left=long, found=dict, slots=list, size=Py_ssize_t, entry=object)
    cdef list _merged(self, long first, long span)
    @cython.locals(offset=long, ahead=long, each=long, slots=list, more=list, size=Py_ssize_t, slot=Py_ssize_t, entry=object)
    cdef void _reach(self, long delivery_id) except *

@cython.final
cdef class DispositionRun:
    cdef public bint receiver, settled
    cdef public long first, last
    cdef public bytes state

@cython.final
cdef class Recorder:
    cdef public object clock, on_full, on_rejected, on_anonymous, on_ended
    cdef public double shift, now
    cdef public long times, base, threshold, used, last, stored, lost, first, counter, upper
    cdef public unsigned long ingress, epoch
    cdef public bytes key
    cdef public unsigned long long[::1] words
    cpdef void give(self, object words) except *
    cpdef bint takes(self, long counter) noexcept
    cpdef double time(self) except? -1
    @cython.locals(at=long, since=long, time=long, waited=long, passed=long)
    cpdef bint store(self, bytes key, long counter, long hops_left, long flags, long state, long incoming, long outgoing,
                     long size, double arrived, double sent_at, double outcome_at, long header_info, long address, long attempt,
                     long first, long condition) except -1
    @cython.locals(at=long, ingress="unsigned long", epoch="unsigned long")
    cdef void _say(self, bytes key, long counter, long upper) except *

@cython.final
cdef class SeenMessage:
    cdef public MessageWindow window
    cdef public bytes id, outcome
    cdef public bint settled, live
    cdef public double at
    cdef public dict joined
    cdef public long octets

@cython.final
cdef class MessageWindow:
    cdef public MessageWindows windows
    cdef public Budget account
    cdef public long most, joined
    cdef public double time
    cdef public object is_over, entries
    cpdef SeenMessage find(self, bytes message_id, double now)
    @cython.locals(seen=SeenMessage)
    cpdef SeenMessage note(self, bytes message_id, bint settled, double now)
    cpdef bint end(self, SeenMessage seen, bytes outcome, double now) except -1
    cpdef bint forget(self, SeenMessage seen) except -1
    cpdef bint count(self, long octets) except -1
    @cython.locals(looked_at=long, oldest=SeenMessage)
    cpdef long tidy(self, double now, long most) except -1
    @cython.locals(windows=MessageWindows, oldest=SeenMessage)
    cdef void _make_room(self, SeenMessage added, double now) except *
    cdef bint _pass(self, SeenMessage seen) except -1
    cdef bint _remove(self, SeenMessage seen) except -1

@cython.final
cdef class MessageWindows:
    cdef public dict of
    cdef public long octets, most, duplicates, window_passed, moved
    cdef public bint is_awake
    cdef public object wake, on_outcome, on_ended

@cython.locals(code=long, value_at=long, form=long, list_end=long, count=long, item=long, after=long)
cpdef bytes read_message_id(bytes data, long at, long end)
cdef long _item_within(bytes data, long item, long list_end) except -1
@cython.locals(form=long, octets=bytes)
cdef bytes _comparable_id(bytes data, long item, long after)

@cython.final
cdef class KernelRouter:
    cdef public Recorder recorder
    cdef public TraceContexts contexts
    cpdef long counter(self, KernelLink link, bytes tag) except? -1
    cdef public double now, small_at
    cdef public bint needs_update
    cdef public long relays, most_relays, generation, epoch, key_count, key_page, unit
    cdef public list dirty, due, undealt, left, flipped, held_back, put_off
    cdef public double credit_wait
    cdef public object on_waited, on_timer, on_unknown
    cdef public long held_count, exchange, ahead_at_once, pools_ahead, pools_before
    cdef public double ahead_since
    cdef public dict kept
    cdef public MessageWindows windows
    cdef public dict noted
    cdef public bytes key_prefix, key_stem, rewritten, final_address
    cdef public list key_tails
    cdef public TransferFrame incoming_frame, outgoing_frame
    cdef public DispositionFrame disposition
    cdef public FlowFrame flow
    cdef public HeaderFields header
    cdef public object on_expand
    cpdef bint mark_dirty(self, KernelLink link) except -1
    cpdef bint change(self, Pool pool) except -1
    cpdef bint change_open(self, Pool pool) except -1
    cpdef bint leave(self, Pool pool) except -1
    cpdef bint note(self, Pool pool) except -1
    cpdef bint has_news(self) except -1
    @cython.locals(count=long, page=long, tails=tuple)
    cpdef bytes next_key(self, long hops)
    cpdef void begin_keys(self, bytes prefix) except *

@cython.final
cdef class KernelConnection:
    cdef public KernelRouter router
    cdef public object container
    cdef public bytearray out
    cdef public list stirred
    cdef public object on_wake
    cdef public bint is_open, woken, compact, patient
    cdef public long sending, backlog, max_frame_size, remote_max_frame_size, narrow, work, number, toward, way_count
    cdef public long passed
    cdef public double toward_since, slow_until, waits_since, waits_from, waited
    cdef public KernelConnection waits_for
    cdef public FastRoute waits_on, way
    cdef public dict sessions
    cdef public PendingDisposition pending_disposition
    cdef public ReceivedBatch batch
    @cython.locals(out=bytearray, at=Py_ssize_t, size=long)
    cpdef void append(self, long channel, bytes body) except *
    cpdef void wake(self) except *
    @cython.locals(stirred=list, session=KernelSession)
    cpdef void flush(self) except *
    @cython.locals(out=bytearray)
    cpdef bytearray take(self)

@cython.final
cdef class PendingDisposition:
    cdef public KernelSession session
    cdef public list deliveries, rest
    cdef public bytes state
    cdef public bint receiver, settled
    cdef public Py_ssize_t at

@cython.final
cdef class KernelSession:
    cdef public KernelConnection wire
    cdef public object owner
    cdef public dict links, progress
    cdef public bint woken, in_full, begun, flow_due, in_parts, narrows
    cdef public long channel, window_size, initial_outgoing_id, next_outgoing_id, next_incoming_id, incoming_limit, held
    cdef public long remote_incoming_window, remote_outgoing_window, next_delivery_id, widest, small, withheld
    cdef public Ledger incoming, outgoing
    cdef public list dispositions, displaced, flows, grants
    @cython.locals(router=KernelRouter)
    cpdef long width(self) except -1
    cpdef void let_widen(self) except *
    cpdef bint begin_parts(self) except -1
    @cython.locals(width=long, window=long)
    cpdef long announce(self) except? -1
    cpdef bint release(self, long frames) except -1
    cpdef void count_large(self, long size) except *
    cpdef void pass_on(self, long size) except *
    @cython.locals(gathered=long, width=long, limit=long)
    cpdef void look(self) except *
    cpdef bint stir(self) except -1
    @cython.locals(run=DispositionRun)
    cpdef bint dispose(self, bint receiver, long delivery_id, bint settled, bytes state) except -1

@cython.final
cdef class UserIdRule:
    cdef public bytes own
    cdef public bint may_be_absent
    cdef public object walk
    cdef public Py_ssize_t skip
@cython.locals(at=Py_ssize_t, item=Py_ssize_t, stop=Py_ssize_t, form=long, count=long, is_permitted=bint, own=bytes)
cdef bint _may_be_from(KernelRouter router, UserIdRule rule, TransferFrame frame, bytes data, Py_ssize_t payload_at,
                       Py_ssize_t end) except -1
@cython.locals(code=long, last=long)
cdef bint _is_regular(bytes data, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(form=long, count=long, after=Py_ssize_t)
cdef Py_ssize_t _exact_end(bytes data, Py_ssize_t at, Py_ssize_t end, long depth) except? -2

@cython.final
cdef class TraceContexts:
    cdef public unsigned long threshold
    cdef public long room, passed_over
    @cython.locals(at=Py_ssize_t)
    cpdef bint takes(self, bytes data, Py_ssize_t at, Py_ssize_t end) except -1
    @cython.locals(flags=long, digit=long, each=Py_ssize_t, number="unsigned long")
    cdef bint _has_share(self, bytes data, Py_ssize_t at) except -1
cdef bytes _octets_of(bytes data, Py_ssize_t at, Py_ssize_t end)
cdef bint _is_traced(TraceContexts contexts, TransferFrame frame, bytes data, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(after=Py_ssize_t, value=Py_ssize_t, text=Py_ssize_t)
cdef Py_ssize_t _parent_at(bytes data, Py_ssize_t at, Py_ssize_t end) except? -2
@cython.locals(code=long, after=Py_ssize_t)
cdef Py_ssize_t _next_map(bytes data, Py_ssize_t at, Py_ssize_t end) except? -2
@cython.locals(form=long, after=Py_ssize_t)
cdef Py_ssize_t _whole_section(bytes data, Py_ssize_t at, Py_ssize_t end) except? -2
@cython.locals(kind=long, after=Py_ssize_t)
cdef Py_ssize_t _item_end(bytes data, Py_ssize_t at, Py_ssize_t end) except? -2
@cython.locals(keys=long, size=Py_ssize_t, value=Py_ssize_t, after=Py_ssize_t)
cdef Py_ssize_t _string_in(bytes data, Py_ssize_t at, Py_ssize_t end, bytes name) except? -2
cdef bint _is_text(long form) noexcept
cdef long _hexadecimal(long octet) noexcept

@cython.final
cdef class KernelLink:
    cdef public KernelSession session
    cdef public bint sender, lowered, drain, second, lane, dirty, selective, behind, ended, anonymous, parked
    cdef public bytes fallback_outcome
    # A router has a hundred thousand of these: small numbers are ints.
    cdef public int number, snd_settle_mode, missed, part, credit_slack, relayed, outstanding, max_outstanding
    cdef public object record
    cdef public long handle, delivery_count, link_credit, available, granted_limit, max_message_size
    cdef public CreditSink sink
    cdef public CreditSource source
    cdef public bint flow_due, raised, creditor, flipped, is_watched, could_take
    cdef public double last_at, dry_since, dry_for
    cdef public long remote_handle, last_tag, turn
    cdef public long deliveries, octets, presettled, accepted, rejected, released, modified
    cdef public Delivery current
    cdef public dict unsettled, lane_to_lane
    cdef public set in_first
    cdef public FastRoute fast_route
    cdef public Leg leg
    cdef public Relay relay
    cdef public RateMeter meter
    cdef public UserIdRule user_ids
    cdef public int late, very_late, timed
    cdef public double latency_sum
    cdef public object latency, keeps
    @cython.locals(kind=long)
    cpdef bint count_outcome(self, bytes state) except -1
    cpdef bint count_latency(self, double seconds) except -1

cdef long _TIMED_OF
cdef double _LATE
cdef double _VERY_LATE

cdef long _MANY_GRANTED
cdef long _MANY_SINKS
cdef long _WATCHED
cdef long _LARGE_SHARE
cdef long _MAX_TUPLE

cpdef object with_item(object items, object item)
cpdef object without_item(object items, object item)
cpdef object with_item_first(object items, object item)
cpdef object shared(object items, object other)
cpdef object first(object items)

@cython.final
cdef class CreditSink:
    cdef public object owner
    cdef public Pool pool
    cdef public CreditSource source
    cdef public KernelLink link
    cdef public FastRoute route
    cdef public RateMeter meter
    cdef public CreditPart part
    cdef public bint large, drains, firm, lowers, draining, _raised, _doubtful, _plenty, _idle
    cdef public int times
    cdef public long delivery_count, granted, available, waiting, _began, _announced, _revoked, _low_at
    cdef public double _used_at, _placed_at, _answer_by, _confirm_by
    cpdef long announce(self) except? -1

@cython.locals(distance=long)
cpdef long credit_ahead(long delivery_count, long of)
cdef long _credit_of(CreditSink sink) noexcept
cdef long _limit_of(CreditSink sink) noexcept
cdef long _slack_of(CreditSink sink) noexcept
@cython.locals(limit=long)
cdef long _announce(CreditSink sink) except? -1

cdef class SourceGroup:
    cdef public long cost, size, usable, open

cdef class LeastNumber:
    cdef public dict _counts
    cdef public list _heap
    cdef public set _heaped
    cdef long _number(self) except? -1

@cython.final
cdef class CreditSource:
    cdef public object owner
    cdef public Pool pool
    cdef public KernelLink link
    cdef public long usable, cost
    cdef public bint counts, _open
    cdef public SourceGroup _group

@cython.final
cdef class Demand:
    cdef public bint _none, _by_cost
    cdef public tuple _groups
    cdef public SourceGroup _near
    cdef public LeastNumber _least
    cdef long _credit_now(self) except? -1
    cdef bint _is_open(self) except -1
    cpdef void add(self, CreditSource source) except *
    cpdef void remove(self, CreditSource source) except *
    @cython.locals(before=long, group=SourceGroup)
    cpdef void set_usable(self, CreditSource source, long usable, bint withdrawn) except *

@cython.final
cdef class CreditPart:
    cdef public double weight, spent
    cdef public long sinks, not_idle
    cdef public object empty, low
    cdef public bint _is_listed

@cython.final
cdef class CreditParts:
    cdef public dict parts
    cdef public double weights, _spent
    cdef public long joined, together, _counting, _number
    cdef public list _listed
    cpdef CreditPart part(self, str tenant, double weight)
    cpdef void enter(self, CreditPart part, CreditSink sink) except *
    @cython.locals(part=CreditPart)
    cpdef void leave(self, CreditSink sink) except *
    cpdef void count(self, CreditPart part, long one) except *
    cpdef void wait(self, CreditPart part) except *
    @cython.locals(weights=double)
    cpdef long share(self, CreditPart part, long deliveries) except? -1
    @cython.locals(part=CreditPart)
    cpdef CreditPart next(self)

@cython.final
cdef class Waiters:
    cdef public object active, empty, idle_rich, low, sinks
    cdef public CreditParts parts
    cdef public long large, not_idle
    cdef public double idle_time
    cpdef void enter(self, CreditSink sink) except *
    cpdef void leave(self, CreditSink sink) except *
    @cython.locals(sink=CreditSink)
    cpdef void served(self, list sinks, long share, double now) except *
    cpdef bint used(self, CreditSink sink, double now) except -1
    @cython.locals(left=long)
    cpdef bint credit_fell(self, CreditSink sink) except -1
    @cython.locals(before=double, sink=CreditSink)
    cpdef void age(self, double now) except *
    cpdef void rest(self, CreditSink sink) except *
    cdef void _count(self, CreditSink sink, long one) except *
    @cython.locals(part=CreditPart, is_empty=bint, is_low=bint)
    cpdef void join(self, CreditSink sink, str tenant, double weight) except *
    cdef void _add_empty(self, CreditSink sink) except *
    cdef void _put_back(self, CreditSink sink) except *
    cdef void _drop_empty(self, CreditSink sink) except *
    cdef void _add_low(self, CreditSink sink) except *
    cdef void _drop_low(self, CreditSink sink) except *
    cdef void _list(self, CreditSink sink) except *
    cdef void _place(self, CreditSink sink, double now) except *
    cdef void _forget(self, CreditSink sink) except *

@cython.final
cdef class PoolSettings:
    cdef public long max_credit, ahead
    cdef public double starve_time, reclaim_time, drain_time

cdef class PoolState:
    cdef public PoolSettings _settings
    cdef public Waiters _waiters
    cdef public Demand _demand
    cdef public bint _suspended, _drain_asked, _lower_now, _lowered_fully
    cdef public long _waiting, _granted, _revoked
    cdef public bint is_open, is_due, is_undealt
    cdef public bint is_plain, goes_ahead
    cdef public int ahead, ahead_most, pace, _left
    cdef public double timer_at, _counted_at, _ahead_from, _ahead_at
    cdef public list held
    cdef public object _reclaiming, _lowered, _drain_round, _changed, _drain_until
    cdef public double _held_until
    cpdef bint set_usable(self, CreditSource source, long usable, double now, bint withdrawn=*) except -1
    @cython.locals(left=long)
    cpdef void received(self, CreditSink sink, double now) except *
    cpdef bint forwarded(self, CreditSink sink, double now) except -1
    @cython.locals(left=long, spent=long)
    cpdef void relayed(self, CreditSink sink, long count, double now) except *
    cdef long _free(self) except? -1
    cdef long _demand_now(self) except? -1
    cdef long _overcommit_now(self) except? -1
    cdef void _credit_fell(self, CreditSink sink) except *
    cdef void _ask_to_drain(self, CreditSink sink) except *
    cdef void _drain_answered(self, CreditSink sink) except *
    cdef void _keep_credit(self, CreditSink sink) except *
    cdef void _lower_limit(self, CreditSink sink, long count, double now) except *
    cdef void _write_off(self, CreditSink sink) except *
    cdef void _spend(self, CreditSink sink, long count) except *
    @cython.locals(free=long, again=long, fresh=long, wanted=long)
    cdef long _raise_limit(self, CreditSink sink, long most, double now) except? -1

@cython.final
cdef class Pool(PoolState):
    cdef public bint _looked
    cdef public double _next_check
    cdef public object _short_since, _overcommit_at, _lower_at
    @cython.locals(waiters=Waiters, count=long)
    cdef object _watched_now(self)
    @cython.locals(slack=long, waiters=Waiters, count=long, free=long, large=long, until_small=long)
    cpdef long credit_slack(self, CreditSink sink) except? -1
    @cython.locals(waiters=Waiters, free=long)
    cdef void _divide(self, double now) except *
    @cython.locals(sink=CreditSink)
    cpdef list grants(self, double now)
    cdef bint _is_calm(self) except -1
    cpdef object next_timer(self)
    @cython.locals(sink=CreditSink, keep=long)
    cpdef void handle_timer(self, double now) except *
    cdef long _share(self, long times=*, bint large=*, CreditSink sink=*) except? -1
    @cython.locals(waiters=Waiters, demand=long, share=long, few=long)
    cdef long _equal(self, bint large, CreditSink sink=*) except? -1
    @cython.locals(waiters=Waiters, share=long, passed=list, served=list, sink=CreditSink)
    cdef void _grant_free_credit(self, double now) except *
    @cython.locals(waiters=Waiters, share=long, half=long, flow_due=bint)
    cdef bint _refill(self, CreditSink sink, double now) except -1
    @cython.locals(until=double)
    cdef bint _expects_more(self, CreditSink sink, double now) except -1
    @cython.locals(waiters=Waiters, sink=CreditSink, keep=long, asked=long, excess=long, taken=long, floor=long)
    cdef void _lower_excess(self, double now) except *
    @cython.locals(waiters=Waiters, sink=CreditSink, need=long, most=long, share=long, excess=long)
    cdef void _reclaim(self, double now) except *
    @cython.locals(large=long, sink=CreditSink)
    cdef long _needs(self, object line) except? -1
    cdef long _drain_or_lower(self, CreditSink sink, long count, double now) except? -1
    cdef object _starves_at(self)
    cdef void _start_drain(self, double now) except *

@cython.locals(waiters=Waiters, parts=CreditParts)
cdef bint _is_divided(Pool pool) except -1
@cython.locals(waiters=Waiters, parts=CreditParts, passed=list, part=CreditPart, sink=CreditSink, raised=long)
cdef void _grant_by_weight(Pool pool, double now) except *
@cython.locals(waiters=Waiters, parts=CreditParts, part=CreditPart, sink=CreditSink, whole=long, share=long, lacking=long)
cdef void _fill_up(Pool pool, CreditPart waiting, double now) except *
@cython.locals(waiters=Waiters, before=long, share=long, half=long, raised=long, most=long)
cdef long _serve(Pool pool, CreditSink sink, double now) except? -2
cdef bint _is_limited(CreditSink sink) except -1
@cython.locals(parts=CreditParts, part=CreditPart, most=long, whole=long, need=long)
cdef long _needs_of_all(Pool pool) except? -1

@cython.locals(demand=long, count=long, may=long, elapsed=double, to_all=bint, pace=long)
cdef bint _look_ahead(Pool pool, double now) except -1
cpdef bint pause_ahead(Pool pool, double now) except -1
@cython.locals(elapsed=double, count=long)
cdef bint _divide_ahead(KernelRouter router, Pool pool) except -1
@cython.locals(link=KernelLink)
cdef bint _goes_ahead(Pool pool, CreditSink sink) except -1
cdef bint _is_ahead(Pool pool, CreditSink sink, long share) except -1
cdef long _shared(Pool pool, CreditSink sink) except? -1

@cython.final
cdef class Budget:
    cdef public long limit, used, most, holders
    cdef public Budget whole
    @cython.locals(before=long)
    cpdef void add(self, long octets) except *

@cython.final
cdef class TokenBucket:
    cdef public object key
    cdef public dict meters
    cdef public double rate, burst, tokens, held, at, came, came_at
    cdef public bint of_octets
    cdef public long users, waiting
    @cython.locals(room=double)
    cpdef bint fill(self, double now) except -1
    cpdef object count(self, double number, double seconds, double now)
    cpdef double mean(self, double now) except? -1

@cython.final
cdef class RateMeter:
    cdef public KernelLink link
    cdef public object line
    cdef public list buckets, spent, held
    cdef public long deliveries, octets, part, quota, withheld
    cdef public double size, at
    cdef public bint waits
    cpdef bint withhold(self, KernelSession session) except -1
    @cython.locals(at=Py_ssize_t, bucket=TokenBucket)
    cpdef bint owes(self, long octets=*) except -1
    @cython.locals(at=Py_ssize_t, bucket=TokenBucket, seconds=double)
    cpdef double due(self) except? -1
    @cython.locals(frames=long, session=KernelSession)
    cpdef bint give_back(self) except -1
    @cython.locals(link=KernelLink, count=long, octets=long, at=Py_ssize_t, bucket=TokenBucket, unit=double, spent=double, free=double, seconds=double)
    cpdef bint settle(self, long credit, double now) except -1
    @cython.locals(room=long, at=Py_ssize_t, bucket=TokenBucket)
    cpdef long room(self, long credit, double now) except -1
    cpdef bint grant(self, long count, long credit, double now) except -1
    @cython.locals(unit=double)
    cpdef long most(self, TokenBucket bucket, double tokens) except -1
    @cython.locals(limit=long, at=Py_ssize_t, bucket=TokenBucket, unit=double)
    cpdef long limit(self) except -1

@cython.final
cdef class Chunk:
    cdef public object data
    cdef public long holders
    cdef KernelSession _session
    cdef long _size
    cdef public Budget account
    cpdef void move(self, Budget account) except *
    cpdef void absorb(self, Chunk other) except *
    cpdef void free_window(self) except *
    cpdef void release(self) except *

cpdef Delivery receive_transfer(KernelLink link, TransferFrame frame, long payload_size)
cdef Delivery _resume(KernelSession session, KernelLink link, TransferFrame frame, Delivery delivery)
cdef bint _stays_fast(KernelLink link, TransferFrame frame, FastDelivery fast) except -1
@cython.locals(tag=bytes, dropped=Delivery)
cdef Delivery _resume_fast(KernelSession session, KernelLink link, TransferFrame frame, FastDelivery fast)
@cython.locals(settled=bint, second=bint, message_format=long, known=object)
cdef Delivery _first_transfer(KernelSession session, KernelLink link, TransferFrame frame, long payload_size)
@cython.locals(entry=object)
cdef bint _check_first_transfer(KernelSession session, KernelLink link, TransferFrame frame, long payload_size) except -1
cdef bint _count_first_transfer(KernelSession session, KernelLink link, bint settled, long payload_size) except -1
cpdef void discard_transfer(KernelSession session) except *
@cython.locals(session=KernelSession, size=long, written=long, settled=long, first=bint, delivery_id=long, frame=TransferFrame)
cpdef long send_transfer(KernelLink link, bytearray out, Delivery delivery, object payload, bint more, bint aborted, bytes state,
                         long limit, bint resume=*) except? -1
cdef bint _count_first_sent(KernelSession session, KernelLink link, bint settled) except -1
@cython.locals(link=KernelLink)
cpdef void dispose(Delivery delivery, bytes state, bint settled) except *
@cython.locals(ledger=Ledger, pending=PendingDisposition)
cpdef PendingDisposition receive_disposition(KernelSession session, DispositionFrame frame)
@cython.locals(ledger=Ledger, session=KernelSession, receiver=bint, rest=list, count=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t,
               deliveries=list, entry=object, live=object, delivery_id=long, delivery=Delivery, wire=KernelConnection, work=long)
cpdef bint apply_more(PendingDisposition pending) except -1
@cython.locals(router=KernelRouter, delivery=Delivery, fast=FastDelivery, live=object)
cdef Delivery _apply(KernelSession session, object entry, bint receiver, bytes state, bint settled)
@cython.locals(leg=FastLeg, found=object)
cdef Delivery _expanded(object entry, bint sent)
@cython.locals(link=KernelLink, ledger=Ledger)
cpdef void forget(Delivery delivery) except *

cdef class Leg:
    cdef public Relay relay
    cdef public object outgoing, chunks
    cdef public bint copy, started, aborting, counted, done, open, tracked
    cdef public Delivery delivery
    cdef public long offset
    cdef public bytes outcome
    cdef public double sent_at, outcome_at
    @cython.locals(relay=Relay)
    cpdef void decide(self, bytes outcome) except *
    cpdef void end(self) except *

cdef class Relay:
    cdef public object source, head, node, share, chunks, portion, to, kept, excluded
    cdef public Delivery incoming
    cdef public long message_format, priority, queued, section_shift, attempts, counter, first, header_info
    cdef public bint settled, second, complete, dropped, waiting, answered, failed, closed, presettled, recorded
    cdef public list legs
    cdef public long open, unanswered
    cdef public bytes key, tag, strongest, message_id
    cdef public SeenMessage seen
    cdef public double arrived, came, expires
    cpdef void add(self, Leg leg) except *
    @cython.locals(leg=Leg)
    cpdef void drop(self, list kept) except *

cdef class FastRoute:
    cdef public long generation, order, room, borrowed, credit_slack, hops, turn, relayed
    cdef public list links, bulk, left_out, shares
    cdef public long passing
    cdef public bint wanted, lists_all, traced
    cdef public CreditSink share
    cdef public TreeHistory history
    cdef public Keeper keeper
    cdef public MessageWindow window
    cdef public KernelConnection queue

cdef class TreeHistory:
    cdef public str parent
    cdef public bytes latest, before
    cdef public double until
    cpdef bint is_new(self, str parent, bytes tag) except -1
    cpdef bint expects(self, str parent, bytes tag) except -1
    @cython.locals(began=bytes)
    cpdef bint note(self, bytes tag) except -1

@cython.final
cdef class Keeper:
    cdef public Budget account
    cdef public long largest, attempts
    cdef public object is_over, next_attempt, is_failure, rules, dead_letter, find_grave
    cdef public FastRoute grave
    cdef public long grave_epoch

@cython.final
cdef class KeptMessage:
    cdef public Keeper keeper
    cdef public bytes payload, outcome
    cdef public long attempts
    cdef public bint failed, settled

cdef bytes _new_id(KernelRouter router, MessageWindow window, TransferFrame frame, bytes data, long at, long end)
@cython.locals(seen=SeenMessage)
cdef bint _note_message(KernelRouter router, MessageWindow window, bytes message_id, bint settled, FastDelivery fast) except -1
@cython.locals(seen=SeenMessage, kind=long)
cdef bint _note_outcome(KernelRouter router, FastDelivery fast, bytes state) except -1
cdef bint _may_keep(KernelRouter router, Keeper keeper, KernelLink link, TransferFrame frame, long size) except -1
cdef bint _keep(KernelRouter router, Keeper keeper, FastDelivery fast, bytes payload) except -1
@cython.locals(kept=KeptMessage)
cdef bint _drop_kept(KernelRouter router, FastDelivery fast) except -1
@cython.locals(kept=KeptMessage, kind=long, out=KernelLink)
cdef bint _put_off(KernelRouter router, FastDelivery fast, bytes state, bint settled) except -1
@cython.locals(fast=FastDelivery, kept=KeptMessage, delivery=Delivery, live=object, entry=tuple, blocked=Keeper, undecided=list, put_off=list)
cpdef list settle_put_off(KernelRouter router)
@cython.locals(kept=KeptMessage, keeper=Keeper, incoming=KernelLink, outgoing=KernelLink, route=FastRoute, out=KernelLink, payload=bytes,
               kind=long, size=long, delivery_id=long, again=FastDelivery)
cdef bint _send_again(KernelRouter router, FastDelivery fast, bytes state, bint settled) except -1
@cython.locals(kept=KeptMessage, keeper=Keeper, incoming=KernelLink, route=FastRoute, out=KernelLink, payload=bytes,
               size=long, delivery_id=long, copy=FastDelivery)
cdef bint _bury(KernelRouter router, FastDelivery fast) except -1
cdef FastRoute _grave(KernelRouter router, Keeper keeper)

@cython.locals(dirty=list, link=KernelLink)
cpdef void count_relayed(KernelRouter router) except *
@cython.locals(sink=CreditSink, pool=Pool, count=long, route=FastRoute, share=FastShare)
cdef bint _count_incoming(KernelRouter router, KernelLink link) except -1
@cython.locals(count=long)
cdef void _count_fast_share(KernelRouter router, FastShare share) except *
@cython.locals(sink=CreditSink, pool=Pool, source=CreditSource)
cdef void _count_share(KernelRouter router, FastRoute route, long count, double last_at) except *
@cython.locals(sink=CreditSink, source=CreditSource)
cdef void _count_lent(KernelRouter router, FastRoute route) except *
@cython.locals(source=CreditSource, pool=Pool, session=KernelSession, credit=long, usable=long, is_multicast=bint)
cdef bint _count_outgoing(KernelRouter router, KernelLink link) except -1
cdef void _time_credit(KernelRouter router, KernelLink link) except *
@cython.locals(pools=list, dealt=list, pool=Pool)
cpdef void deal(KernelRouter router) except *
@cython.locals(now=double, changed=object, sink=CreditSink, credit=long, above=Pool)
cdef void _divide(KernelRouter router, Pool pool) except *
@cython.locals(link=KernelLink, limit=long, session=KernelSession)
cdef void _tell(KernelRouter router, Pool pool, CreditSink sink) except *

@cython.final
cdef class HeldDelivery:
    cdef public KernelLink link
    cdef public Delivery delivery
    cdef public FastRoute route
    cdef public bytes payload
    cdef public double came_at
    cdef public Budget account
    cdef public long header_info
    cdef public bint at_exit, spent, share_spent
    cdef public CreditSink at_sink

@cython.locals(size=long, sink=CreditSink, entered=Pool, pool=Pool, share=CreditSink, is_exit=bint, links=list, out=KernelLink, account=Budget,
               whole=Budget, delivery=Delivery, held=HeldDelivery, p="const unsigned char *")
cdef bint _hold_back(KernelRouter router, KernelSession session, KernelLink link, FastRoute route, TransferFrame frame, bytes data,
                     Py_ssize_t payload_at, Py_ssize_t end) except -1
@cython.locals(onto=bytes)
cdef bint _may_go_on(KernelLink link, KernelLink out, bytes tag) except -1
@cython.locals(pool=Pool, credit=long, source=CreditSource)
cdef void _move(KernelRouter router, HeldDelivery held, CreditSink share) except *
@cython.locals(delivery=Delivery, frame=DispositionFrame)
cdef bint _names_held(KernelRouter router, KernelSession session) except -1
@cython.locals(held=HeldDelivery, gate=FastRoute, share=CreditSink, beyond=Pool, sink=CreditSink, out=KernelLink)
cdef bint _send_held(KernelRouter router, Pool pool) except -1
@cython.locals(pool=Pool)
cdef void _credit_came(KernelRouter router, KernelLink link) except *
@cython.locals(links=list, out=KernelLink, lacking=long)
cdef bint _is_hindered(FastRoute route) except -1
@cython.locals(link=KernelLink, route=FastRoute, delivery=Delivery, tag=bytes, key=bytes, mode=long, payload=bytes, size=long, settled=bint,
               delivery_id=long, recorder=Recorder, counter=long, sent_at=double, info=long, goes_on=bint, fast=FastDelivery, sink=CreditSink)
cdef bint _send(KernelRouter router, Pool pool, HeldDelivery held, KernelLink out) except -1
@cython.locals(link=KernelLink, payload=bytes, sink=CreditSink, delivery=Delivery)
cdef void _send_to_all(KernelRouter router, Pool pool, HeldDelivery held) except *
@cython.locals(out=KernelLink)
cdef bint _waits(FastRoute route) except -1
cdef void _let_go(KernelRouter router, Pool pool, HeldDelivery held) except *
@cython.locals(link=KernelLink, sink=CreditSink, share=CreditSink)
cpdef Delivery take_held(KernelRouter router, Pool pool, HeldDelivery held)
cdef void _take_back(Pool pool, CreditSink sink, bint waits, bint spent) except *
@cython.locals(grants=list, link=KernelLink)
cpdef void write_grants(KernelSession session) except *

@cython.final
cdef class FastShare:
    cdef public object record
    cdef public FastRoute route
    cdef public list counted
    cdef public bint is_candidate, is_lane, is_open
    cdef public long turn, relayed
    cdef public double last_at

@cython.locals(share=FastShare, best=FastShare, least=long, turn=long, credited=long, outstanding=long)
cdef FastShare _share_for(KernelRouter router, KernelConnection wire, FastRoute route)
@cython.locals(route=FastRoute)
cdef bint _count_shared(KernelRouter router, KernelLink link, FastShare share) except -1
@cython.locals(link=KernelLink, least=long, together=long)
cdef long _outstanding(FastShare share) except -1
@cython.locals(link=KernelLink, busy=bint)
cdef bint _is_busy(FastRoute route) except -1
@cython.locals(share=FastShare)
cdef bint _wait_for_share(KernelRouter router, KernelConnection wire, FastRoute route) except -1

@cython.final
cdef class TransitRoute:
    cdef public FastRoute route
    cdef public str address
    cdef public bytes octets, annotations, settled_annotations

@cython.final
cdef class SettledRoute:
    cdef public FastRoute route

@cython.locals(split=Py_ssize_t)
cdef bytes _with_annotations(bytes data, Py_ssize_t at, Py_ssize_t bare_at, Py_ssize_t end, bytes annotations)
cdef Py_ssize_t _annotations_at(bytes data, Py_ssize_t at, Py_ssize_t bare_at) except? -2
cdef Py_ssize_t _after_header(bytes data, Py_ssize_t at, Py_ssize_t bare_at) except? -2
@cython.locals(form=long)
cdef Py_ssize_t _section_end(bytes data, Py_ssize_t at) except? -2

cdef class AnonymousRoutes(FastRoute):
    cdef public dict recent, older
    cdef public long recent_octets, older_octets, counted
    cdef public bytes last_to, only
    cdef public object last
    cdef public dict waited_for
    cpdef void clear(self) except *
    cpdef long octets_for(self, bytes to, object route) except -1
    @cython.locals(octets=long)
    cpdef void put(self, bytes to, object route) except *
    @cython.locals(route=object)
    cpdef object find(self, bytes to)
@cython.locals(table=AnonymousRoutes, bare_at=Py_ssize_t, to=bytes, found=object, transit=TransitRoute, route=FastRoute, settled=bint)
cdef FastRoute _anonymous_route(KernelRouter router, KernelLink link, TransferFrame frame, bytes data, Py_ssize_t payload_at,
                                Py_ssize_t end)
cdef object _found(KernelRouter router, KernelLink link, AnonymousRoutes table, bytes to)
@cython.locals(bare_at=Py_ssize_t, at=Py_ssize_t, after=Py_ssize_t, found=object, route=FastRoute, settled=SettledRoute)
cdef FastRoute _route_off_transit(KernelRouter router, KernelLink link, AnonymousRoutes table, TransferFrame frame, bytes data,
                                  Py_ssize_t payload_at, Py_ssize_t end)
@cython.locals(after=Py_ssize_t, stop=Py_ssize_t, count=long)
cdef bytes _to(bytes data, Py_ssize_t at, Py_ssize_t end)

cdef class FastDelivery:
    cdef public KernelLink incoming, outgoing
    cdef public bytes incoming_tag, outgoing_tag, outcome
    cdef public long incoming_id, outgoing_id, number, counter
    cdef public int header_info
    cdef public unsigned int message_format, size  # of one frame, whose size is such a number (§2.3.1)
    cdef public bint second, outgoing_settled, tracked
    cdef public double arrived, sent_at, outcome_at

cdef class FastMulticast:
    cdef public KernelLink incoming
    cdef public bytes incoming_tag, key, strongest
    cdef public list legs
    cdef public long incoming_id, counter
    cdef public double arrived
    cdef public int open, unanswered, strength, header_info, size
    cdef public unsigned int message_format
    cdef public bint second, answered

cdef class FastLeg:
    cdef public FastMulticast multicast
    cdef public KernelLink outgoing
    cdef public bytes outcome
    cdef public long outgoing_id, number
    cdef public double sent_at, outcome_at
    cdef public bint settled

@cython.locals(multicast=FastMulticast)
cdef FastMulticast _new_multicast(KernelLink incoming, long incoming_id, bytes incoming_tag, bint second, double arrived)
@cython.locals(leg=FastLeg)
cdef FastLeg _new_leg(FastMulticast multicast, KernelLink outgoing, long outgoing_id, long number)
@cython.locals(incoming=KernelLink, received=Delivery, relay=Relay, router=KernelRouter)
cdef Delivery _expand_multicast(FastMulticast multicast)
cdef bytes _leg_tag(FastLeg fast)
@cython.locals(multicast=FastMulticast, outgoing=KernelLink, sent=Delivery, leg=Leg)
cdef void _expand_leg(FastLeg fast, Relay relay) except *
@cython.locals(multicast=FastMulticast, outgoing=KernelLink)
cdef bint _free_tag(FastLeg leg) except -1
@cython.locals(multicast=FastMulticast, outgoing=KernelLink, incoming=KernelLink, strength=long, orphaned=bint, last=bint, strongest=bytes)
cdef bint _take_outcome(KernelRouter router, FastLeg leg, bytes state, bint settled) except -1
@cython.locals(kind=long)
cdef bint _may_be_told(KernelLink incoming, bytes outcome) except -1
cdef long _strength(long kind) noexcept
@cython.locals(incoming=KernelLink, outcome=bytes)
cdef void _answer(KernelRouter router, FastMulticast multicast) except *
@cython.locals(incoming=KernelLink)
cdef void _settle_multicast(KernelRouter router, FastMulticast multicast, bytes state) except *
cdef long _cost(FastMulticast multicast) except -1
@cython.locals(leg=FastLeg)
cdef void _settle_open(KernelRouter router, FastMulticast multicast, bint alike, bytes state) except *
@cython.locals(outgoing=KernelLink)
cdef void _settle_receiver(KernelRouter router, FastLeg leg, bytes state) except *
@cython.locals(outgoing=KernelLink)
cdef bint _settle_leg(KernelRouter router, FastLeg leg) except -1
@cython.locals(link=KernelLink)
cdef void _forget_incoming(FastMulticast multicast) except *
cdef void _orphan(KernelRouter router, FastMulticast multicast) except *
@cython.locals(link=KernelLink, first=FastLeg)
cdef void _end_if_done(KernelRouter router, FastMulticast multicast) except *
@cython.locals(recorder=Recorder, link=KernelLink, leg=FastLeg)
cdef void _record_legs(KernelRouter router, FastMulticast multicast) except *
@cython.locals(size=Py_ssize_t, recorder=Recorder, settled=bint, second=bint, incoming_tag=bytes, info=long, payload=bytes, key=bytes,
               message_format=long)
cdef bint _relay_to_all(KernelRouter router, KernelSession session, KernelLink link, FastRoute route, TransferFrame frame, bytes data,
                        Py_ssize_t payload_at, Py_ssize_t end) except -1
@cython.locals(size=Py_ssize_t, recorder=Recorder, recorded=bint, counter=long, multicast=FastMulticast, leg=FastLeg, out=KernelLink,
               each=object, delivery_id=long, sent_at=double, mode=long)
cdef bint _write_to_all(KernelRouter router, KernelLink link, FastRoute route, long incoming_id, bytes incoming_tag, bint settled,
                        bint second, double came_at, long message_format, bytes key, bytes payload, long header_info) except -1
@cython.locals(out=KernelLink, each=object, lacks=bint, source=CreditSource)
cdef bint _may_wait_for_all(KernelLink link, FastRoute route, long size) except -1
@cython.locals(history=TreeHistory)
cdef bint _is_of_tree(KernelSession session, FastRoute route, bytes tag) except -1
@cython.locals(wire=KernelConnection, octets=long, beside=long, each=object, out=KernelLink, target=KernelSession, next_tag=bytes)
cdef bint _all_ready(KernelRouter router, KernelSession session, FastRoute route, long size, bytes tag) except -1
@cython.locals(target=KernelSession, sink=KernelConnection, router=KernelRouter, size=long, delivery_id=long, leaving=TransferFrame,
               tag=bytes)
cdef long _write_leg(KernelLink out, long message_format, bint settled, long mode, bytes key, bytes payload) except? -1
cdef bint _count_leg(KernelRouter router, KernelLink out) except -1
@cython.locals(fast=FastDelivery, delivery=Delivery, leg=FastLeg, multicast=FastMulticast)
cdef long _id_of(object entry, bint sent) except? -2
@cython.locals(router=KernelRouter, leg=FastLeg, multicast=FastMulticast)
cdef bint _apply_to_multicast(KernelSession session, object entry, bytes state, bint settled) except -1
@cython.locals(multicast=FastMulticast, leg=FastLeg)
cdef long _multicast_cost(object entry) except -1
@cython.locals(live=object)
cdef void _end_leg(KernelRouter router, FastLeg leg, list deliveries) except *

cpdef void end_link(KernelLink link) except *

cdef class Sweep:
    cdef public KernelSession session
    cdef public list deliveries, beside
    cdef public bint sent
    cdef public long at

@cython.locals(session=KernelSession, router=KernelRouter, sent=bint, ledger=Ledger, entries=list, slots=list, size=Py_ssize_t,
               fast_deliveries=long, deliveries=long, offset=long, last=long, entry=object, each=object)
cpdef bint sweep(Sweep task) except -1
cdef bint _is_swept(object entry, bint sent) except -1
@cython.locals(fast=FastDelivery, delivery=Delivery, leg=FastLeg)
cdef KernelLink _sent_by(object entry)
@cython.locals(slots=list, found=dict, entry=object, link=KernelLink, delivery_id=long)
cpdef dict parked_ids(KernelSession session)
@cython.locals(found=list, entry=object, delivery_id=long)
cpdef list expand_sent(KernelSession session, list ids)
@cython.locals(delivery=Delivery)
cpdef bytes sent_tag(object entry)
@cython.locals(fast=FastDelivery, leg=FastLeg, whole=FastMulticast, delivery=Delivery, sent=Leg, relay=Relay, incoming=Delivery,
               is_away=bint)
cpdef bint left_in_second(object entry) except -1
cdef bint _is_first(KernelLink link, bytes tag) except -1
@cython.locals(ledger=Ledger, relays=long, entry=object, tag=bytes, fast=FastDelivery, multicast=FastMulticast, delivery=Delivery,
               relay=Relay, first=bint)
cpdef long set_aside(KernelLink link, KernelLink holder, bint compacts, long most) except -1
@cython.locals(entry=object, tag=bytes, before=bint, fast=FastDelivery, multicast=FastMulticast, delivery=Delivery, relay=Relay)
cpdef bint keep_outcomes(KernelLink link) except -1
cpdef bint note_mode(KernelLink link, bytes tag, bint first) except -1
@cython.locals(relay=Relay, leg=Leg, sent=Delivery)
cdef bint _waits_for_outcome(Delivery delivery) except -1
@cython.locals(router=KernelRouter, relay=Relay, leg=Leg)
cdef bint _compact(Delivery delivery) except -1
@cython.locals(entry=object, fast=FastDelivery, multicast=FastMulticast, delivery=Delivery)
cpdef bint take_up(KernelLink holder, bytes tag, KernelLink link) except -1
@cython.locals(fast=FastDelivery, multicast=FastMulticast, delivery=Delivery)
cpdef bytes told_outcome(object entry)
cpdef Delivery expanded(object entry)
@cython.locals(entry=object, router=KernelRouter, fast=FastDelivery, multicast=FastMulticast)
cpdef Delivery settle_away(KernelLink holder, bytes tag)
@cython.locals(entry=object, router=KernelRouter)
cpdef Delivery end_away(KernelLink holder, bytes tag)
@cython.locals(fast=FastDelivery, delivery=Delivery, leg=FastLeg, multicast=FastMulticast)
cdef bint _is_ended(object entry, bint sent) except -1
cdef bint _end_fast_delivery(KernelRouter router, FastDelivery fast, bint sent) except -1
@cython.locals(link=KernelLink)
cdef void _drop_incoming(KernelRouter router, FastDelivery fast) except *
cdef void _end_orphan(KernelRouter router, FastDelivery fast, bint settled) except *
@cython.locals(delivery=Delivery)
cdef bint _makes_room(KernelSession session, object entry) except -1

@cython.locals(router=KernelRouter, frame=TransferFrame, sessions=dict, size=long, after=Py_ssize_t, session=KernelSession, code=long,
               payload_at=Py_ssize_t, link=KernelLink, channel=long, handle=long, p="const unsigned char *")
cpdef Py_ssize_t relay_frames(KernelConnection wire, bytes data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.final
cdef class ReceivedBatch:
    cdef public list deliveries, payloads
    cdef public TransferFrame frame

@cython.locals(frame=TransferFrame, deliveries=list, payloads=list, last=KernelLink, link=KernelLink, delivery=Delivery,
               session=KernelSession, size=long, after=Py_ssize_t, payload_at=Py_ssize_t)
cpdef Py_ssize_t receive_batch(KernelConnection wire, ReceivedBatch batch, bytes data, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(route=FastRoute, share=FastShare, keeper=Keeper, came=long, size=long, out=KernelLink, incoming_tag=bytes, target=KernelSession, sink=KernelConnection, tag=bytes,
               hops=long, settled=bint, leaves_settled=bint, exchange=long, second=bint, delivery_id=long, mode=long, leaving=TransferFrame, fast=FastDelivery,
               number=long, large=bint, recorder=Recorder, counter=long, sent_at=double, info=long, relayed=bint,
               window=MessageWindow, message_id=bytes, bare_at=long,
               p="const unsigned char *")
cdef bint _relay_transfer(KernelRouter router, KernelSession session, KernelLink link, TransferFrame frame, bytes data,
                          Py_ssize_t payload_at, Py_ssize_t end) except -1
@cython.locals(fast=FastDelivery)
cdef FastDelivery _new_fast_delivery(KernelLink incoming, long incoming_id, bytes incoming_tag, bint second, double arrived, KernelLink outgoing,
                      long outgoing_id, bytes outgoing_tag, bint tracked=*)
@cython.final
cdef class HeaderFields:
    cdef public long priority, ttl, delivery_count
    cdef public Py_ssize_t ttl_at
    cpdef void clear(self) noexcept
    cpdef long info(self) noexcept
@cython.locals(form=long, count=long, priority=long, ttl=long, ttl_at=Py_ssize_t, delivery_count=long)
cpdef bint scan_header(HeaderFields fields, bytes data, Py_ssize_t at, Py_ssize_t end) except -1
cdef Py_ssize_t _after_any(bytes data, Py_ssize_t at, Py_ssize_t end) except? -2
@cython.locals(fields=HeaderFields)
cpdef long read_header_info(bytes data, Py_ssize_t at, Py_ssize_t end) except? -1
@cython.locals(kind=long, outcome=long, flags=long, hops_left=long, condition=long, address=long, key=bytes, is_key=bint)
cdef bint _record(KernelRouter router, Recorder recorder, KernelLink link, KernelLink out, bytes incoming_tag, bytes outgoing_tag,
                  long counter, long size, double arrived, double sent_at, double outcome_at, bytes state, long header_info) except -1
cdef bint _count_relayed(KernelRouter router, KernelLink link, KernelLink out, FastRoute route, FastShare share) except -1
@cython.locals(session=KernelSession, target=KernelSession, received=Delivery, sent=Delivery, relay=Relay, wire=KernelConnection)
cdef void _relay_first(KernelRouter router, KernelLink link, FastRoute route, KernelLink out, TransferFrame frame, bytes data,
                       Py_ssize_t payload_at, Py_ssize_t end, bytes tag) except *
@cython.locals(out=KernelLink)
cdef void _relayed_whole(KernelRouter router, KernelLink link, Delivery received, Delivery sent, Relay relay) except *
@cython.locals(received=Delivery, sent=Delivery, relay=Relay, leg=Leg, out=KernelLink, size=long, last=bint, target=KernelSession,
               wire=KernelConnection, is_full=bint)
cdef bint _relay_next(KernelRouter router, KernelSession session, KernelLink link, TransferFrame frame, bytes data,
                      Py_ssize_t payload_at, Py_ssize_t end) except -1
@cython.locals(route=FastRoute)
cdef bint _lane_stays(KernelRouter router, KernelLink link, KernelLink out) except -1
@cython.locals(session=KernelSession, room=long)
cdef bint _fits(KernelLink link, long octets) except -1
@cython.locals(wire=KernelConnection)
cdef bint _is_full(KernelLink link) except -1
cdef bint _goes_to(KernelRouter router, KernelConnection wire, KernelConnection sink) except -1
@cython.locals(link=KernelLink)
cdef long _passed(FastRoute route) except -2
@cython.locals(waited=double, sink=KernelConnection, route=FastRoute, passed=long)
cdef bint _limit_wait(KernelRouter router, KernelConnection wire) except -1
cpdef bint goes_by(KernelConnection wire, FastRoute route) except -1
cdef bint _wait_in_line(KernelRouter router, KernelConnection wire, FastRoute route, KernelConnection sink) except -1
@cython.locals(session=KernelSession, link=KernelLink, count=Py_ssize_t, of_late=bint)
cdef bint _goes_one_way(KernelConnection wire, FastRoute route) except -1
@cython.locals(longest=KernelLink, out=KernelLink, wire=KernelConnection)
cdef void _wait_for_receiver(KernelRouter router, KernelLink link, FastRoute route) except *
cpdef bint may_go_on(KernelRouter router, FastRoute route) except -1
cdef bint _wait_for_output(KernelRouter router, KernelConnection wire, KernelConnection sink, bint is_full) except -1
@cython.locals(link=KernelLink, is_full=bint)
cdef bint _wait_for_route(KernelRouter router, KernelConnection wire, FastRoute route, long octets) except -1
@cython.locals(relay=Relay, leg=Leg)
cdef Relay _relay_by_one_leg(Delivery received, Delivery sent, double now)
@cython.locals(leg=Leg, fast=FastDelivery, recorder=Recorder, counter=long, at=double, tag=bytes, goes_on=bint)
cdef void _compact_relay(KernelRouter router, Delivery received, Delivery sent, Relay relay) except *
@cython.locals(last=Py_ssize_t)
cpdef bytes onward(bytes tag)
cpdef bytes age(bytes tag)
cdef bytes _outgoing_tag(FastDelivery fast)
@cython.locals(at=Py_ssize_t, digits=long, rest=long, tail=long, octets=Py_ssize_t, size=Py_ssize_t, o="unsigned char *",
               t="const unsigned char *")
cdef bint _write_whole(bytearray out, long channel, long handle, long delivery_id, bytes tag, long hops, long number, bint settled,
                       long mode, bytes data, Py_ssize_t payload_at, Py_ssize_t end) except -1
cdef long _uint_octets(long value) noexcept
cdef Py_ssize_t _put_uint(unsigned char *out, Py_ssize_t at, long value) noexcept
@cython.locals(link=KernelLink, best=KernelLink, turn=long, ready=long)
cdef KernelLink _ready_link(FastRoute route)
@cython.locals(links=list, link=KernelLink, out=KernelLink)
cdef KernelLink _link_for_large(FastRoute route, long octets)
@cython.locals(session=KernelSession, wire=KernelConnection)
cdef bint _is_ready(KernelLink link) except -1
cdef bint _is_free(KernelLink link) except -1
@cython.locals(last=long, code=long, form=long, after=Py_ssize_t)
cdef Py_ssize_t _bare_message_at(HeaderFields fields, bytes data, Py_ssize_t at, Py_ssize_t end, long passing, bint whole) except? -2
@cython.locals(ledger=Ledger, found=list, undecided=list, at=Py_ssize_t, count=Py_ssize_t, delivery=Delivery, work=long)
cdef bint _relay_disposition(KernelRouter router, KernelConnection wire, KernelSession session, DispositionFrame frame) except -1
@cython.locals(credit=long, seen=long, in_flight=long, window=long, skipped=long, limit=long, effect=long)
cpdef long apply_flow(KernelSession session, KernelLink link, FlowFrame frame, long allowed) except -1
@cython.locals(link=KernelLink)
cdef bint _relay_flow(KernelRouter router, KernelSession session, FlowFrame frame) except -1
cpdef long outcome_step(bint second, bint settled, bint known) noexcept
@cython.locals(incoming=KernelLink, outgoing=KernelLink, step=long, kept=KeptMessage, buried=bint)
cdef bint _pass_outcome_up(KernelRouter router, FastDelivery fast, bytes state, bint settled) except -1
cdef void _pass_settlement_down(KernelRouter router, FastDelivery fast, bytes state) except *
@cython.locals(link=KernelLink)
cdef bint _settle_incoming(KernelRouter router, FastDelivery fast, bytes state) except -1
@cython.locals(link=KernelLink)
cdef bint _settle_outgoing(KernelRouter router, FastDelivery fast) except -1

@cython.locals(width=long, after=Py_ssize_t)
cpdef Py_ssize_t skip(bytes data, Py_ssize_t at, Py_ssize_t end) except -1
cpdef long state_kind(bytes state) except? -1
cpdef bint is_terminal(bytes state) except -1

@cython.final
cdef class TransferFrame:
    cdef public long handle, delivery_id, message_format, settled, rcv_settle_mode
    cdef public bytes delivery_tag, state
    cdef public bint more, resume, aborted

@cython.final
cdef class DispositionFrame:
    cdef public bint receiver, settled
    cdef public long first, last
    cdef public bytes state

@cython.locals(payload_at=Py_ssize_t, count=long, code=long, after=Py_ssize_t, field=long, p="const unsigned char *")
cpdef Py_ssize_t read_transfer(TransferFrame frame, bytes data, Py_ssize_t at, Py_ssize_t end) except? -1
@cython.locals(value=long)
cpdef long uint32(bytes data, Py_ssize_t at) except? -1
cpdef long uint_width(long code)
@cython.locals(width=long)
cpdef Py_ssize_t uint_end(bytes data, Py_ssize_t at, Py_ssize_t end) except? -1
cpdef long uint_value(bytes data, Py_ssize_t at, long code) except? -1
@cython.locals(count=long, code=long, after=Py_ssize_t, state=bytes)
cpdef bint read_disposition(DispositionFrame frame, bytes data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.final
cdef class FlowFrame:
    cdef public long next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, link_credit
    cdef public bint drain, echo

@cython.locals(size=long, body_at=long)
cpdef long frame_size(bytes data, Py_ssize_t at, long most) except? -1
@cython.locals(end=Py_ssize_t, at=Py_ssize_t, handle_at=Py_ssize_t, after=Py_ssize_t)
cpdef tuple split_attach(bytes data)
cdef Py_ssize_t _fields_at(bytes data, Py_ssize_t at, Py_ssize_t end) except? -1
@cython.locals(count=long, field=long, value=long, after=Py_ssize_t)
cpdef bint read_flow(FlowFrame frame, bytes data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(at=Py_ssize_t, _=long, o="unsigned char *")
cdef void _append_uint(bytearray out, long value) except *
@cython.locals(start=Py_ssize_t, written=Py_ssize_t, room=Py_ssize_t)
cpdef Py_ssize_t write_transfer(bytearray out, long channel, TransferFrame frame, object payload, Py_ssize_t limit, bint in_full=*) except? -1
@cython.locals(start=Py_ssize_t, count=long, tag=bytes)
cdef bint _write_transfer_head(bytearray out, long channel, TransferFrame frame, bint in_full) except -1
@cython.locals(size=Py_ssize_t)
cdef bint _close_list(bytearray out, Py_ssize_t start, long count) except -1
@cython.locals(wire=KernelConnection, run=DispositionRun)
cpdef bint write_dispositions(KernelSession session) except -1
@cython.locals(start=Py_ssize_t, size=Py_ssize_t, count=long)
cpdef void write_disposition(bytearray out, long channel, DispositionRun run) except *
@cython.locals(out=bytearray, compact=bint, start=Py_ssize_t, window=long, count=long, drain=bint)
cpdef void write_flow(KernelSession session, KernelLink link, bint echo, bint counted=*) except *

cdef long _HEADER_SIZE
cdef long _LITTLE
cdef long _KEPT

@cython.final
cdef class Frame:
    cdef public long type, channel
    cdef public bytes body

@cython.final
cdef class FrameReader:
    cdef public long max_frame_size
    cdef public bytearray kept
    cdef bytes _data, _behind
    cdef bytearray _begun
    cdef Py_ssize_t _at, _behind_at, _wanted
    @cython.locals(size=Py_ssize_t, missing=Py_ssize_t)
    cpdef void feed(self, object data, Py_ssize_t at=*) except *
    cdef bint _keep(self, object data) except -1
    cdef Py_ssize_t _begun_size(self, object rest, object data) except -1
    cdef bint _leave_behind(self, object data, Py_ssize_t at) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bint _mark_read(self, Py_ssize_t at) except -1
    cdef bytes _unread(self)
    @cython.locals(available=bytes, length=Py_ssize_t)
    cpdef bytes next_header(self)
    cpdef bint is_empty(self) except -1
    @cython.locals(data=bytes, at=Py_ssize_t, began=Py_ssize_t, relayed=bint)
    cpdef bint relay(self, KernelConnection wire) except -1
    @cython.locals(read=bytes, at=Py_ssize_t)
    cpdef bint relay_next(self, object data, KernelConnection wire) except -1
    @cython.locals(data=bytes, at=Py_ssize_t, size=long, kind=long, channel=long, frame=Frame)
    cpdef Frame next_frame(self)
    @cython.locals(size=long)
    cpdef bint needs_more(self) except -1

cdef str _why_refused(bytes data, Py_ssize_t at, long most)
