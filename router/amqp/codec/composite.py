"""Composite types, declared as classes, and their codec: described lists (§1.3, §1.4).

    @composite("amqp:detach:list", 0x16)
    class Detach:
        handle: Handle                      # no default: mandatory
        closed: Boolean = False             # null on the wire reads as the default
        error: Error | None = None          # None: may be null

Such a class is a frozen dataclass with slots and keyword arguments only. This module makes its readers and writers
once, from the annotations of the fields (`field_types.py` lists the annotations).
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, dataclass_transform, get_type_hints

from amqpmesh.router.amqp.codec import decoder, encoder, field_codecs
from amqpmesh.router.amqp.codec.decoder import MALFORMED, Buffer, Reader, malformed
from amqpmesh.router.amqp.codec.encoder import NULL, REFUSALS, Writer
from amqpmesh.router.amqp.codec.field_codecs import Declaration, Plan
from amqpmesh.router.amqp.codec.types import Extension, Primitive, Symbol
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, decode_error, invalid_field, shown

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a composite (§1.3.4): its name in the standard's spelling, its codec, and its value if null."""

    name: str
    plan: Plan
    default: Any

    @property
    def attribute(self) -> str:
        """The name of the field in Python."""
        return self.name.replace("-", "_")

    @property
    def mandatory(self) -> bool:
        """Null is refused."""
        return self.default is MISSING


@dataclass(frozen=True, slots=True)
class Composite(Declaration):
    """The declaration of a composite."""

    write_full: Writer
    fields: tuple[Field, ...]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def composite(name: str, code: int) -> Callable[[type[T]], type[T]]:
    """Declare a composite type by its descriptor, symbolic and numeric (§1.3.2, §1.3.3).

    Raises: TypeError: the annotation of a field does not name a type on the wire.
    """

    def declare(cls: type[T]) -> type[T]:
        if "__repr__" not in vars(cls):
            cls.__repr__ = _repr_of_what_is_set  # type: ignore[method-assign]  # the class is not complete yet
        made = dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)
        hints = get_type_hints(made, include_extras=True)
        fields = tuple(
            Field(field.name.replace("_", "-"), field_codecs.plan_for(hints[field.name]), field.default)
            for field in dataclass_fields(made)  # type: ignore[arg-type]  # mypy does not see that it is a dataclass
        )
        made.__init__ = _initializer(made, fields)  # type: ignore[method-assign]  # faster than the dataclass's own
        label = Symbol(name).split(":")[1]
        write, write_full = _writers(label, code, fields)
        field_codecs.DECLARED[made] = Composite(
            Symbol(name), code, made, _reader(made, label, fields), write, write_full, fields
        )
        _REGISTRIES[made] = Registry(made)
        encoder.VALUE_WRITERS[made] = write
        return made

    return declare


@dataclass_transform(frozen_default=True)
def restricted(name: str, code: int) -> Callable[[type[T]], type[T]]:
    """Declare a restricted type that has a descriptor (§1.3.5): a class with one field, `value`."""

    def declare(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True)(cls)
        plan = field_codecs.plan_for(get_type_hints(made, include_extras=True)["value"])
        label, head = Symbol(name).split(":")[1], _descriptor(code)
        table, write_value = plan.table(), plan.write

        def read(data: Buffer, offset: int, depth: int) -> tuple[T, int]:
            try:
                decoder.refuse_depth(depth)
                value, offset = table[data[offset]](data, offset + 1, depth + 1)
            except ProtocolError as error:
                raise _with_field_name(label, error) from error
            except MALFORMED as error:
                raise _with_field_name(label, malformed(error)) from error
            return made(value), offset  # type: ignore[call-arg]  # mypy does not see its one field

        def write(value: Any, depth: int) -> bytes:
            encoder.enter(depth)
            try:
                return head + write_value(value.value, depth + 1)
            except REFUSALS as error:
                raise ValueError(f"{label}: {error}") from error

        field_codecs.DECLARED[made] = Declaration(Symbol(name), code, made, read, write)
        _REGISTRIES[made] = Registry(made)
        encoder.VALUE_WRITERS[made] = write
        return made

    return declare


