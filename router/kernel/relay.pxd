# The types that `relay.py` has in C, where it is compiled. Whatever is not named here is Python's there, too.

cpdef long serial_add(long value, long increment)
cpdef long serial_distance(long start, long end)
cpdef Py_ssize_t skip(bytes data, Py_ssize_t at, Py_ssize_t end) except -1

cdef class Delivery:
    cdef public LinkFlow link
    cdef public bytes tag, state, remote_state
    cdef public long message_format, delivery_id, size
    cdef public bint settled, remote_settled, second, complete, aborted, ignored
    cdef public int rcv_settle_mode
    cdef public object relay, leg

cdef class Ledger:
    cdef public dict deliveries

cdef class DispositionRun:
    cdef public bint receiver, settled
    cdef public long first, last
    cdef public bytes state

cdef class SessionFlow:
    cdef public long channel, window_size, held
    cdef public long initial_outgoing_id, next_outgoing_id, next_incoming_id, incoming_limit, next_delivery_id
    cdef public long remote_incoming_window, remote_outgoing_window
    cdef public bint in_full, flow_due
    cdef public Ledger incoming, outgoing
    cdef public list dispositions
    cdef public dict progress
    cdef public object wake

cdef class LinkFlow:
    cdef public SessionFlow session
    cdef public Delivery current
    cdef public object owner
    cdef public dict unsettled
    cdef public bint sender, lowered, drain, second
    cdef public int snd_settle_mode
    cdef public long handle, delivery_count, link_credit, available, granted_limit, max_message_size
    cdef public long received, octets, presettled, accepted, rejected, released, modified
