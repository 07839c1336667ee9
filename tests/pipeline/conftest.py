"""The choice of job tests that are fast enough for `make spark`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On Spark each takes seconds, all together many minutes: the first of each file goes with `make spark`, and all
    others with `make slow`.
    """
    begun: set[Path] = set()
    for item in items:
        if item.path.parent == HERE and "spark" in getattr(item, "fixturenames", ()):
            if item.path in begun:
                item.add_marker("slow")
            begun.add(item.path)
