"""Equal answers of the pure and the compiled kernel."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data import encodings as wire
from tests.support.worlds.kernels import Kernels, agreed

M = 2**32
NUMBERS = st.one_of(st.sampled_from([0, 1, 255, 256, M // 2 - 1, M // 2, M - 1]), st.integers(0, M - 1))
FLAGS = st.sampled_from([-1, 0, 1])
TAGS = st.sampled_from([b"", b"a", b"b", b"t" * 32])
STATES = st.sampled_from(
    [
        None,
        b"\x00\x53\x24\x45",
        b"\x00\x53\x26\x45",
        b"\x00\x53\x27\xc0\x02\x01\x41",
        b"\x00\x53\x23\xc0\x03\x02\x43\x43",
    ]
)

#: Octets of a head, of an ordinary frame, and of neither, from which hostile octets are made.
SAMPLES = [
    bytes.fromhex("005314c00a0543 5201 a00161 43 41") + b"payload",
    bytes.fromhex("005314c0100b 43 43 a00161 43 42 42 40 40 42 42 42"),
    bytes.fromhex("005315c00a06 41 43 5205 41 0053244540"),
    bytes.fromhex("005315c00b05 41 43 40 41 005324c00100"),
    bytes.fromhex("005370c00803415009 70000003e8 005371c10403a3016143 005372c10403a3016143 005377a00161"),
    bytes.fromhex("005370450053 73c0080340 40a10474686572"),
    bytes.fromhex("00a310616d71703a6865616465723a6c69737445"),
    bytes.fromhex("f00000000a0000000240 4243"),
    b"",
]


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Draw octets that are nearly well-formed, or not at all."""
    data = draw(st.sampled_from(SAMPLES))
    return draw(st.one_of(st.just(data), wire.mutated(data), st.binary(max_size=24)))


def test_nothing_public_of_the_source_is_missing_where_it_is_compiled(kernels: Kernels) -> None:
    constants, definitions = 0, 0
    for name, value in vars(kernels.pure).items():
        if name.startswith("_"):
            continue
        if isinstance(value, int | bytes | str | tuple):
            assert getattr(kernels.compiled, name) == value, name
            constants += 1
        elif getattr(value, "__module__", None) == kernels.pure.__name__:
            compiled = getattr(kernels.compiled, name)
            for member in (*vars(value), *getattr(value, "__slots__", ())):
                assert member.startswith("_") or hasattr(compiled, member), (name, member)
            definitions += 1
    assert constants > 10
    assert definitions > 20


@given(NUMBERS, st.one_of(NUMBERS, st.integers(-M, M)))
def test_serial_numbers(kernels: Kernels, number: int, other: int) -> None:
    agreed(kernels, lambda kernel: (kernel.serial_add(number, other), kernel.serial_distance(number, other % M)))


@given(hostile(), st.integers(0, 8), st.integers(-1, 2))
def test_values_are_skipped_and_descriptors_read(kernels: Kernels, data: bytes, at: int, beyond: int) -> None:
    end = max(0, min(len(data), len(data) + beyond))
    agreed(kernels, lambda kernel: kernel.skip(data, at, end))
    agreed(kernels, lambda kernel: kernel.descriptor_code(data, at, end))


@pytest.mark.parametrize(("data", "error"), [(None, TypeError), (b"\xa0", IndexError)])
def test_memory_that_is_not_the_message_is_never_read(kernels: Kernels, data: bytes, error: type[Exception]) -> None:
    """The compiled kernel checks its reads, too, whatever a caller passes."""
    for kernel in kernels:
        with pytest.raises(error):
            kernel.skip(data, 0, 2**16)


@given(hostile(), st.booleans())
def test_heads_are_read(kernels: Kernels, data: bytes, complete: bool) -> None:
    agreed(kernels, lambda kernel: kernel.read_head(data, complete))
    agreed(kernels, lambda kernel: kernel.read_header_info(data, *kernel.read_head(data, True).header))
    agreed(kernels, lambda kernel: kernel.read_to(data, 0))


@given(hostile())
def test_frames_are_skimmed(kernels: Kernels, data: bytes) -> None:
    agreed(kernels, lambda kernel: kernel.skim_transfer(data, 0, len(data)))
    agreed(kernels, lambda kernel: kernel.skim_disposition(data, 0, len(data)))


