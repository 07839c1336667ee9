"""Addresses of dynamic nodes, which sums count as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.pipeline.deliveries import DYNAMIC, MANAGEMENT, with_grouped_addresses, without_management

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_addresses_of_dynamic_nodes_are_one_and_all_others_are_as_they_were(spark: SparkSession) -> None:
    others = ["orders", "$dynamics", "a/$dynamic/b", "", None]
    rows = spark.createDataFrame(
        [(each, 1) for each in [*others, "$dynamic/c/l/*00", "$dynamic/c/l/*01"]], "address string, n int"
    )
    found = [row.address for row in with_grouped_addresses(rows).collect()]
    assert found == [*others, DYNAMIC, DYNAMIC]


def test_what_routers_are_asked_and_answer_is_apart(spark: SparkSession) -> None:
    sent = [("$management", "tool", "A"), ("$dynamic/c/l", "A", "A"), ("$dynamic/c/l", "shop", "A"), (None, None, "A")]
    rows = with_grouped_addresses(spark.createDataFrame(sent, "address string, sender string, ingress string"))
    assert [row.address for row in rows.collect()] == [MANAGEMENT, MANAGEMENT, DYNAMIC, None]
    assert [row.address for row in without_management(rows).collect()] == [DYNAMIC, None]