def choices(source: Primitive) -> Callable[[type[E]], type[E]]:
    """Declare an enumeration as a restricted type whose choices are its values (§1.3.5)."""

    def declare(cls: type[E]) -> type[E]:
        field_codecs.CHOICES[cls] = source
        encoder.VALUE_WRITERS[cls] = field_codecs.plan_for(cls).write
        return cls

    return declare


class Registry(Generic[T]):
    """The composites and restricted types that are expected in one place, found by descriptor.

    If `Extension` is among them, any other described value is read as an extension.
    """

    def __init__(self, *classes: type[T]) -> None:
        self.classes = [cls for cls in classes if cls is not Extension]
        otherwise = field_codecs.read_extension if Extension in classes else self._refuse
        self.read: Reader = field_codecs.descriptor_reader(
            [field_codecs.DECLARED[cls] for cls in self.classes], otherwise
        )

    def _refuse(self, data: Buffer, offset: int, depth: int) -> NoReturn:
        descriptor, _ = decoder.READERS[data[offset]](data, offset + 1, depth)
        expected = ", ".join(field_codecs.DECLARED[cls].label for cls in self.classes)
        raise decode_error(f"the descriptor {shown(descriptor)} is none of {expected}")


_REGISTRIES: dict[type, Registry[Any]] = {}
"""For each declared class, a registry of this class alone."""


def declaration(cls: type) -> Declaration:
    """Return the declaration of a composite (a `Composite`) or of a restricted type with a descriptor.

    Raises: KeyError: the class is neither.
    """
    return field_codecs.DECLARED[cls]


def encode_composite(value: object, *, full: bool = False) -> bytes:
    """Encode a composite, or a restricted type with a descriptor; an extension keeps its octets.

    Args: full: write all fields, with their defaults. Otherwise a field with its default is null, and trailing nulls
        are left out.
    Raises: CommandError: a mandatory field is None, or a value does not fit its field's type.
    """
    if isinstance(value, Extension):
        return value.octets
    declared = field_codecs.DECLARED.get(type(value))
    if declared is None:
        raise CommandError(f"{type(value).__name__} is not a declared type")
    write = declared.write_full if full and isinstance(declared, Composite) else declared.write
    try:
        return write(value, 0)
    except REFUSALS as error:
        # The message names the path to the value, as the chained tracebacks would.
        raise CommandError(f"cannot be encoded: {error}") from None


def decode_composite(expected: type[T] | Registry[T], data: Buffer, offset: int = 0) -> tuple[T, int]:
    """Decode the composite that begins at an offset. Returns: the composite, and the offset behind it.

    Args: expected: its class, or a registry of the expected classes.
    Raises: ProtocolError(CONNECTION, decode-error): the data does not begin with a legal encoding of an expected class.
        ProtocolError(CONNECTION, invalid-field): a mandatory field is null, or a value is not permitted in its field.
    """
    registry = expected if isinstance(expected, Registry) else _REGISTRIES[expected]
    try:
        if data[offset] != 0x00:
            raise decode_error(f"format code 0x{data[offset]:02x} is not a described type")
        return registry.read(data, offset + 1, 0)
    except MALFORMED as error:
        raise malformed(error) from error


# Readers and writers of a class.


def _descriptor(code: int) -> bytes:
    return b"\x00" + encoder.FIELD_WRITERS[Primitive.ULONG](code, 0)


def _with_field_name(where: str, error: ProtocolError) -> ProtocolError:
    return ProtocolError(error.scope, error.condition, f"{where}: {error.description}", error.info)


