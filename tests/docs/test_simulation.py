"""The table of the page on simulated meshes is complete; `test_blocks` runs its programs."""

import re

from amqpmesh.topology.simulation.mesh import Mesh
from amqpmesh.topology.simulation.nodes import Node
from tests.docs.pages import ROOT

PAGE = "develop/simulation.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")


def test_the_table_names_all_that_a_mesh_can_do_and_nothing_else() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named | {"unsettled"} == {name for name in dir(Mesh()) if not name.startswith("_")}
    assert {"connect", "statistics", "is_running", "is_frozen", "sender", "receiver", "requester"} <= set(dir(Node))
