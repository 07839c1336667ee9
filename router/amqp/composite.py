"""A class declaration becomes a described list (§1.3, §1.4).

    @composite("amqp:detach:list", 0x16)
    class Detach:
        handle: Handle                      # no default: mandatory
        closed: Boolean = False             # null on the wire reads as the default
        error: Error | None = None          # None: may be null

The class is a frozen dataclass with slots and keyword arguments only. Its readers and writers are made once, here, from the
annotations (`fields.py` says which there are); nothing is declared twice.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeVar, dataclass_transform, get_type_hints

from amqpmesh.router.amqp import decoder, encoder, plans
from amqpmesh.router.amqp.decoder import MALFORMED, Buffer, Reader, malformed
from amqpmesh.router.amqp.encoder import NULL, REFUSALS, Writer
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, decode_error, invalid_field
from amqpmesh.router.amqp.plans import Described, Plan
from amqpmesh.router.amqp.types import Primitive, Symbol

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a composite (§1.3.4): its name in the standard's spelling, its type, what null reads as."""

    name: str
    plan: Plan
    default: Any

    @property
    def mandatory(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True, slots=True)
class Composite(Described):
    """A composite as it was declared."""

    write_full: Writer
    fields: tuple[Field, ...]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def composite(name: str, code: int) -> Callable[[type[T]], type[T]]:
    """Declare a composite type by its descriptor, symbolic and numeric (§1.3.2, §1.3.3).

    Raises: TypeError: the annotation of a field does not say what it is on the wire.
    """

    def declare(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)
        if "__repr__" not in cls.__dict__:
            made.__repr__ = _repr_of_what_is_set  # type: ignore[assignment]  # a plain function is a method of `made`
        hints = get_type_hints(made, include_extras=True)
        fields = tuple(
            Field(field.name.replace("_", "-"), plans.plan_for(hints[field.name]), field.default)
            for field in dataclass_fields(made)  # type: ignore[arg-type]  # mypy does not follow dataclass() as a function
        )
        label = Symbol(name).split(":")[1]
        plans.DESCRIBED[made] = described = Composite(
            Symbol(name), code, made, _reader(made, label, fields), *_writers(label, code, fields), fields
        )
        encoder.VALUE_WRITERS[made] = described.write
        return made

    return declare


@dataclass_transform(frozen_default=True)
def restricted(name: str, code: int) -> Callable[[type[T]], type[T]]:
    """Declare a restricted type that has a descriptor (§1.3.5): a class with one field, `value`."""

    def declare(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True)(cls)
        plan = plans.plan_for(get_type_hints(made, include_extras=True)["value"])
        label, head = Symbol(name).split(":")[1], _descriptor(code)
        table, write_value = plans.nullable(plan).table(), plan.write

        def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
            try:
                value, offset = table[data[offset]](data, offset + 1, depth + 1)
            except ProtocolError as error:
                raise _within(label, error) from error
            except MALFORMED as error:
                raise _within(label, malformed(error)) from error
            return made(value), offset  # type: ignore[call-arg]  # its one field

        def write(value: Any, depth: int) -> bytes:
            if depth >= encoder.MAX_DEPTH:
                raise encoder.too_deep()
            return head + write_value(value.value, depth + 1)

        plans.DESCRIBED[made] = Described(Symbol(name), code, made, read, write)
        encoder.VALUE_WRITERS[made] = write
        return made

    return declare


def choices(source: Primitive) -> Callable[[type[T]], type[T]]:
    """Declare an enumeration as a restricted type whose choices are its values (§1.3.5)."""

    def declare(cls: type[T]) -> type[T]:
        assert issubclass(cls, Enum)
        plans.CHOICES[cls] = source
        encoder.VALUE_WRITERS[cls] = plans.plan_for(cls).write
        return cls

    return declare


class Registry(Generic[T]):
    """Composites and restricted types, one of which is expected: found by descriptor."""

    def __init__(self, *classes: type[T]) -> None:
        self.classes = classes
        self.read = plans.descriptor_reader([plans.DESCRIBED[cls] for cls in classes], self._refuse)

    def _refuse(self, data: Buffer, offset: int, depth: int) -> NoReturn:
        descriptor, _ = decoder.READERS[data[offset]](data, offset + 1, depth)
        expected = ", ".join(plans.DESCRIBED[cls].label for cls in self.classes)
        raise decode_error(f"the descriptor {descriptor!r} is none of {expected}")


def encode_composite(value: object, *, full: bool = False) -> bytes:
    """The encoding of a composite.

    Args: full: write all fields, and those that have their default with it. Else they are null, and no null is last.
    Raises: CommandError: a mandatory field is None, or a value does not fit its field's type.
    """
    described = plans.DESCRIBED.get(type(value))
    if described is None:
        raise CommandError(f"{type(value).__name__} is not a declared type")
    write = described.write_full if full and isinstance(described, Composite) else described.write
    try:
        return write(value, 0)
    except REFUSALS as error:
        raise CommandError(f"cannot be encoded: {error}") from error


def decode_composite(expected: type[T] | Registry[T], data: Buffer, offset: int = 0) -> tuple[T, int]:
    """The composite that begins at an offset, and the offset behind it.

    Args: expected: its class, or a registry of the classes that it may be of.
    Raises: ProtocolError(CONNECTION, decode-error): the data is not a legal encoding of what is expected, nor the beginning of one.
        ProtocolError(CONNECTION, invalid-field): a mandatory field is null, or a value is not permitted in its field.
    """
    registry = expected if isinstance(expected, Registry) else Registry(expected)
    try:
        if data[offset] != 0x00:
            raise decode_error(f"format code 0x{data[offset]:02x} is not a described type")
        return registry.read(data, offset + 1, 0)
    except MALFORMED as error:
        raise malformed(error) from error