def _table(field: Field) -> list[Reader]:
    """Return the readers of a field, by format code; null reads as the default, or is refused."""
    table = field.plan.table()

    def refuse_null(_data: Buffer, _offset: int, _depth: int) -> NoReturn:
        raise invalid_field("is mandatory")

    def read_default(_data: Buffer, offset: int, _depth: int) -> tuple[Any, int]:
        return field.default, offset

    table[0x40] = refuse_null if field.mandatory else read_default
    if field.mandatory and field.plan.multiple:
        table = [_at_least_one(reader) for reader in table]
    return table


def _initializer(cls: type, fields: tuple[Field, ...]) -> Callable[..., None]:
    """Make an `__init__` like the dataclass's, but faster: it sets the slots past the frozen class's `__setattr__`."""
    names: dict[str, Any] = {}
    arguments, lines = ["self", "*"], ["pass"]
    for number, field in enumerate(fields):
        names[f"put{number}"] = getattr(cls, field.attribute).__set__
        names[f"default{number}"] = field.default
        arguments.append(field.attribute if field.mandatory else f"{field.attribute}=default{number}")
        lines.append(f"put{number}(self, {field.attribute})")
    if not fields:
        arguments.pop()
    source = f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines)
    exec(source, names)  # noqa: S102 - of names that were declared here
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = vars(cls)["__init__"].__annotations__
    return made


def _octet_code(field: Field) -> int:
    """Return the format code of a one-octet number that is a value of this field without conversion; -1: none."""
    codes = (code for code, reader in field.plan.readers.items() if reader is decoder.read_octet)
    return next(codes, -1)


def _at_least_one(reader: Reader) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        values, offset = reader(data, offset, depth)
        if not values:
            raise invalid_field("is mandatory, and an empty array is no value")
        return values, offset

    return read


def _reader(cls: type[T], label: str, fields: tuple[Field, ...]) -> Reader:
    """Make the reader of the list behind the descriptor."""
    width = len(fields)
    names = [field.name for field in fields]
    # The slots are set past the __setattr__ of the frozen class.
    setters = [getattr(cls, field.attribute).__set__ for field in fields]
    steps = [
        (_table(field), put, field.default, _octet_code(field)) for field, put in zip(fields, setters, strict=True)
    ]
    defaults = [(put, field.default) for field, put in zip(fields, setters, strict=True)]
    # By the number of fields in the list: fields to read, fields with their default, a mandatory field that is missing.
    present = [steps[:count] for count in range(width + 1)]
    absent = [defaults[count:] for count in range(width + 1)]
    missing = [next((field.name for field in fields[count:] if field.mandatory), None) for count in range(width + 1)]

    # All empty values are one object, which is frozen.
    empty = cls() if missing[0] is None else None

    def span(data: Buffer, offset: int, depth: int) -> tuple[int, int, int]:
        code = data[offset]
        if code == 0xC0:
            begin, end, count = decoder.span8(data, offset + 1)
        elif code == 0xD0:
            begin, end, count = decoder.span32(data, offset + 1)
        elif code == 0x45:
            begin, end, count = offset + 1, offset + 1, 0
        else:
            raise decode_error(f"format code 0x{code:02x} is not a list")
        decoder.enter(data, begin, end, count, depth)
        if count > width:
            raise decode_error(f"{count} fields where {width} are defined")
        return begin, end, count

    def read(data: Buffer, offset: int, depth: int) -> tuple[T, int]:
        value = cls.__new__(cls)
        put: Any = None
        try:
            depth += 1  # a composite is a described value and a list: two levels
            if empty is not None and data[offset] == 0x45:
                decoder.refuse_depth(depth)
                return empty, offset + 1
            offset, end, count = span(data, offset, depth)
            for table, put, default, octet_code in present[count]:
                code = data[offset]
                # Most fields are null or a small number, and are read in place.
                if code == 0x40 and default is not MISSING:
                    put(value, default)
                    offset += 1
                elif code == octet_code:
                    put(value, data[offset + 1])
                    offset += 2
                else:
                    item, offset = table[code](data, offset + 1, depth + 1)
                    put(value, item)
            decoder.leave(offset, end)
        except ProtocolError as error:
            raise _with_field_name(where(put), error) from error
        except MALFORMED as error:
            raise _with_field_name(where(put), malformed(error)) from error
        if missing[count] is not None:
            raise invalid_field(f"{label}.{missing[count]}: is mandatory")
        for put, default in absent[count]:
            put(value, default)
        return value, offset

    def where(put: Any) -> str:
        """Return the name of the field that is read, found by its setter; before the first field, the composite's."""
        return label if put is None else f"{label}.{names[setters.index(put)]}"

    return read


