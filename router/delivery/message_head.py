"""The head sections of a message, rewritten for its next hop or attempt: ttl and annotations (§3.2.1 to §3.2.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeVar

from amqpmesh.policies.annotations import MESH_PREFIX, DeliveryAnnotationsRule, must_be_understood, passing
from amqpmesh.policies.expiry import remaining_ttl
from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES, refuse_values
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Header, MessageAnnotations, Modified
from amqpmesh.router.kernel import Head, Relay, patch_ttl, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

FINAL_ADDRESS = Symbol(f"{MESH_PREFIX}to")
"""The delivery annotation with a message's final address, on transit lanes."""

PRESETTLED = Symbol(f"{MESH_PREFIX}settled")
"""The delivery annotation of a message that is unsettled only on its transit lane: its sender has settled it."""

TRACE = Symbol(f"{MESH_PREFIX}trace")
"""The delivery annotation of a message that is followed: the id of its trace."""

LONGEST_KEPT: Final = 64
"""Octets of the longest header sections whose successors are remembered."""

OURS = 32
"""The most values that routers add to delivery annotations."""

_MESH_PREFIX = MESH_PREFIX.encode()
_PRESETTLED = PRESETTLED.encode()
_TRACE = TRACE.encode()
#: The descriptor of delivery annotations in its short form, and in the long one, which the kernel does not relay.
_SHORT = b"\x00\x53\x71"
_LONG = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x71"
_UINT_MAX = 2**32 - 1

T = TypeVar("T")
_ANNOTATIONS: Registry[DeliveryAnnotations | MessageAnnotations] = Registry(DeliveryAnnotations, MessageAnnotations)


def _decoded(expected: type[T] | Registry[T], section: bytes, most: int = FEW_VALUES) -> T:
    """Decode a head section. Raises: ProtocolError: it is malformed, or has too many values to be read in one turn."""
    refuse_values(section, most)
    return decode_composite(expected, section)[0]


def expires_at(relay: Relay) -> float | None:
    """Return the time when a message expires, by its ttl or its absolute expiry, in seconds; None: never.

    A message with a ttl of 0 never expires: some clients write 0 for "none", and a message that expires before it is
    sent has no use.
    """
    head = relay.head
    at = relay.expires
    if head is not None and head.ttl > 0:
        at = min(at, relay.arrived + head.ttl / 1000)
    return at if isfinite(at) else None


def strict_refusal(data: bytes, head: Head) -> Error | None:
    """Return the error for the link of a message by the strict reading of §3.2.10; None: there is none.

    The router understands no annotation, so each one that must be understood is refused. The footer is not checked:
    when it comes the message has left already.
    Args: data: the bytes that `head` was read from.
    """
    for start, end in (head.delivery_annotations, head.message_annotations):
        if not end:
            continue
        try:
            annotations = _decoded(_ANNOTATIONS, data[start:end])
        except ProtocolError as error:
            return Error(condition=error.condition, description=str(error))
        strange = next((key for key in annotations.value if must_be_understood(key)), None)
        if strange is not None:
            return Error(
                condition=AmqpCondition.NOT_IMPLEMENTED, description=f"the annotation {strange!r} is not understood"
            )
    return None


def leaving(
    relay: Relay,
    data: bytes,
    rule: DeliveryAnnotationsRule,
    now: float,
    *,
    ours: Mapping[Symbol | ULong, Value] | None = None,
    within_mesh: bool = False,
) -> bytes | None:
    """Return the first bytes of a message as they leave now; None: it has expired.

    The ttl changes in place, and delivery annotations that do not pass are removed. The bare message is copied.
    Args: data: the bytes as they came, up to the bare message or further. ours: delivery annotations for the next
        router. within_mesh: the message came by a lane, and leaves by lanes of the same kind.
    """
    head = relay.head
    if head is None:
        return data
    if head.ttl > 0:
        remaining = remaining_ttl(head.ttl, now - relay.arrived)
        if remaining is None:
            return None
        if remaining != head.ttl:
            data = patch_ttl(data, head, remaining)
    if relay.expires <= now:
        return None
    start, end = head.delivery_annotations
    if ours or (end and (rule is DeliveryAnnotationsRule.DROP or _MESH_PREFIX in data[start:end])):
        if not end:
            start = end = head.header[1]
        kept = _passing_annotations(data[start:end], rule, ours or {}, within_mesh=within_mesh)
        relay.section_shift = (end > start) - bool(kept)
        data = data[:start] + kept + data[end:]
    return data


def _passing_annotations(
    section: bytes, rule: DeliveryAnnotationsRule, ours: Mapping[Symbol | ULong, Value], *, within_mesh: bool
) -> bytes:
    """Return a delivery-annotations section of those that pass, and `ours`; empty, if there are none."""
    kept: dict[Symbol | ULong, Value] = {}
    if section and (rule is DeliveryAnnotationsRule.PASS or within_mesh):
        # A neighbour reads no more values than this router: leave room for the added ones.
        most = FEW_VALUES - OURS if ours and not within_mesh else FEW_VALUES
        try:
            annotations = _decoded(DeliveryAnnotations, section, most)
        except ProtocolError:
            # The section is malformed or has too many values, and may hide a key of the mesh: none of it passes.
            pass
        else:
            kept = passing(annotations.value, rule, within_mesh=within_mesh)
    kept.update(ours)
    if not kept:
        return b""
    section = encode_composite(DeliveryAnnotations(value=kept))
    return section.replace(_SHORT, _LONG, 1) if TRACE in kept else section