# The plans of a class.


def _descriptor(code: int) -> bytes:
    return b"\x00" + encoder.FIELD_WRITERS[Primitive.ULONG](code, 0)


def _within(where: str, error: ProtocolError) -> ProtocolError:
    return ProtocolError(error.scope, error.condition, f"{where}: {error.description}", error.info)


def _table(field: Field) -> list[Reader]:
    """The readers of a field, null included."""
    table = field.plan.table()

    def refuse_null(data: Buffer, offset: int, depth: int) -> NoReturn:
        raise invalid_field("is mandatory")

    def read_default(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        return field.default, offset

    table[0x40] = refuse_null if field.mandatory else read_default
    if field.mandatory and field.plan.multiple:
        table = [_at_least_one(reader) for reader in table]
    return table


def _at_least_one(reader: Reader) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        values, offset = reader(data, offset, depth)
        if not values:
            raise invalid_field("is mandatory, and an empty array is no value (§1.4)")
        return values, offset

    return read


def _reader(cls: type[T], label: str, fields: tuple[Field, ...]) -> Reader:
    """What reads the list behind the descriptor."""
    width = len(fields)
    # Frozen: the slots are filled past the class's own __setattr__.
    setters = [getattr(cls, field.name.replace("-", "_")).__set__ for field in fields]
    steps = [(field.name, _table(field), put) for field, put in zip(fields, setters, strict=True)]
    # By the number of fields in the list: what is read, and what is left to its default.
    present = [steps[:count] for count in range(width + 1)]
    absent = [
        [(put, field.default) for field, put in zip(fields[count:], setters[count:], strict=True)]
        for count in range(width + 1)
    ]
    missing = [next((field.name for field in fields[count:] if field.mandatory), None) for count in range(width + 1)]

    def read(data: Buffer, offset: int, depth: int) -> tuple[T, int]:
        try:
            code = data[offset]
            if code == 0xC0:
                offset, end, count = offset + 3, offset + 2 + data[offset + 1], data[offset + 2]
            elif code == 0xD0:
                offset, end, count = decoder.span32(data, offset + 1)
            elif code == 0x45:
                offset, end, count = offset + 1, offset + 1, 0
            else:
                raise decode_error(f"format code 0x{code:02x} is not a list")
            decoder.enter(data, offset, end, count, depth)
            if count > width:
                raise decode_error(f"has {width} fields, not {count}")
        except ProtocolError as error:
            raise _within(label, error) from error
        except MALFORMED as error:
            raise _within(label, malformed(error)) from error
        depth += 1
        value = cls.__new__(cls)
        name = ""
        try:
            for name, table, put in present[count]:
                item, offset = table[data[offset]](data, offset + 1, depth)
                put(value, item)
        except ProtocolError as error:
            raise _within(f"{label}.{name}", error) from error
        except MALFORMED as error:
            raise _within(f"{label}.{name}", malformed(error)) from error
        if offset != end:
            raise decode_error(f"{label}: the fields do not end where the list does")
        if missing[count] is not None:
            raise invalid_field(f"{label}.{missing[count]}: is mandatory")
        for put, default in absent[count]:
            put(value, default)
        return value, offset

    return read


def _writers(label: str, code: int, fields: tuple[Field, ...]) -> tuple[Writer, Writer]:
    """What writes the described list: without trailing nulls and defaults, and in full."""
    head = _descriptor(code)
    empty = head + b"\x45"
    get = _getter(fields)
    steps = [(field.name, field.default, field.plan.write) for field in fields]
    mandatory = [field.mandatory for field in fields]

    def parts(value: Any, depth: int, full: bool) -> list[bytes]:
        if depth >= encoder.MAX_DEPTH:
            raise encoder.too_deep()
        depth += 1
        written = []
        name = ""
        try:
            for item, (name, default, write_field) in zip(get(value), steps, strict=True):
                if item is None or (item == default and not full):
                    written.append(NULL)
                else:
                    written.append(write_field(item, depth))
        except REFUSALS as error:
            raise ValueError(f"{label}.{name}: {error}") from error
        for octets, needed, (name, _, _) in zip(written, mandatory, steps, strict=True):
            if needed and octets is NULL:
                raise ValueError(f"{label}.{name}: is mandatory")
        return written

    def write(value: Any, depth: int) -> bytes:
        written = parts(value, depth, full=False)
        while written and written[-1] is NULL:
            written.pop()
        return encoder.compound(head, 0xC0, 0xD0, len(written), b"".join(written)) if written else empty

    def write_full(value: Any, depth: int) -> bytes:
        written = parts(value, depth, full=True)
        return encoder.compound(head, 0xC0, 0xD0, len(written), b"".join(written)) if written else empty

    return write, write_full


def _getter(fields: tuple[Field, ...]) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name.replace("-", "_") for field in fields]
    if not names:
        return lambda value: ()
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return attrgetter(*names)


def _repr_of_what_is_set(self: Any) -> str:
    """As a dataclass's, without the fields that have their default: a frame in a log is read by people."""
    described = plans.DESCRIBED[type(self)]
    assert isinstance(described, Composite)
    items = zip(described.fields, _getter(described.fields)(self), strict=True)
    shown = [
        f"{field.name.replace('-', '_')}={item!r}" for field, item in items if field.mandatory or item != field.default
    ]
    return f"{type(self).__name__}({', '.join(shown)})"