def _writers(label: str, code: int, fields: tuple[Field, ...]) -> tuple[Writer, Writer]:
    """Make two writers of the described list: without trailing nulls and defaults, and in full."""
    head = _descriptor(code)
    compact, in_full = _fields_writer(fields, full=False), _fields_writer(fields, full=True)
    mandatory = [index for index, field in enumerate(fields) if field.mandatory]

    def written(value: Any, depth: int, write_fields: _FieldsWriter) -> list[bytes]:
        encoder.enter(depth + 1)
        try:
            octets = write_fields(value, depth + 2)
        except REFUSALS as error:
            raise refused(error) from error
        for index in mandatory:
            if octets[index] is NULL:
                raise ValueError(f"{label}.{fields[index].name}: is mandatory")
        return octets

    def refused(error: Exception) -> ValueError:
        """Return the refusal with the name of its field, found by its line in the source of `_fields_writer`."""
        trace = error.__traceback__
        assert trace is not None
        assert trace.tb_next is not None
        return ValueError(f"{label}.{fields[trace.tb_next.tb_lineno - 2].name}: {error}")

    def write(value: Any, depth: int) -> bytes:
        octets = written(value, depth, compact)
        while octets and octets[-1] is NULL:
            octets.pop()
        return finish(octets)

    def write_full(value: Any, depth: int) -> bytes:
        return finish(written(value, depth, in_full))

    def finish(octets: list[bytes]) -> bytes:
        if not octets:
            return head + b"\x45"
        return encoder.compound(head, 0xC0, 0xD0, len(octets), b"".join(octets))

    return write, write_full


_FieldsWriter: TypeAlias = Callable[[Any, int], list[bytes]]


def _fields_writer(fields: tuple[Field, ...], *, full: bool) -> _FieldsWriter:
    """Make the writer of the fields of a value. Args: full: write defaults, too; otherwise they are null.

    It is compiled from source, as dataclasses compile theirs: a loop over the fields takes three times as long.
    """
    names: dict[str, Any] = {"NULL": NULL}
    written = []
    for number, field in enumerate(fields):
        names[f"write{number}"] = field.plan.write
        names[f"default{number}"] = field.default
        item = f"(item := value.{field.attribute})"
        otherwise = f"write{number}(item, depth)"
        if field.default is None or field.mandatory:
            written.append(f"NULL if {item} is None else {otherwise}")
        elif full:
            names[f"octets{number}"] = field.plan.write(field.default, 0)
            written.append(f"octets{number} if {item} is default{number} else NULL if item is None else {otherwise}")
        else:
            written.append(
                f"NULL if {item} is default{number} or item is None or item == default{number} else {otherwise}"
            )
    source = "lambda value, depth: [\n" + ",\n".join(written) + "]"
    writer: _FieldsWriter = eval(source, names)  # noqa: S307 - of names that were declared here
    return writer


def _repr_of_what_is_set(self: object) -> str:
    """Return a dataclass's repr without the fields that have their default, for logs."""
    declared = declaration(type(self))
    fields = declared.fields if isinstance(declared, Composite) else ()
    values = [(field, getattr(self, field.attribute)) for field in fields]
    shown = [f"{field.attribute}={value!r}" for field, value in values if field.mandatory or value != field.default]
    return f"{type(self).__name__}({', '.join(shown)})"
