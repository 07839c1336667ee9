"""The notebook of the examples: well-formed, without results in it, and its cells run in order on published tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT
from tests.pipeline.test_result_rows import at, ns, write

NOTEBOOK = ROOT / "examples" / "results.ipynb"

#: Runs the cells as a notebook does: in one namespace, and a last expression is the cell's result.
RUNNER = """
import ast, json, sys
cells, told = json.loads(sys.argv[1]), {}
names = {"__name__": "__main__"}
for name, text in cells.items():
    body = ast.parse(text, name).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        told[name] = value.reset_index().to_dict("records") if hasattr(value, "to_dict") else None
lines = {line.get_label(): [float(each) for each in line.get_ydata()] for line in names["axes"].get_lines()}
told["lines"], told["spark"] = lines, sorted({"pyspark", "py4j"} & {*sys.modules})
print(json.dumps(told))
"""


def notebook() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return read


def test_it_has_the_form_of_a_notebook_and_no_results() -> None:
    read = notebook()
    assert (read["nbformat"], read["nbformat_minor"]) == (4, 5)
    assert {*read} == {"cells", "metadata", "nbformat", "nbformat_minor"}
    names = [cell["id"] for cell in read["cells"]]
    assert len({*names}) == len(names)
    for cell in read["cells"]:
        more = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert {*cell} == {"cell_type", "id", "metadata", "source", *more}
        assert cell.get("execution_count") is None
        assert cell.get("outputs", []) == []
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def test_its_cells_run_without_spark_and_show_losses_latency_and_traffic(tmp_path: Path) -> None:
    lost = {"tenant": "", "first_time": ns(0), "last_time": ns(1), "of": 9}
    write(
        tmp_path,
        "losses/findings",
        {**lost, "finding": 1, "kind": "rejected", "address": "tea", "found": 2, "sentence": "2 were rejected"},
        {**lost, "finding": 2, "kind": "broken", "address": "orders", "found": 5, "sentence": "5 were lost"},
    )
    day = {"day": at(24)}
    write(
        tmp_path,
        "latency/addresses",
        {**day, "address": "orders", "deliveries": 9, "p50_ns": 1_000_000, "p99_ns": 5_000_000, "max_ns": 7_500_000},
        {**day, "address": "tea", "deliveries": 2, "p50_ns": 2_000_000, "p99_ns": 9_000_000, "max_ns": 9_000_000},
        {"day": at(0), "address": "tea", "deliveries": 5, "p50_ns": 1, "p99_ns": 99_000_000, "max_ns": 99_000_000},
    )
    flows = [(0, "orders", 3.0), (0, "orders", 4.0), (1, "orders", 5.0), (1, "tea", 1.0), (1, None, 8.0)]
    write(
        tmp_path,
        "traffic/matrix",
        *({"window_start": at(hour), "address": address, "messages": number} for hour, address, number in flows),
    )
    cells = {cell["id"]: "".join(cell["source"]) for cell in notebook()["cells"] if cell["cell_type"] == "code"}
    environment = {**os.environ, "AMQPMESH_RESULTS": str(tmp_path), "MPLBACKEND": "agg", "MPLCONFIGDIR": str(tmp_path)}
    command = [sys.executable, "-c", RUNNER, json.dumps(cells)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(row["kind"], row["found"]) for row in told["losses"]] == [("broken", 5), ("rejected", 2)]
    assert [(row["address"], row["p99 in ms"]) for row in told["latency"]] == [("tea", 9.0), ("orders", 5.0)]
    assert told["lines"] == {"orders": [7.0, 5.0], "tea": [0.0, 1.0]}
    assert told["spark"] == []
