"""The progress of Spark."""

from pyspark.sql import SparkSession


class Tasks:
    """The tasks of the stages that run now: how many are done, and of how many."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()

    def __call__(self) -> tuple[int, int]:
        """Return both; zeros while Spark is idle, or has not yet told."""
        stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
