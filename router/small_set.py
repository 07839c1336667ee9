"""Compact ordered sets for zero or few items, which the kernel has (`kernel/small_sets.py`)."""

from amqpmesh.router.kernel import SmallSet, first, shared, with_item, with_item_first, without_item

__all__ = ["SmallSet", "first", "shared", "with_item", "with_item_first", "without_item"]
