"""The ways to install a router, as the page has them, in folders of the test and with stand-ins for programs of a
host.
"""

import grp
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, on_loopback
from tests.docs.processes import Daemon, environment

pytestmark = pytest.mark.slow

PATIENCE = 300.0  # seconds: an environment is made, and packages are fetched
WHAT_IS_INSTALLED = (
    "amqpmesh",
    "router",
    "policies",
    "topology",
    "pipeline",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)

# What is tried is what was installed, not this checkout; and nobody waits for the kernel's optimizer here.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"CFLAGS": "-O0"}

BLOCKS = {block.heading: block.text for block in blocks("operate/install.md", "sh") if block.unrun is None}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout, the folders that the page calls `/opt` and `/etc`, and the three files of a trial."""
    folder = tmp_path_factory.mktemp("site")
    checkout = folder / "checkout"
    for name in WHAT_IS_INSTALLED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, checkout / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, checkout / name)
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    (folder / "opt").mkdir()
    (folder / "etc" / "systemd" / "system").mkdir(parents=True)
    configured = on_loopback(folder / "router")
    commands = ["./certificates.sh", "localhost", "--", "alice"], ["amqpmesh", "user", "add", "alice"]
    for command in commands:
        env = environment(folder / "bin")
        subprocess.run(command, cwd=configured, env=env, input="correct horse\n", text=True, check=True)
    for file in (each for each in configured.iterdir() if each.is_file()):
        shutil.copy(file, checkout)
    return folder


def run(script: str, site: Path, *stand_ins: str) -> list[list[str]]:
    """Run a block of the page. Args: stand_ins: programs that are only written down.

    Returns: how those were called.
    """
    script = script.replace("/opt/", f"{site}/opt/").replace("/etc/", f"{site}/etc/")
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    script = script.replace("-o amqpmesh -g amqpmesh", f"-o {user} -g {group}")
    calls = site / "calls"
    calls.write_text("")
    env = {**ENVIRONMENT, "PATH": f"{site / 'stand-ins'}:{os.environ['PATH']}"}
    (site / "stand-ins").mkdir(exist_ok=True)
    for name in stand_ins:
        program = site / "stand-ins" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\n')
        program.chmod(0o755)
    subprocess.run(["bash", "-eux", "-c", script], cwd=site / "checkout", env=env, check=True, timeout=PATIENCE)
    return [shlex.split(line) for line in calls.read_text().splitlines()]


def served(daemon: Daemon, trust: Path) -> None:
    """Check that a router listens, with a certificate for localhost, and ends on SIGTERM."""
    found = re.search(r'"url": "amqps://127\.0\.0\.1:(\d+)"', daemon.said('"name": "applications"'))
    assert found
    context = ssl.create_default_context(cafile=trust)
    with (
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(b"AMQP\x03\x01\x00\x00")
        assert client.recv(8) == b"AMQP\x03\x01\x00\x00"


def test_a_service_is_installed_and_upgraded(site: Path) -> None:
    run(BLOCKS["Install"], site)
    calls = run(BLOCKS["With systemd"], site, "useradd", "systemctl", "journalctl")
    assert [call[0] for call in calls] == ["useradd", "systemctl", "systemctl", "journalctl"]
    assert (site / "etc" / "amqpmesh" / "users.toml").stat().st_mode & 0o777 == 0o600
    unit = (site / "etc" / "systemd" / "system" / "amqpmesh.service").read_text(encoding="utf-8")
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert start
    command = start[1].replace("/opt/", f"{site}/opt/").replace("/etc/", f"{site}/etc/").split()

    for script in ("true", BLOCKS["Upgrading"]):
        run(script, site, "systemctl")
        with closing(Daemon(*command, cwd=site, env={"PATH": os.defpath})) as daemon:
            served(daemon, site / "etc" / "amqpmesh" / "ca.pem")
            assert daemon.end()[0] == 0
    assert os.readlink(site / "opt" / "amqpmesh") == f"{site}/opt/amqpmesh-2"


def test_what_the_container_file_says_runs_as_the_first_process_under_a_read_only_root(site: Path) -> None:
    if os.getuid() or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("NOT TESTED: namespaces of its own take a privilege")
    calls = run(BLOCKS["In a container"], site, "docker")
    assert [call[:2] for call in calls] == [["docker", "build"], ["docker", "run"]]
    assert "--read-only" in calls[1]

    text = (site / "checkout" / "deploy" / "Containerfile").read_text(encoding="utf-8")
    _, building, running = re.split("^FROM ", text, flags=re.MULTILINE)
    (install,) = re.findall("^RUN (.*pip install.*)$", building, re.MULTILINE)
    steps = dict(re.findall(r"^([A-Z]+) (.*)$", running, re.MULTILINE))
    assert steps.keys() == {"COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    root = site / "image"
    install = install.replace("/opt/amqpmesh", str(root)).replace("/source", f"{site}/checkout")
    env = {"PATH": f"{root}/bin:{os.defpath}"}
    subprocess.run(["sh", "-eu", "-c", install], env=ENVIRONMENT, check=True, timeout=PATIENCE)

    etc = site / "etc-of-the-container"
    shutil.copytree(site / "router", etc / "amqpmesh")
    user, group = steps["USER"].split(":")
    for path in (etc, *etc.rglob("*")):
        os.chown(path, int(user), int(group))
    for path in (*site.parents, site):  # pytest's folders are their owner's alone
        path.chmod(path.stat().st_mode | 0o011)
    words = [*eval(steps["ENTRYPOINT"]), *eval(steps["CMD"])]  # both are lists of strings
    words = [word.replace("/etc/", f"{etc}/") for word in words]
    within = (
        f"mount -o remount,ro,bind / && ! touch {site}/written 2>/dev/null && exec setpriv "
        f"--reuid {user} --regid {group} --clear-groups --no-new-privs --bounding-set=-all {shlex.join(words)}"
    )
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-eu", "-c", within]
    with closing(Daemon(*command, cwd=Path("/"), env=env)) as daemon:
        served(daemon, site / "router" / "ca.pem")
        first = daemon.child
        try:
            status = Path(f"/proc/{first}/status").read_text(encoding="utf-8")
            assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE), "it is not the first process of its namespace"
            assert re.search(rf"^Uid:\t{user}\t", status, re.MULTILINE)
            assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
            os.kill(first, signal.SIGHUP)
            daemon.said('"event": "reloaded"')
            os.kill(first, signal.SIGTERM)
            assert daemon.process.wait(PATIENCE) == 0
        finally:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
