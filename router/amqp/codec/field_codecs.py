"""Readers and writers of the fields of composites, made from the annotations once per class."""

import types as python_types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, reduce
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from amqpmesh.router.amqp.codec import decoder, encoder, types
from amqpmesh.router.amqp.codec.decoder import Buffer, Reader, Span
from amqpmesh.router.amqp.codec.encoder import NULL, Writer
from amqpmesh.router.amqp.codec.field_types import MaxOctets, Shape
from amqpmesh.router.amqp.codec.maps import Entries
from amqpmesh.router.amqp.codec.types import Extension, Primitive, Symbol
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES, behind, refuse_values
from amqpmesh.router.amqp.errors import decode_error, invalid_field, shown


@dataclass(frozen=True, slots=True)
class Plan:
    """The readers and the writer for values of one annotation.

    Args: label: the name of the type, for errors.
        readers: by format code; 0x00 for described types. Null is among them only if any value is permitted.
        write: raises one of `encoder.REFUSALS` for a value that is not of the type.
        classes: the Python classes of the values, by which a union finds the plan for a value.
        nullable: null is permitted, and reads as None.
        multiple: the annotation is one with `Multiple`.
        kind: of a field that the kernel reads and writes (`kernel.ListField`). members, written: of an enumeration, its
            members by value, and their encodings. declared: the described types that are permitted.
    """

    label: str
    readers: Mapping[int, Reader]
    write: Writer
    classes: tuple[type, ...]
    nullable: bool = False
    multiple: bool = False
    kind: str = ""
    members: Mapping[Any, Any] | None = None
    written: Mapping[Any, bytes] | None = None
    declared: "tuple[Declaration, ...]" = ()

    def table(self) -> list[Reader]:
        """Return the readers by any octet as format code, null included if it is permitted."""
        label = self.label

        def refuse(data: Buffer, offset: int, _depth: int) -> NoReturn:
            raise decode_error(f"format code 0x{data[offset - 1]:02x} is not of type {label}")

        table: list[Reader] = [refuse] * 256
        for code, reader in self.readers.items():
            table[code] = reader
        if self.nullable:
            for code, reader in decoder.PLAIN[Primitive.NULL].items():
                table[code] = reader
        return table


@dataclass(frozen=True, slots=True)
class Declaration:
    """A type declared with a descriptor: the reader of the value behind the descriptor, and the writer of the whole."""

    name: Symbol
    code: int
    cls: type
    read: Reader
    write: Writer

    @property
    def label(self) -> str:
        """The name of the type without domain and representation: `attach` for `amqp:attach:list`."""
        return self.name.split(":")[1]


DECLARED: dict[type, Declaration] = {}
"""All declared composites and restricted types with a descriptor, by class."""

CHOICES: dict[type[Enum], Primitive] = {}
"""The source types of all declared restricted types with choices, by class."""

_PYTHONS_OWN = {type(None), bool, int, float, str, bytes, bytearray, memoryview, list, tuple, dict}
"""Classes without a single AMQP type: an int could be of nine types."""


