"""A Spark session with the settings for the jobs: embedded, on a cluster, or within `spark-submit`."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from amqpmesh.pipeline.java import java_home
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError

EMBEDDED: Final = "local[*]"
"""The default master: this process, with all its cores."""

PARTITIONS: Final = 8
"""Partitions of a shuffle for each core of an embedded session: two cores process ten million events with 1 GB for
Java. Spark's default of 200 is for clusters.
"""

EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",  # results must not depend on the machine
    "spark.sql.execution.arrow.pyspark.enabled": "true",  # convert to pandas and back by columns, not by rows
}
"""Default settings for any master."""

LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",  # not reachable from the network
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",  # no web server without need
}
"""Further default settings of an embedded session; and `spark.sql.shuffle.partitions`."""

_MASTER: Final = re.compile(
    r"(?P<local>local(\[(?P<cores>\d+|\*)(, *\d+)?\])?)|local-cluster\[\d+, *\d+, *\d+\]|spark://.+|k8s://.+|yarn"
)

#: An environment variable: set if `spark-submit` has started this process, with the session's Java.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


class SparkError(AmqpMeshError):
    """Spark did not start, or an operation failed."""


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process; start it if there is none.

    `settings` have precedence; then Spark's own configuration (`spark-submit`, `spark-defaults.conf`,
    `PYSPARK_SUBMIT_ARGS`); then `EVERYWHERE` and `LOCAL`. Java is that of `java_home`, and the executors' Python is
    this one, unless `PYSPARK_PYTHON` names another.

    Args: name: of the application, as a cluster shows it. master: as `spark-submit --master`; None: from Spark's
        configuration, else `EMBEDDED`. settings: Spark's, by name; they do not change an existing session.
    Raises: CommandError: the master is invalid, or differs from that of the existing session or of `spark-submit`.
        SparkError: Spark does not start.
    """
    check_master(master)
    with explained("Spark did not start"), _environment():
        if is_running():
            running = SparkSession.builder.getOrCreate()
            _demand_same(master, running.sparkContext.master)
            return running
        conf = _conf(name, master, settings or {})
        return SparkSession.builder.config(conf=conf).getOrCreate()


def check_master(master: str | None) -> None:
    """Raise CommandError if this is no master that Spark could have."""
    if master is not None and not _MASTER.fullmatch(master):
        raise CommandError(f"no master of Spark: {master!r}; local[N], spark://HOST:PORT, yarn, and k8s://URL are")


def is_running() -> bool:
    """Return True if this process has a session already."""
    return SparkContext._active_spark_context is not None  # every public function would start one


def defaults(master: str) -> Mapping[str, str]:
    """Return the default settings for a master."""
    match = _MASTER.fullmatch(master)
    if match is None or match["local"] is None:
        return EVERYWHERE
    cores = len(os.sched_getaffinity(0)) if match["cores"] == "*" else int(match["cores"] or 1)
    return {**EVERYWHERE, **LOCAL, "spark.sql.shuffle.partitions": str(PARTITIONS * cores)}


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn errors of Spark into one line. Args: doing: the operation. Raises: SparkError."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkError(f"{doing}: {_reason(error)}") from error


class Tasks:
    """Progress of Spark: the tasks of the stages that run now."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()

    def __call__(self) -> tuple[int, int]:
        """Return the number of completed tasks and of all tasks; zeros while Spark is idle or has not reported yet."""
        stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


def _reason(error: Exception) -> str:
    """Return the reason of a Spark error, without the stacks of two languages."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    before, is_python, stack = text.partition("Traceback (most recent call last):")
    # The lines of the stack are indented; the error is below them all.
    lines = [line for line in (stack if is_python else before).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1 if is_python else 0] if lines else type(error).__name__


def _conf(name: str, master: str | None, settings: Mapping[str, str]) -> SparkConf:
    """Return the settings of a new session; this starts Java, which alone knows Spark's configuration."""
    submitted = _SUBMITTED in os.environ
    # The driver's memory and Java options only have an effect when Java starts.
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    conf = SparkConf().setAll(list(settings.items()))
    if submitted:
        _demand_same(master, conf.get("spark.master"))
    else:
        conf.setAppName(name)
        if master is not None:
            conf.setMaster(master)
        if "spark.ui.showConsoleProgress" not in settings:  # Spark takes Python for a shell, and would show a bar
            conf.set("spark.ui.showConsoleProgress", "false")
    for key, value in defaults(conf.get("spark.master") or EMBEDDED).items():
        conf.setIfMissing(key, value)
    return conf


def _demand_same(wanted: str | None, there: str | None) -> None:
    """Check the master. Raises: CommandError: it differs."""
    if wanted is not None and wanted != there:
        raise CommandError(f"the master is {there} already, and cannot be {wanted}")


@contextmanager
def _environment() -> Iterator[None]:
    """Set the environment variables that Spark reads when it starts; `spark-submit` has set them already."""
    wanted = {} if _SUBMITTED in os.environ else _missing_environment()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _missing_environment() -> dict[str, str]:
    wanted = {"JAVA_HOME": str(java_home())}
    if "PYSPARK_PYTHON" not in os.environ:
        wanted["PYSPARK_PYTHON"] = sys.executable
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    home = os.environ.get("SPARK_HOME") or pyspark.__path__[0]
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")
    if "log4j" not in options and not (folder / "log4j2.properties").exists():
        quiet = Path(__file__).with_name("log4j2.properties")
        wanted["SPARK_SUBMIT_OPTS"] = f"{options} -Dlog4j2.configurationFile={quiet.as_uri()}".strip()
    return wanted
