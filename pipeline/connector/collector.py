"""Python's collector of cyclic garbage, told of objects that live long, so that it does not visit them again and again.

Deliveries, and the modules of a Spark worker, are no garbage. But to visit them took a third of a reader's time, and
half of a worker's.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 1_000_000
"""The most objects that are expected: this much garbage may be left for a while."""


@contextmanager
def expecting(objects: int) -> Iterator[None]:
    """Let so many more objects come about, of which none is garbage, before the collector looks for garbage.

    Garbage is still collected: when as many objects of any kind have been left. Several blocks add up, in any order.
    """
    more = min(objects, MOST)
    _raise_threshold(more)
    try:
        yield
    finally:
        _raise_threshold(-more)


def _raise_threshold(objects: int) -> None:
    first, *others = gc.get_threshold()
    # 0: the program has switched the collector off. Less than was added: it has set another threshold since.
    if first and first + objects > 0:
        gc.set_threshold(first + objects, *others)


def spare_worker() -> None:
    """Exempt the objects of this process from collections, if it is a Spark worker, and they are not exempt yet.

    Spark collects after each task, and a worker has hundreds of thousands of objects: its modules, for the most part.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.collect()  # what is garbage now would stay
        gc.freeze()
