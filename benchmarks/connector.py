"""The speed of Spark's reading from a router: 200-byte rows a second in `local[2]`, and the CPU of each process.

    python -m benchmarks.connector [--messages 2000000] [--links 1] [--output build/connector.json]

The load generator sends unsettled messages through a router to one stream. The time is the sender's, from its first
message to its last outcome, which comes when the micro-batch is committed. Before the measurement some messages are
sent to warm Java up. All processes share the machine's cores; CPU seconds show the share of each. `all` reads every
column, `body` only that one. `compiler` is the time in which Java compiles its own code,
which ends after some millions of rows; `spark` is that of the reader, Java and the executors without it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.generator import generate
from benchmarks.processes import cpu_seconds, server
from benchmarks.tables import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZE = 200  # octets of content
WARM = 0.25  # of the messages, before it counts
#: Unsettled messages that the router may hold for the stream: two batches, as its credit.
CONFIG = """
[[listener]]
url = "amqp://127.0.0.1:0"
[[address]]
pattern = "#"
max_unsettled = 200_000
"""
SINKS = ("noop", "parquet")
COLUMNS = {"all": None, "body": "body binary"}
COMPILERS = "C1 CompilerThre", "C2 CompilerThre"  # threads, by the names that the kernel cuts off
READERS = "python_streaming_source_runner", "amqpmesh.pipeline.connector.link_process"
WORKER = "pyspark.daemon"


def of_java(java: int) -> dict[str, list[int]]:
    """Return the processes of a Spark session, by their tasks."""
    parts: dict[str, list[int]] = {"java": [java], "reader": [], "executors": []}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command = (each / "cmdline").read_bytes().decode(errors="replace")
            ancestors = _ancestors(int(each.name))
        except OSError:
            continue  # it has just ended
        if java in ancestors:
            if any(each in command for each in READERS):
                parts["reader"].append(int(each.name))
            elif WORKER in command:
                parts["executors"].append(int(each.name))
    return parts


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


@contextmanager
def streaming(spark: SparkSession, url: str, sink: str, schema: str | None, links: int) -> Iterator[StreamingQuery]:
    reader = spark.readStream.format("amqp").options(url=url, address="bench-0", links=links)
    rows = (reader.schema(schema) if schema else reader).load()
    with tempfile.TemporaryDirectory() as folder:
        writer = rows.writeStream.format(sink).option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.start(f"{folder}/sink") if sink != "noop" else writer.start()
        try:
            yield query
        finally:
            query.stop()


def spent(pids: list[int]) -> dict[int, float]:
    """CPU seconds so far of those that still run: processes that have planned something end."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = cpu_seconds(pid)
    return found


def compiling(java: int) -> float:
    """CPU seconds so far of the threads in which Java compiles; those that have ended are not counted."""
    total = 0.0
    for thread in Path(f"/proc/{java}/task").glob("*"):
        with suppress(OSError):
            if (thread / "comm").read_text().strip() in COMPILERS:
                total += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return total


def send(url: str, count: int) -> dict[str, Any]:
    with generate("send", "--url", url, "--count", str(count), "--size", str(SIZE)) as sender:
        sender.line()
        return sender.result()


def measure(spark: SparkSession, sink: str, schema: str | None, count: int, links: int) -> dict[str, float]:
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "router.toml"
        config.write_text(CONFIG)
        with server("amqpmesh", "run", str(config)) as (url, router), streaming(spark, url, sink, schema, links):
            send(url, int(count * WARM))
            parts = {"router": [router], **of_java(java)}
            compiled = compiling(java)
            before = {name: spent(pids) for name, pids in parts.items()}
            sent = send(url, count)
            after = {name: spent(pids) for name, pids in parts.items()}
            compiled = max(0.0, compiling(java) - compiled)
    spending = {
        f"{name}_us": sum(of[pid] - before[name][pid] for pid in of) / count * 1e6 for name, of in after.items()
    }
    compiler = compiled / count * 1e6
    return {
        "rows_per_second": count / sent["seconds"],
        "sender_us": sent["cpu"] / count * 1e6,
        **spending,
        "compiler_us": compiler,
        "spark_us": sum(spending[f"{name}_us"] for name in ("reader", "java", "executors")) - compiler,
    }


def main() -> None:
    from amqpmesh.pipeline.session import session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000, help="that count; default: 2000000")
    parser.add_argument("--links", type=int, default=1, help="links of the stream; default: 1")
    parser.add_argument("--output", type=Path, default=Path("build/connector.json"))
    options = parser.parse_args()
    spark = session("connector", "local[2]", {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    results: dict[str, dict[str, float]] = {}
    rows = []
    for sink in SINKS:
        for columns, schema in COLUMNS.items():
            found = results[f"{sink}, {columns}"] = measure(spark, sink, schema, options.messages, options.links)
            parts = [found[f"{name}_us"] for name in ("sender", "router", "reader", "java", "executors")]
            of_spark = (found["compiler_us"], found["spark_us"])
            cells = [f"{found['rows_per_second']:,.0f}/s", *(f"{each:.1f}" for each in (*parts, sum(parts), *of_spark))]
            rows.append((f"{sink}, {columns}", cells))
    spark.stop()
    heads = ["rows", "sender", "router", "reader", "java", "executors", "together", "compiler", "spark"]
    table(f"rows of {SIZE} B into Spark, local[2]; CPU in us a row", heads, rows)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
