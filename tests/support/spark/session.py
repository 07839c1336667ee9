"""The one embedded Spark session of all tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java where what it does is short: its second compiler takes more than it gives, 36 s and not 21."""

SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",  # what is shuffled here is small, and each task takes its time
}


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that ask for the session as those of `make spark`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the session: `local[2]`, where a task that fails is not tried again."""
    from amqpmesh.pipeline.session import session  # here: most tests need no Spark

    warehouse = tmp_path_factory.mktemp("warehouse")
    made = session("tests", "local[2]", {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)})
    yield made
    made.stop()
