"""Values and octets, compared with proton's codec."""

from typing import Any

import proton
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.types import Array, Described, Primitive
from amqpmesh.router.amqp.codec.values import decode_exactly, encode
from tests.support.data.values import SCALARS, descriptors, identical, maps, scalars


def flat(element: Primitive) -> st.SearchStrategy[Array]:
    described = st.one_of(st.just([]), descriptors.map(lambda descriptor: [descriptor]))
    return st.builds(Array, st.just(element), st.lists(SCALARS[element], max_size=4), described)


# Without values that proton 0.40 does not support: arrays of null, arrays described twice, and, inside a list, values
# that are described twice.
flat_arrays = st.deferred(lambda: st.one_of(*(flat(element) for element in SCALARS if element is not Primitive.NULL)))
values = st.recursive(
    st.one_of(scalars, flat_arrays, st.builds(Described, descriptors, scalars)),
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        maps(children, children),
        st.builds(Described, descriptors, st.lists(children, max_size=4) | maps(children, children)),
    ),
    max_leaves=8,
)


@given(values)
def test_a_value_that_went_through_proton_is_the_same(value: Any) -> None:
    octets = encode(value)
    data = proton.Data()
    assert data.decode(octets) == len(octets)
    assert identical(decode_exactly(data.encode()), value)