def plan_for(annotation: Any) -> Plan:
    """Make the plan for an annotation.

    Raises: TypeError: the annotation is none of those in `field_types.py`.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _annotated(*get_args(annotation))
    if origin is Union or origin is python_types.UnionType:
        return _union(get_args(annotation))
    if annotation in DECLARED:
        return _described([DECLARED[annotation]], refuse_unknown)
    if annotation in CHOICES:
        return _choices(annotation, CHOICES[annotation], others=False)
    if annotation in encoder.CLASSES.keys() - _PYTHONS_OWN:
        primitive = encoder.CLASSES[annotation]
        return Plan(primitive.value, decoder.TYPED[primitive], encoder.FIELD_WRITERS[primitive], (annotation,))
    raise TypeError(f"{annotation!r} does not say what it is on the wire")


_ANY: dict[int, Reader] = {0x00: decoder.READERS[0x00], **decoder.READERS_BY_CODE}

_SHORT = 12  # octets of `received` with the position behind all sections: the longest state that most maps have

_FEW_KNOWN = 64  # values that a lazy map remembers

_NOT_SIMPLE = {Primitive.LIST, Primitive.MAP, Primitive.ARRAY}

_SIMPLE = {code: read for code, read in _ANY.items() if decoder.ENCODINGS.get(code) not in _NOT_SIMPLE}


def _write_simple(value: Any, depth: int) -> bytes:
    octets = encoder.write_value(value, depth)
    if octets[0] not in _SIMPLE:
        raise TypeError(f"{shown(value)} is a list, a map or an array")
    return octets


def _annotated(base: Any, kind: Primitive | Shape, *restrictions: MaxOctets) -> Plan:
    if kind is Shape.ANY:
        return Plan("*", _ANY, encoder.write_value, (), nullable=True)
    if kind is Shape.SIMPLE:
        return Plan("simple", _SIMPLE, _write_simple, (), nullable=True)
    if kind is Shape.MULTIPLE:
        return _multiple(plan_for(get_args(base)[0]))
    if kind in (Shape.MAP, Shape.LAZY_MAP):
        key, value = get_args(base)
        return _map(plan_for(key), plan_for(value), lazy=kind is Shape.LAZY_MAP)
    classes = (get_origin(base) or base,)
    plan = Plan(kind.value, decoder.PLAIN[kind], encoder.FIELD_WRITERS[kind], classes, kind=kind.value)
    return reduce(_with_limit, restrictions, plan)


def _converting_readers(readers: Mapping[int, Reader], convert: Callable[[Any], Any]) -> dict[int, Reader]:
    """Make readers that convert the values of other readers."""

    def wrap(reader: Reader) -> Reader:
        def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
            value, offset = reader(data, offset, depth)
            return convert(value), offset

        return read

    return {code: wrap(reader) for code, reader in readers.items()}


def _with_limit(plan: Plan, limit: MaxOctets) -> Plan:
    most, write = limit.octets, plan.write

    def check(value: bytes) -> bytes:
        if len(value) > most:
            raise invalid_field(f"{len(value)} octets are more than {most}")
        return value

    def write_checked(value: bytes, depth: int) -> bytes:
        if len(value) > most:
            raise ValueError(f"{len(value)} octets are more than {most}")
        return write(value, depth)

    return replace(plan, readers=_converting_readers(plan.readers, check), write=write_checked, kind="")


def _choices(cls: type[Enum], source: Primitive, *, others: bool) -> Plan:
    """Make the plan for choices. Args: others: any other value of the source type is permitted, too (extensions)."""
    members = {member.value: member for member in cls}
    written = {member: encoder.FIELD_WRITERS[source](member.value, 0) for member in cls}

    def choose(value: Any) -> Any:
        try:
            return members[value]
        except KeyError:
            if others:
                return value
            raise invalid_field(f"{shown(value)} is not one of the choices of {cls.__name__}") from None

    def write(value: Any, depth: int) -> bytes:
        try:
            return written[value]
        except KeyError:
            if others:
                return encoder.FIELD_WRITERS[source](value, depth)
            raise ValueError(f"{shown(value)} is not one of the choices of {cls.__name__}") from None

    readers = _converting_readers(decoder.PLAIN[source], choose)
    return Plan(source.value, readers, write, (cls,), kind=source.value, members=members, written=written)


# Described types: the descriptor chooses the reader.


def refuse_unknown(data: Buffer, offset: int, depth: int) -> NoReturn:
    """Refuse a described type that is none of the permitted ones."""
    descriptor, _ = decoder.READERS[data[offset]](data, offset + 1, depth)
    raise invalid_field(f"a described type with the descriptor {shown(descriptor)} is not permitted here")


def is_of_the_standard(descriptor: types.Value) -> bool:
    """Return whether a descriptor is one of the standard's."""
    return any(descriptor in (each.code, each.name) for each in DECLARED.values())


