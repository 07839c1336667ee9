"""Addresses as tables sum them up: those of dynamic nodes are as many as there are requests, and count as one; what
routers are asked, and their answers, are apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DYNAMIC: Final = "$dynamic"
"""In the place of the addresses of all dynamic nodes, which begin so (§3.5.3, dynamic)."""


MANAGEMENT: Final = "$management"
"""The node at which routers are asked how they stand (`amqpmesh status`, and other tools)."""


def summed_up(rows: DataFrame) -> DataFrame:
    """The same rows, with `DYNAMIC` in the place of each `address` of a dynamic node, and `MANAGEMENT` in that of each
    which a router's own answer goes to.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    shown = F.when(F.col("address").startswith(f"{DYNAMIC}/"), DYNAMIC).otherwise(F.col("address"))
    if {"sender", "ingress"} <= {*rows.columns}:
        shown = F.when(F.col("sender") == F.col("ingress"), MANAGEMENT).otherwise(shown)
    return rows.withColumn("address", shown)


def of_applications(rows: DataFrame) -> DataFrame:
    """Those rows whose `address` is not the routers' own. Args: rows: as `summed_up` returns them, or a table of it."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.where(~F.coalesce(F.col("address").startswith(MANAGEMENT), F.lit(False)))
