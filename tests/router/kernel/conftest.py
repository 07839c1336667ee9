"""Both kernels, for the tests that compare them."""

import pytest

from tests.support.worlds.kernels import Kernels, both


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The source as it is, and compiled."""
    return both()
