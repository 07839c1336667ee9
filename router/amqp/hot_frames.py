"""Kernel frames made of decoded performatives: `transfer`, `disposition` and `flow`."""

from dataclasses import fields
from typing import Final

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.performatives import Disposition, Flow, Open, Transfer
from amqpmesh.router.kernel import DispositionFrame, FlowFrame, TransferFrame, descriptor_code

#: The number of fields of an `open`.
_OPEN_FIELDS: Final = len(fields(Open))


def names_all_fields(body: bytes) -> bool:
    """Return whether an encoded `open` names every field, although trailing nulls may be left out (§1.4).

    A peer that writes all fields may need them all: Azure's Python clients index past the end of a shorter `transfer`.
    """
    at = descriptor_code(body, 0, len(body))[1]
    if body[at] == 0xC0:
        return body[at + 2] == _OPEN_FIELDS
    return body[at] == 0xD0 and int.from_bytes(body[at + 5 : at + 9], "big") == _OPEN_FIELDS


def transfer_frame(transfer: Transfer) -> TransferFrame:
    """Return a decoded `transfer` as the frame that the kernel makes of the octets it reads itself (§2.7.5)."""
    return TransferFrame(
        handle=transfer.handle,
        delivery_id=-1 if transfer.delivery_id is None else transfer.delivery_id,
        delivery_tag=transfer.delivery_tag,
        message_format=-1 if transfer.message_format is None else transfer.message_format,
        settled=-1 if transfer.settled is None else int(transfer.settled),
        more=transfer.more,
        rcv_settle_mode=-1
        if transfer.rcv_settle_mode is None
        else int(transfer.rcv_settle_mode is ReceiverSettleMode.SECOND),
        state=None if transfer.state is None else encode_composite(transfer.state),
        resume=transfer.resume,
        aborted=transfer.aborted,
    )


def disposition_frame(disposition: Disposition) -> DispositionFrame:
    """Return a decoded `disposition` as the frame that the kernel makes of the octets it reads itself (§2.7.6)."""
    return DispositionFrame(
        receiver=disposition.role is Role.RECEIVER,
        first=disposition.first,
        last=disposition.first if disposition.last is None else disposition.last,
        settled=disposition.settled,
        state=None if disposition.state is None else encode_composite(disposition.state),
    )


def flow_frame(flow: Flow) -> FlowFrame:
    """Return the fields of a decoded `flow` that the kernel uses (§2.7.4)."""
    frame = FlowFrame()
    frame.next_incoming_id = -1 if flow.next_incoming_id is None else flow.next_incoming_id
    frame.incoming_window = flow.incoming_window
    frame.next_outgoing_id = flow.next_outgoing_id
    frame.outgoing_window = flow.outgoing_window
    frame.handle = -1 if flow.handle is None else flow.handle
    frame.delivery_count = -1 if flow.delivery_count is None else flow.delivery_count
    frame.link_credit = -1 if flow.link_credit is None else flow.link_credit
    frame.drain = flow.drain
    frame.echo = flow.echo
    return frame
