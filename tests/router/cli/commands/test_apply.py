"""`amqpmesh apply`: the configuration file of a router that runs, put in force over `$management`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.daemon import PATIENCE, StartDaemon

CONFIG = """
[router]
id = "A"
[[listener]]
url = "amqp://127.0.0.1:0"
manage = true
[[listener]]
url = "amqp://127.0.0.1:0"
name = "guests"
"""


def apply(url: str, *arguments: str, folder: Path) -> tuple[int, str]:
    """Run the command. Returns: its exit status, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "amqpmesh", "apply", *arguments, "--url", url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_changed_file_is_shown_and_applied(daemon: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(CONFIG)
    router = daemon("a.toml")
    url, guests = (router.said(r"listening url=(\S+) ").group(1) for _ in range(2))
    assert apply(url, folder=tmp_path) == (0, "nothing differs\n")
    file.write_text(f"{CONFIG}[mesh]\ninsecure = true\n[[address]]\npattern = 'a'\n")
    shown = (
        "mesh to { insecure = true } (restart: the other routers of the mesh know the router by it)\n"
        'address[a] to { pattern = "a" } (at once)\n'
    )
    assert apply(url, "--dry-run", folder=tmp_path) == (5, f"{shown}nothing was changed: this was a trial\n")
    status, told = apply(url, "a.toml", "--json", folder=tmp_path)
    assert status == 5, "one key waits"
    assert [(each["key"], each["effect"]) for each in json.loads(told)["differences"]] == [
        ("mesh", "restart"),
        ("address[a]", "at once"),
    ]
    assert [each["key"] for each in json.loads(apply(url, "--json", folder=tmp_path)[1])["differences"]] == ["mesh"]
    # What cannot be applied changes nothing.
    (tmp_path / "other.toml").write_text(CONFIG)
    assert apply(url, "other.toml", folder=tmp_path) == (5, f"not applied: the router was started with {file}\n")
    file.write_text(f"{CONFIG}[router]\n")
    status, told = apply(url, folder=tmp_path)
    assert (status, told.partition(": ")[0]) == (5, "not applied")
    file.write_text(CONFIG)
    assert apply(guests, folder=tmp_path) == (5, "not applied: not permitted\n")
    assert apply(url, folder=tmp_path) == (0, 'address[a] from { pattern = "a" } (at once)\napplied\n')
    router.send(signal.SIGTERM)
    assert router.ended() == 0


@pytest.mark.parametrize("properties", [{"dry_run": 1}, {"file": 3}, {"dry_run": "yes"}])
def test_a_malformed_request_is_refused(properties: dict[str, object]) -> None:
    from amqpmesh import Message
    from amqpmesh.router.management.config_requests import arguments
    from amqpmesh.router.management.service import RequestError

    with pytest.raises(RequestError, match="APPLY takes"):
        arguments(Message(None, application_properties=properties))
