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
from typing import Any, Generic, NoReturn, TypeVar, dataclass_transform, get_type_hints

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec import decoder, encoder, field_codecs
from amqpmesh.router.amqp.codec.decoder import MALFORMED, Buffer, Reader, malformed
from amqpmesh.router.amqp.codec.encoder import MAX_DEPTH, NULL, REFUSALS
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

    list: kernel.FieldList
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
        of_kernel = _list_of(made, label, code, fields)
        field_codecs.DECLARED[made] = Composite(
            Symbol(name), code, made, of_kernel.read, of_kernel.write, of_kernel, fields
        )
        _REGISTRIES[made] = Registry(made)
        encoder.VALUE_WRITERS[made] = of_kernel.write
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
        declared = [field_codecs.DECLARED[cls] for cls in self.classes]
        #: The composites, by numeric descriptor.
        self.lists = {one.code: one.list for one in declared if isinstance(one, Composite)}
        otherwise = field_codecs.read_extension if Extension in classes else self._refuse
        self.read: Reader = field_codecs.descriptor_reader(declared, otherwise)

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
    write = declared.list.write_full if full and isinstance(declared, Composite) else declared.write
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
        composite = registry.lists.get(data[offset + 2]) if data[offset + 1] == 0x53 else None
        return registry.read(data, offset + 1, 0) if composite is None else composite.read(data, offset + 3, 0)
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


def _at_least_one(reader: Reader) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        values, offset = reader(data, offset, depth)
        if not values:
            raise invalid_field("is mandatory, and an empty array is no value")
        return values, offset

    return read


def _list_of(cls: type, label: str, code: int, fields: tuple[Field, ...]) -> kernel.FieldList:
    """Make the reader and writer of a composite."""
    width = len(fields)

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

    def explain(error: Exception, number: int) -> Exception | None:
        where = label if number < 0 else f"{label}.{fields[number].name}"
        if isinstance(error, ProtocolError):
            return _with_field_name(where, error)
        if isinstance(error, MALFORMED):
            return _with_field_name(where, malformed(error))
        return None

    def refused(error: Exception, number: int) -> Exception | None:
        return ValueError(f"{label}.{fields[number].name}: {error}") if isinstance(error, REFUSALS) else None

    listed = tuple(map(_list_field, fields))
    return kernel.FieldList(cls, _descriptor(code), listed, MAX_DEPTH, span, decoder.leave, explain, refused)


def _list_field(field: Field) -> kernel.ListField:
    plan, default = field.plan, field.default
    composites = [one for one in plan.declared if isinstance(one, Composite)]
    return kernel.ListField(
        field.attribute,
        plan.kind,
        _table(field),
        plan.write,
        mandatory=field.mandatory,
        default=None if field.mandatory else default,
        default_octets=NULL if field.mandatory or default is None else plan.write(default, 0),
        members=plan.members,
        written=plan.written,
        by_code={one.code: one.list for one in composites},
        by_class={one.cls: one.list for one in composites},
    )


def _repr_of_what_is_set(self: object) -> str:
    """Return a dataclass's repr without the fields that have their default, for logs."""
    declared = declaration(type(self))
    fields = declared.fields if isinstance(declared, Composite) else ()
    values = [(field, getattr(self, field.attribute)) for field in fields]
    shown = [f"{field.attribute}={value!r}" for field, value in values if field.mandatory or value != field.default]
    return f"{type(self).__name__}({', '.join(shown)})"