def read_extension(data: Buffer, offset: int, depth: int) -> tuple[Extension, int]:
    """Read an extension: a well-formed value of an unknown described type, whose octets are kept.

    A type of the standard that is not permitted here is refused.
    """
    value, end = decoder.READERS[0x00](data, offset, depth)
    if is_of_the_standard(value.descriptor):
        refuse_unknown(data, offset, depth)
    return Extension(bytes(data[offset - 1 : end])), end


def write_extension(value: Extension, _depth: int) -> bytes:
    """Write an extension: the octets that came."""
    return value.octets


def descriptor_reader(declared: Iterable[Declaration], otherwise: Reader) -> Reader:
    """Make a reader for offsets behind the 0x00 of a described type, chosen by numeric or symbolic descriptor (§1.5).

    Args: otherwise: the reader for any other descriptor, from the same offset; it may refuse.
    """
    declared = list(declared)
    by_code = {one.code: one.read for one in declared}
    by_name = {one.name: one.read for one in declared}

    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        reader: Reader | None = None
        if data[offset] == 0x53:
            body = offset + 2
            reader = by_code.get(data[offset + 1])
        else:
            descriptor, body = decoder.READERS[data[offset]](data, offset + 1, depth)
            # Compared by class: in Python uint 0x24 equals ulong 0x24, but only the latter is a descriptor.
            if type(descriptor) is types.ULong:
                reader = by_code.get(descriptor)
            elif type(descriptor) is Symbol:
                reader = by_name.get(descriptor)
        if reader is None:
            return otherwise(data, offset, depth)
        return reader(data, body, depth)

    return read


def _described(declared: list[Declaration], otherwise: Reader) -> Plan:
    label = " or ".join(one.label for one in declared)
    writers: dict[type, Writer] = {one.cls: one.write for one in declared}
    if otherwise is read_extension:
        writers[Extension] = write_extension
    readers = {0x00: descriptor_reader(declared, otherwise)}
    write = _write_by_class(writers)
    return Plan(label, readers, write, tuple(writers), kind="described", declared=tuple(declared))


# Unions: the format code, and for described types the descriptor, chooses the reader; the class chooses the writer.


def _union(members: tuple[Any, ...]) -> Plan:
    nullable = type(None) in members
    declared = [DECLARED[member] for member in members if member in DECLARED]
    others = [member for member in members if member not in (type(None), Extension) and member not in DECLARED]
    choice = next((member for member in others if member in CHOICES), None)
    if choice is not None:
        # The source type of the choices is in the union, too: other values are permitted.
        plans = [_choices(choice, CHOICES[choice], others=True)]
    else:
        plans = [plan_for(member) for member in others]
    open_ended = any(plan.label == "*" for plan in plans)
    if declared:
        otherwise = read_extension if Extension in members else refuse_unknown
        plans.append(_described(declared, decoder.READERS[0x00] if open_ended else otherwise))
    if len(plans) == 1:
        return replace(plans[0], nullable=nullable or plans[0].nullable)
    readers = {code: reader for plan in plans for code, reader in plan.readers.items()}
    writers = {cls: plan.write for plan in plans for cls in plan.classes}
    write = encoder.write_value if open_ended else _write_by_class(writers)
    return Plan(" or ".join(plan.label for plan in plans), readers, write, tuple(writers), nullable or open_ended)


def _write_by_class(writers: Mapping[type, Writer]) -> Writer:
    def write(value: Any, depth: int) -> bytes:
        writer = writers.get(type(value)) or inherited(type(value))
        if writer is None:
            raise TypeError(f"{shown(value)} is not permitted here")
        return writer(value, depth)

    def inherited(cls: type) -> Writer | None:
        return next((writers[base] for base in cls.__mro__ if base in writers), None)

    return write


# Multiple values and maps.


def _by_width(primitive: Primitive, make: Callable[[Span], Reader]) -> dict[int, Reader]:
    """Return the readers of both encodings of a map or array: sizes and counts of one octet, or of four."""
    return dict(zip(decoder.PLAIN[primitive], map(make, (decoder.span8, decoder.span32)), strict=True))


