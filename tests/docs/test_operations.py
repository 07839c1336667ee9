"""The pages for operators: their commands, unit file and exit statuses. `test_log` has the log."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.config.file import parse
from amqpmesh.router.runtime.ending import CLOSE_TIME
from tests.docs.pages import CONFIGURATIONS, ROOT, Command, blocks, commands, on_loopback, steady
from tests.docs.processes import PATIENCE, Daemon, environment

INSTALL = "operate/install.md"
SECURITY = "operate/security.md"
MESH = "operate/mesh.md"


# ------------------------------------------------------------------------------------------------------------ commands


class Done(NamedTuple):
    """A command of the page, and its actual output."""

    command: Command
    printed: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the configurations, with listeners on loopback and at free ports. Returns: the folder."""
    return on_loopback(tmp_path_factory.mktemp("operations") / "router")


@pytest.fixture(scope="module")
def done(folder: Path) -> list[Done]:
    """Run all commands of the page on security, in order. A router runs until the next one starts."""
    env = environment(folder.parent / "bin")
    found = []
    url = "amqps://localhost"
    with ExitStack() as running:
        for command in (command for block in blocks(SECURITY, "console") for command in commands(block)):
            if command.line.startswith("amqpmesh run "):
                running.close()
                daemon = running.enter_context(closing(Daemon(*command.line.split(), cwd=folder, env=env)))
                printed = [daemon.line() for _ in command.output]
                url = f"amqps://localhost:{re.findall(r'//[0-9.]+:([0-9]+)', ' '.join(printed))[0]}"
            else:
                printed = shell(command.line.replace("amqps://localhost", url), folder, env)
            found.append(Done(command, printed))
    return found


def shell(line: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Return the lines of a command's output and error output."""
    ended = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    return ended.stdout.splitlines()


def test_every_command_prints_what_the_page_shows(done: list[Done]) -> None:
    assert len(done) > 5
    for command, printed in done:
        assert [steady(line) for line in printed] == [steady(line) for line in command.output], command.line


def test_what_was_made_is_good_by_the_strict_rules(done: list[Done], folder: Path) -> None:
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem"]
    for purpose, name in (("sslserver", "router.pem"), ("sslclient", "alice.pem")):
        subprocess.run([*strict, "-purpose", purpose, name], cwd=folder, check=True, capture_output=True)
    assert (folder / "users.toml").stat().st_mode & 0o077 == 0
    assert all(key.stat().st_mode & 0o077 == 0 for key in folder.glob("*.key"))


def test_certificates_are_renewed_by_the_same_authority(tmp_path: Path) -> None:
    folder = on_loopback(tmp_path / "router")
    made = []
    for _ in range(2):
        subprocess.run(["./certificates.sh", "localhost", "--", "alice"], cwd=folder, check=True, timeout=PATIENCE)
        made.append({name: (folder / name).read_bytes() for name in ("ca.pem", "router.pem", "alice.pem")})
    assert {name for name in made[0] if made[0][name] != made[1][name]} == {"router.pem", "alice.pem"}
    verify = ["openssl", "verify", "-CAfile", "ca.pem", "router.pem", "alice.pem"]
    subprocess.run(verify, cwd=folder, check=True, capture_output=True, timeout=PATIENCE)


def test_every_script_is_run() -> None:
    installed = (ROOT / "tests" / "docs" / "test_installed.py").read_text(encoding="utf-8")
    for heading in {block.heading for block in blocks(INSTALL, "sh") if block.unrun is None}:
        assert f'BLOCKS["{heading}"]' in installed


def test_a_router_runs_in_as_many_processes_as_it_is_told(done: list[Done], folder: Path) -> None:
    (command,) = (block.text for block in blocks(MESH, "sh"))
    env = environment(folder.parent / "bin")
    with closing(Daemon(*command.split(), cwd=folder, env=env)) as daemon:
        assert '"workers": 4' in daemon.said('"event": "started"')
        assert daemon.end()[0] == 0


# --------------------------------------------------------------------------------------------------- the unit file


def systemd(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED, missing: systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit file, with the path of an existing program."""
    environment(tmp_path / "bin")
    text = (ROOT / "deploy" / "amqpmesh.service").read_text(encoding="utf-8")
    assert "/opt/amqpmesh/bin/" in text
    copy = tmp_path / "amqpmesh.service"
    copy.write_text(text.replace("/opt/amqpmesh/bin/", f"{tmp_path}/bin/"), encoding="utf-8")
    return copy


def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    verified = systemd("verify", str(unit))
    assert (verified.returncode, verified.stderr) == (0, "")


def test_systemd_finds_the_unit_well_closed(unit: Path) -> None:
    security = systemd("security", "--offline=true", "--threshold=20", str(unit))  # 20: an exposure of 2.0 of 10
    assert security.returncode == 0, security.stdout


def test_the_unit_grants_more_time_than_the_configuration_drains() -> None:
    text = (ROOT / "deploy" / "amqpmesh.service").read_text(encoding="utf-8")
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    memory = re.search(r"^MemoryMax=(\d+)G$", text, re.MULTILINE)
    files = re.search(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)
    assert stop
    assert memory
    assert files
    config = parse(tomllib.loads((CONFIGURATIONS / "service.toml").read_text(encoding="utf-8")), Path("service.toml"))
    assert int(stop[1]) > config.drain_timeout + config.drain + CLOSE_TIME
    assert int(files[1]) > config.connections
    # The memory that a process needs, by the page.
    assert int(memory[1]) * 2**30 > 2 * config.memory + 40e6 + config.connections * 50 * 2**10


def test_the_unit_allows_every_system_call_that_the_daemon_makes(done: list[Done], folder: Path, unit: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT TESTED, missing: strace")
    allowed: set[str] = set()
    for filtered in re.findall(r"^SystemCallFilter=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE):
        groups = {call for group in filtered.removeprefix("~").split() for call in calls_of(group)}
        allowed = allowed - groups if filtered.startswith("~") else allowed | groups
    trace = folder / "trace"
    env = environment(folder.parent / "bin")
    with closing(
        Daemon("strace", "-f", "-qq", "-o", str(trace), "amqpmesh", "run", "scram.toml", cwd=folder, env=env)
    ) as traced:
        url = re.search(r"url=amqps://([\d.]+):(\d+)", traced.said(" INFO listening "))
        assert url
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        with socket.create_connection((url[1], int(url[2])), timeout=PATIENCE) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
        child = traced.child
        os.kill(child, signal.SIGHUP)
        traced.said(" INFO reloaded")
        os.kill(child, signal.SIGTERM)
        traced.process.wait(PATIENCE)
    made = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"accept4", "prlimit64"} <= made
    assert made <= allowed


def calls_of(group: str) -> Iterator[str]:
    """Yield the system calls of a group such as @system-service."""
    if not group.startswith("@"):
        yield group
        return
    for line in systemd("syscall-filter", group).stdout.splitlines()[1:]:
        if (word := line.strip()) and not word.startswith("#"):
            yield from calls_of(word)


# ------------------------------------------------------------------------------------------------------------ statuses


def test_every_exit_status_has_a_row() -> None:
    text = (ROOT / "docs" / INSTALL).read_text(encoding="utf-8")
    rows = {int(row) for row in re.findall(r"^\| (\d) \|", text.split("## Exit statuses")[1], re.MULTILINE)}
    assert set(Exit) <= rows