@given(
    st.tuples(NUMBERS, NUMBERS, TAGS, st.sampled_from([-1, 0, M - 1]), FLAGS, st.booleans(), FLAGS, STATES),
    st.sampled_from([b"", b"x", b"y" * 300]),
    st.sampled_from([70, 71, 100, 512]),
    st.booleans(),
)
def test_transfers_are_written(
    kernels: Kernels, fields: tuple[object, ...], payload: bytes, limit: int, in_full: bool
) -> None:
    def write(kernel: ModuleType) -> object:
        out = bytearray(b"before")
        frame = kernel.TransferFrame(*fields)
        return kernel.write_transfer(out, 7, frame, payload, limit, in_full), out, frame

    agreed(kernels, write)


STEPS = st.one_of(
    st.tuples(st.just("arrives"), st.sampled_from([0, 1, M - 1]), TAGS, FLAGS, st.booleans(), st.booleans()),
    st.tuples(st.just("leaves"), TAGS, st.booleans(), st.sampled_from([b"", b"x" * 30, b"y" * 300]), st.booleans()),
    st.tuples(st.just("hears"), st.booleans(), st.integers(0, 3), st.integers(0, 3), st.booleans(), STATES),
    st.tuples(st.just("decides"), st.booleans(), st.integers(0, 3), st.booleans(), STATES),
    st.tuples(st.just("releases"), st.integers(1, 3)),
    st.tuples(st.just("flushes")),
)


class Session:
    """A session of one kernel, with a link in each direction."""

    def __init__(self, kernel: ModuleType, start: int, window: int, max_message_size: int) -> None:
        self.kernel = kernel
        self.woken = 0
        self.session = kernel.KernelSession(window, start, start)
        self.session.channel = 1
        self.session.remote_incoming_window = window
        self.session.wire.on_wake = self.wake
        self.incoming = kernel.KernelLink(self.session, False, None, {})
        self.outgoing = kernel.KernelLink(self.session, True, None, {})
        self.incoming.granted_limit = window
        self.incoming.max_message_size = max_message_size
        self.outgoing.handle = 0
        self.outgoing.link_credit = 5
        self.deliveries: list[object] = []
        self.out = bytearray()

    def wake(self) -> None:
        self.woken += 1

    def arrives(self, delivery_id: int, tag: bytes, settled: int, more: bool, aborted: bool) -> object:
        frame = self.kernel.TransferFrame(0, delivery_id, tag, 0, settled, more, aborted=aborted)
        delivery = self.kernel.receive_transfer(self.incoming, frame, 10)
        self.deliveries.append(delivery)
        return delivery

    def leaves(self, tag: bytes, settled: bool, payload: bytes, more: bool) -> object:
        delivery = self.outgoing.current
        if delivery is None:
            if self.outgoing.link_credit == 0 or tag in self.outgoing.unsettled:
                return None
            delivery = self.kernel.Delivery(self.outgoing, tag, 0, settled, False)
            self.deliveries.append(delivery)
        return self.kernel.send_transfer(self.outgoing, self.out, delivery, payload, more, False, None, 100)

    def hears(self, receiver: bool, first: int, last: int, settled: bool, state: bytes | None) -> object:
        frame = self.kernel.DispositionFrame(receiver, first, last, settled, state)
        said = self.kernel.receive_disposition(self.session, frame)
        heard = [] if said is None else said.deliveries
        for delivery in heard:
            delivery.link.count_outcome(state)
        return heard

    def decides(self, first: bool, number: int, settled: bool, state: bytes | None) -> object:
        if number >= len(self.deliveries):
            return None
        return self.kernel.dispose(self.deliveries[number if first else -1 - number], state, settled)

    def releases(self, frames: int) -> None:
        self.session.release(min(frames, self.session.held))

    def flushes(self) -> object:
        for run in self.session.dispositions:
            self.kernel.write_disposition(self.out, 1, run)
        self.session.dispositions.clear()
        return self.session.announce()


@pytest.mark.parametrize("start", [0, M - 1])
@given(st.integers(1, 4), st.sampled_from([0, 15]), st.lists(STEPS, max_size=12))
def test_sessions_go_the_same_way(
    kernels: Kernels, start: int, window: int, max_message_size: int, steps: list[tuple[object, ...]]
) -> None:
    def play(kernel: ModuleType) -> object:
        played = Session(kernel, start, window, max_message_size)
        said: list[object] = []
        for name, *arguments in steps:
            try:
                said.append(getattr(played, str(name))(*arguments))
            except kernel.Violation as violation:
                said.append((violation.scope, violation.condition, violation.description))
        played.session.wire.on_wake = None
        return said, played.woken, played.out, played.session, played.incoming, played.outgoing, played.deliveries

    agreed(kernels, play)
