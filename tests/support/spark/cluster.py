"""A Spark cluster on loopback: a master and two workers, each a process of the Spark that pip installed.

It takes 2 GB of memory with a driver and two executors. Programs use it in processes of their own, since a process has
one session, and the one of these tests is `spark`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes.programs import ENVIRONMENT, ROOT
from tests.support.spark.session import JAVA

PATIENCE: Final = 240.0  # seconds; it is there in ten, but all jobs on two workers take two minutes of a slow machine
WORKERS: Final = 2
SETTINGS: Final[Mapping[str, str]] = {
    "spark.cores.max": str(WORKERS),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1",  # nothing begins before there are two
    "spark.ui.enabled": "false",
}


class Daemon:
    """A process of the cluster. A thread reads its log, so that the process never waits for the test."""

    def __init__(self, kind: str, *arguments: str, env: Mapping[str, str]) -> None:
        import pyspark

        self._process = subprocess.Popen(
            [f"{pyspark.__path__[0]}/bin/spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self._log.append(line)
                self._said.notify_all()

    def found(self, pattern: str, count: int = 1) -> list[str]:
        """Return the matches in its log, as soon as there are so many."""

        def found() -> list[str]:
            return [match[0] for line in self._log if (match := re.search(pattern, line))]

        with self._said:
            assert self._said.wait_for(lambda: len(found()) >= count, PATIENCE), (pattern, self._log)
            return found()

    def end(self) -> None:
        """End it, or kill it."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)


class Cluster:
    """The master's URL, and a way to run programs on it."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self.url = url
        self.environment = environment

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run a program in Python, which gives `session` or `--master` the URL. Returns: its standard output."""
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it with the context. Args: folder: for its files."""
    from amqpmesh.pipeline.java import java_home

    (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in SETTINGS.items()))
    environment = {
        **ENVIRONMENT,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    on_loopback = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as started:
        master = Daemon("master.Master", *on_loopback, "--port", "0", env=environment)
        started.callback(master.end)
        (url,) = master.found(r"(?<=Starting Spark master at )spark://\S+")
        for _ in range(WORKERS):
            worker = Daemon("worker.Worker", *on_loopback, "--cores", "1", "--memory", "1g", url, env=environment)
            started.callback(worker.end)
        master.found("Registering worker", WORKERS)
        yield Cluster(url, environment)


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that ask for the cluster as slow."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a master and two workers, for all tests that ask for them."""
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
