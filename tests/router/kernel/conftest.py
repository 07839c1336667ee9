"""Both kernels, for the tests that compare them."""

import pytest

from tests.support.worlds.kernels import Kernels, both


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """Return the pure and the compiled kernel."""
    return both()
