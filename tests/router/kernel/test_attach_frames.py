"""The body of an `attach`, cut behind its name and its handle by both kernels alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, encode_performative
from tests.support.worlds.kernels import Kernels, agreed, both


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return both()


def body_of(name: str, handle: int, *, compact: bool = False) -> bytes:
    attach = Attach(name=name, handle=handle, role=Role.SENDER, target=Target(address="q"), initial_delivery_count=0)
    return encode_performative(attach, compact=compact)


@given(name=st.text(max_size=70), handle=st.integers(0, 2**32 - 1), compact=st.booleans())
def test_both_find_the_name_and_the_handle(kernels: Kernels, name: str, handle: int, compact: bool) -> None:
    body = body_of(name, handle, compact=compact)
    found = agreed(kernels, lambda kernel: kernel.split_attach(body))
    others = agreed(kernels, lambda kernel: kernel.split_attach(body_of("another", 7, compact=compact)))
    assert isinstance(found, list)
    assert isinstance(others, list)
    if len(name.encode()) < 256:
        assert found[:2] == [name, handle]
        assert found[2] == others[2]


@given(at=st.integers(0, 40), octet=st.integers(0, 255), end=st.integers(0, 60))
def test_both_leave_the_same_octets_to_the_decoder(kernels: Kernels, at: int, octet: int, end: int) -> None:
    body = bytearray(body_of("name", 300))
    body[at % len(body)] = octet
    agreed(kernels, lambda kernel: kernel.split_attach(bytes(body)))
    agreed(kernels, lambda kernel: kernel.split_attach(bytes(body[:end])))


def test_other_frames_are_left_to_the_decoder(kernels: Kernels) -> None:
    for body in (b"", b"\x00\x53\x12", b"\x00\x53\x12\x45", b"\x00\x53\x10" + body_of("n", 0)[3:], bytes(20)):
        assert agreed(kernels, lambda kernel, body=body: kernel.split_attach(body)) is None  # type: ignore[misc]
