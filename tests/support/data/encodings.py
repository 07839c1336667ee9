"""All legal encodings of values, not only the most compact ones (§1.6).

What the project's own encoder writes is one of them. Values and fields are built here by hand, so that readers are
tested against the standard, not against our writer.
"""

from functools import cache

from hypothesis import strategies as st

Bytes = st.SearchStrategy[bytes]

NULL = b"\x40"


def uints(value: int) -> Bytes:
    """Draw any encoding of a uint (§1.6.5)."""
    wide = b"\x70" + value.to_bytes(4, "big")
    small = b"\x43" if value == 0 else b"\x52" + bytes((value,)) if value < 256 else wide
    return st.sampled_from([small, b"\x52\x00", wide] if value == 0 else [small, wide])


def booleans(value: bool) -> Bytes:
    """Draw any encoding of a boolean (§1.6.2)."""
    return st.sampled_from([b"\x41", b"\x56\x01"] if value else [b"\x42", b"\x56\x00"])


def binaries(value: bytes) -> Bytes:
    """Draw any encoding of a binary (§1.6.19)."""
    wide = b"\xb0" + len(value).to_bytes(4, "big") + value
    return st.sampled_from([b"\xa0" + bytes((len(value),)) + value, wide] if len(value) < 256 else [wide])


def strings(value: str) -> Bytes:
    """Draw any encoding of a string (§1.6.20)."""
    return binaries(value.encode()).map(lambda data: bytes((data[0] + 1,)) + data[1:])


def symbols(value: str) -> Bytes:
    """Draw any encoding of a symbol (§1.6.21)."""
    return binaries(value.encode()).map(lambda data: bytes((data[0] + 3,)) + data[1:])


def described(code: int, name: str, value: bytes) -> Bytes:
    """Draw a described value, its descriptor as smallulong, ulong or symbol (§1.3.2)."""
    return _descriptors(code, name).map(lambda descriptor: b"\x00" + descriptor + value)


@cache
def _descriptors(code: int, name: str) -> Bytes:
    # Hypothesis examines each strategy at its first use, which takes longer than to draw from it.
    return st.one_of(st.sampled_from([b"\x53" + bytes((code,)), b"\x80" + code.to_bytes(8, "big")]), symbols(name))


def compounds(form8: int, form32: int, items: list[bytes]) -> Bytes:
    """Draw a list or map with a size of one octet, where that suffices, or of four (§1.6.22, §1.6.23)."""
    body = b"".join(items)
    forms = [bytes((form32,)) + (len(body) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + body]
    if len(body) < 255 and len(items) < 256:
        forms.insert(0, bytes((form8, len(body) + 1, len(items))) + body)
    if not items and form8 == 0xC0:
        forms.insert(0, b"\x45")
    return st.sampled_from(forms)


def lists(items: list[bytes]) -> Bytes:
    """Draw any encoding of a list of encoded items (§1.6.22)."""
    return compounds(0xC0, 0xD0, items)


def maps(items: list[bytes]) -> Bytes:
    """Draw any encoding of a map of encoded keys and values, in turn (§1.6.23)."""
    return compounds(0xC1, 0xD1, items)


@st.composite
def composites(draw: st.DrawFn, code: int, name: str, fields: list[Bytes | None], width: int) -> bytes:
    """Draw any encoding of a composite: `None` is an absent field, and nulls may follow up to its full width (§1.4)."""
    items = [NULL if field is None else draw(field) for field in fields]
    while items and items[-1] == NULL:
        items.pop()
    items += [NULL] * draw(st.integers(0, width - len(items)))
    return draw(described(code, name, draw(lists(items))))


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw `data` with up to three octets changed, removed or inserted, and sometimes cut short."""
    octets = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(octets) - 1)))
        # Mostly what means something: format codes, sizes around the right one.
        octet = draw(st.sampled_from(b"\x00\x40\x41\x42\x43\x45\x50\x52\x53\x56\x70\xa0\xc0\xd0") | st.integers(0, 255))
        kind = draw(st.sampled_from(["change", "nudge", "remove", "insert", "cut"]))
        if kind == "insert" or not octets:
            octets.insert(at, octet)
        elif kind == "change":
            octets[at] = octet
        elif kind == "nudge":
            octets[at] = (octets[at] + draw(st.sampled_from([-1, 1]))) % 256
        elif kind == "remove":
            del octets[at]
        else:
            del octets[at:]
    return bytes(octets)