def trace_mark(data: bytes, head: Head) -> Value:
    """Return the mark of a message that is followed; None: it has none. Args: data: what `head` was read from."""
    start, end = head.delivery_annotations
    section = data[start:end]
    return delivery_annotations(section).get(TRACE) if _TRACE in section else None


def with_trace_mark(data: bytes, head: Head, trace_id: bytes) -> bytes:
    """Return the first bytes of a message with a mark, and without other annotations of the mesh.

    Args: data: what is about to leave, with the head sections that `head` describes.
    """
    start, end = head.delivery_annotations
    if not end:
        start = end = head.header[1]
    ours: dict[Symbol | ULong, Value] = {TRACE: trace_id}
    section = _passing_annotations(data[start:end], DeliveryAnnotationsRule.PASS, ours, within_mesh=False)
    return data[:start] + section + data[end:]


def delivery_annotations(section: bytes) -> Mapping[Symbol | ULong, Value]:
    """Return the annotations of a section; none if it is empty, malformed, or has too many values."""
    if not section:
        return {}
    try:
        return _decoded(DeliveryAnnotations, section).value
    except ProtocolError:
        return {}


def final_address(data: bytes, head: Head) -> str | None:
    """Return the final address of a message, as the neighbour on a transit lane gave it; None: it gave none.

    Args: data: the bytes that `head` was read from.
    """
    start, end = head.delivery_annotations
    to = delivery_annotations(data[start:end]).get(FINAL_ADDRESS)
    return to if isinstance(to, str) and not isinstance(to, Symbol) else None


def only_final_address(section: bytes) -> tuple[str | None, bool]:
    """Return the final address in a section of delivery annotations, and whether the sender has settled the message.

    Returns: None: the section has no final address, or more than these two.
    """
    annotations = delivery_annotations(section)
    to, settled = annotations.get(FINAL_ADDRESS), annotations.get(PRESETTLED) is True
    is_alone = len(annotations) == 1 + settled and isinstance(to, str) and not isinstance(to, Symbol)
    return to if is_alone else None, settled  # type: ignore[return-value]  # `is_alone` tells that it is a string


def is_presettled(data: bytes, head: Head) -> bool:
    """Tell whether the sender of a message on a transit lane has settled it. Args: as of `final_address`."""
    start, end = head.delivery_annotations
    section = data[start:end]
    return _PRESETTLED in section and delivery_annotations(section).get(PRESETTLED) is True


def redelivered(data: bytes, *, failed: bool, modified: Modified | None) -> bytes:
    """Return a whole message for its next attempt, with a new header and merged message annotations.

    A message with malformed or misplaced sections stays as it came, and so do annotations of too many values.
    Args: failed: the last attempt counts as a failed delivery. modified: its message annotations are merged.
    Source: §3.2.1 (first-acquirer, delivery-count), §3.4.5.
    """
    head = read_head(data, complete=True)
    if head is None or head.irregular:
        return data
    try:
        start, end = head.header
        header = (_next_header if end - start <= LONGEST_KEPT else _new_header)(data[start:end], failed)
        start, end = head.message_annotations
        annotations = data[start:end]
        if modified is not None and modified.message_annotations:
            annotations = _merged(annotations, modified.message_annotations)
    except ProtocolError:
        return data
    start, end = head.delivery_annotations
    return header + data[start:end] + annotations + data[head.bare_at :]


def _new_header(section: bytes, failed: bool) -> bytes:
    """Return the header section of a message's next attempt. Args: section: of the last; empty: it had none.

    Raises: ProtocolError: it is malformed.
    """
    header = _decoded(Header, section) if section else Header()
    tries = min(header.delivery_count + failed, _UINT_MAX)
    return encode_composite(replace(header, first_acquirer=False, delivery_count=tries))


#: The same for short sections, which are alike in most messages.
_next_header: Final = lru_cache(maxsize=64)(_new_header)


def _merged(section: bytes, added: Mapping[Symbol, Value]) -> bytes:
    """Return a message-annotations section with more annotations; unchanged, if it has too many values.

    Raises: ProtocolError: it is malformed.
    """
    merged: dict[Symbol | ULong, Value] = {}
    if section:
        try:
            merged.update(_decoded(MessageAnnotations, section).value)
        except ProtocolError as error:
            if error.condition != AmqpCondition.RESOURCE_LIMIT_EXCEEDED:
                raise
            return section
    merged.update(added.items())
    return encode_composite(MessageAnnotations(value=merged))


def without_ttl(data: bytes) -> bytes:
    """Return a whole message without ttl, since dead letters do not expire. A malformed header stays as it came."""
    head = read_head(data, complete=True)
    if head is None or head.ttl == -1:
        return data
    start, end = head.header
    try:
        header = replace(_decoded(Header, data[start:end]), ttl=None)
    except ProtocolError:
        return data
    return data[:start] + encode_composite(header) + data[end:]
