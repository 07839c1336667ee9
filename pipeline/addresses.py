"""Addresses as tables sum them up: those of dynamic nodes are as many as there are requests, and count as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DYNAMIC: Final = "$dynamic"
"""In the place of the addresses of all dynamic nodes, which begin so (§3.5.3, dynamic)."""


def summed_up(rows: DataFrame) -> DataFrame:
    """The same rows, with `DYNAMIC` in the place of each `address` of a dynamic node."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    is_dynamic = F.col("address").startswith(f"{DYNAMIC}/")
    return rows.withColumn("address", F.when(is_dynamic, DYNAMIC).otherwise(F.col("address")))