def _multiple(one: Plan) -> Plan:
    source = Primitive(one.label)

    def many(span: Span) -> Reader:
        def read(data: Buffer, offset: int, depth: int) -> tuple[tuple[Any, ...], int]:
            begin, end, count = span(data, offset)
            _, values, descriptors = decoder.read_elements(data, begin, end, count, depth, one.readers)
            if descriptors:
                raise decode_error(f"described elements are not of type {one.label}")
            return tuple(values), end

        return read

    def write(values: Iterable[Any], depth: int) -> bytes:
        if isinstance(values, str | bytes):
            raise TypeError(f"{shown(values)} is one value, not a tuple of them")
        values = tuple(values)
        if not values:
            return NULL
        if len(values) == 1:
            return one.write(values[0], depth)
        return encoder.write_array(types.Array(source, values), depth)

    single = _converting_readers(one.readers, lambda value: (value,))
    readers = single | _by_width(Primitive.ARRAY, many)
    return Plan(one.label, readers, write, (tuple,), multiple=True)


def _symbol(text: str) -> Symbol:
    try:
        return Symbol(text)
    except ValueError as error:
        raise decode_error(f"as a key, {error}") from None


def _strings_as_symbols(key: Plan) -> Plan:
    """Return a plan for keys that reads strings as symbols, if keys are symbols.

    rhea writes the names in an error's info as strings. A router that refused them would end the connection of each
    such client that gives a reason for a rejection.
    """
    symbols = decoder.PLAIN[Primitive.SYMBOL].keys()
    strings = decoder.PLAIN[Primitive.STRING]
    if not symbols <= key.readers.keys() or strings.keys() & key.readers.keys():
        return key
    return replace(key, readers={**key.readers, **_converting_readers(strings, _symbol)})


def _map(key: Plan, value: Plan, *, lazy: bool) -> Plan:
    """Make the plan for a map. Args: lazy: entries are decoded on demand."""
    key_table, value_table = _strings_as_symbols(key).table(), value.table()
    #: Short described values that came lately: most entries of an unsettled map have one of a few states.
    known: dict[tuple[int, bytes], Any] = {}

    def later(depth: int, octets: bytes, offset: int) -> tuple[Any, Any, int]:
        try:
            one, offset = key_table[octets[offset]](octets, offset + 1, depth)
            end = behind(octets, offset)
            if end - offset > FEW_VALUES:
                refuse_values(octets[offset:end], FEW_VALUES)
            if octets[offset] == 0x00 and end - offset <= _SHORT:
                content = known.get((depth, octets[offset:end]))
                if content is not None:
                    return one, content, end
            begin = offset
            content, offset = value_table[octets[offset]](octets, offset + 1, depth)
            if octets[begin] == 0x00 and offset - begin <= _SHORT:
                if len(known) >= _FEW_KNOWN:
                    known.clear()
                known[depth, octets[begin:offset]] = content
        except decoder.MALFORMED as error:
            raise decoder.malformed(error) from error
        return one, content, offset

    def entries(span: Span) -> Reader:
        def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
            offset, end, count = span(data, offset)
            decoder.enter(data, offset, end, count, depth)
            decoder.refuse_odd(count)
            depth += 1
            if lazy:
                return Entries(bytes(data[offset:end]), count // 2, partial(later, depth)), end
            keys, values = [], []
            for _ in range(count // 2):
                one, offset = key_table[data[offset]](data, offset + 1, depth)
                keys.append(one)
                one, offset = value_table[data[offset]](data, offset + 1, depth)
                values.append(one)
            decoder.leave(offset, end)
            return decoder.distinct(keys, values), end

        return read

    def write(entries: Mapping[Any, Any], depth: int) -> bytes:
        encoder.enter(depth)
        depth += 1
        parts = []
        for one, content in entries.items():
            parts.append(key.write(one, depth))
            parts.append(NULL if content is None and value.nullable else value.write(content, depth))
        return encoder.compound(b"", 0xC1, 0xD1, len(parts), b"".join(parts))

    return Plan("map", _by_width(Primitive.MAP, entries), write, (Mapping,))
