"""`amqpmesh policy test`: its answers are those of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
[[tenant]]
name = "operator"
match = [{ user = "root" }]

[[tenant]]
name = "shop"
default = true

[[group]]
tenant = "operator"
name = "operators"
may = ["anonymous"]
manage = ["read"]

[[group]]
tenant = "shop"
name = "all"
send = ["#"]
receive = ["#"]
may = ["container"]
manage = ["write:connector", "link"]
user_id = "match"
"""


@pytest.mark.parametrize(
    ("user", "asked", "status"),
    [
        ("root", "--send --address $management", Exit.DONE),
        ("root", "--receive --address $management", Exit.NO),
        ("root", "--manage-read", Exit.DONE),
        ("root", "--send --address @B", Exit.NO),
        ("bob", "--send --address $management", Exit.DONE),
        ("bob", "--send --address $management@B", Exit.NO),
        ("bob", "--manage-read", Exit.NO),
        ("bob", "--manage-read link", Exit.DONE),
        ("bob", "--manage-read connector --manage-write connector", Exit.DONE),
        ("bob", "--manage-write link", Exit.NO),
        ("bob", "--send --address $dynamic/x/y@A", Exit.DONE),
        ("bob", "--send --address @B", Exit.NO),
        ("bob", "--send --receive --address q@B", Exit.DONE),
        ("bob", "--receive --address @B", Exit.USAGE),
        ("bob", "--send --address q@", Exit.USAGE),
        ("bob", "--user-id bob", Exit.DONE),
        ("bob", "--user-id=", Exit.DONE),
        ("bob", "--user-id eve", Exit.NO),
        ("root", "--user-id eve", Exit.DONE),
    ],
)
def test_the_answer_is_that_of_a_router(tmp_path: Path, user: str, asked: str, status: Exit) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    assert main(["policy", "test", "--file", str(file), "--user", user, *asked.split()]) == status
