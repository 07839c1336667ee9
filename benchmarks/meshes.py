"""Meshes of routers, each router a process on loopback, and actions on them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from amqpmesh import AmqpMeshError, connect
from amqpmesh.router.cli.router_state import all_pages
from amqpmesh.router.management.service import ADDRESS
from benchmarks.processes import ROOT, Failed

START_TIME = 90.0  # seconds for a router to listen; ten of them may start at once
LOOK = 0.02  # seconds between two queries of a router's state
PATIENCE = 30.0  # seconds for a mesh to reach an expected state
END_TIME = 10.0  # seconds for a router to end by itself

# An installed router has bytecode, so these routers write theirs, too, even if the environment forbids it.
INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

Entities = Mapping[str, Sequence[Mapping[str, Any]]]


class Port:
    """A free port, reserved before a router listens there; until then connections to it are refused."""

    def __init__(self) -> None:
        # With address reuse, a router can listen where another socket is bound that does not listen.
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Router:
    """A process of `amqpmesh run`, or several in a row with the same configuration; see `Mesh.start`."""

    def __init__(self, id: str, folder: Path, *, secure: bool, settings: str) -> None:
        """Args: secure: mesh connections have TLS. settings: tables of the configuration, besides its listeners."""
        self.id = id
        self._ports = [Port(), Port()]
        clients, neighbours = (each.number for each in self._ports)
        #: The URLs for clients and for neighbours.
        self.url = f"amqp://127.0.0.1:{clients}"
        self.mesh_url = f"{'amqps' if secure else 'amqp'}://127.0.0.1:{neighbours}"
        self._config = folder / f"{id}.toml"
        listeners = f'[[listener]]\nurl = "{self.url}"\n[[listener]]\nurl = "{self.mesh_url}"\nrole = "mesh"\n'
        self._config.write_text(f'[router]\nid = "{id}"\ndrain = 0.2\n{settings}\n{listeners}')
        self.process: subprocess.Popen[str] | None = None
        #: Further arguments of the command.
        self.arguments: tuple[str, ...] = ()
        #: The log of all its processes.
        self.log: list[str] = []
        #: The time of the last start, by the monotonic clock.
        self.started_at = 0.0
        self._up = threading.Event()
        self._readers: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it, without waiting."""
        self._up.clear()
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "amqpmesh", "run", str(self._config), *self.arguments],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=INSTALLED,
        )
        self._readers.append(threading.Thread(target=self._read, args=(self.process,), daemon=True))
        self._readers[-1].start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        listening = 0
        for line in process.stderr:
            self.log.append(line.rstrip("\n"))
            listening += "listening url=" in line
            if listening == len(self._ports):
                self._up.set()

    def wait(self) -> None:
        """Wait until it listens. Raises: Failed: it does not."""
        deadline = time.monotonic() + START_TIME
        while not self._up.wait(LOOK):
            if self.pid and self.process is not None and self.process.poll() is not None:
                raise Failed(f"router {self.id} has ended:\n" + "\n".join(self.log))
            if time.monotonic() > deadline:
                raise Failed(f"router {self.id} does not listen:\n" + "\n".join(self.log))

    def kill(self) -> None:
        """Kill it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Freeze it until `thaw`; its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """End it in order, if it runs. Returns: its exit status, negative if it was killed."""
        process = self.process
        if process is None:
            return 0
        process.terminate()
        process.send_signal(signal.SIGCONT)
        try:
            return process.wait(END_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def close(self) -> None:
        for port in self._ports:
            port.close()
        for reader in self._readers:
            reader.join(END_TIME)

    def entities(self) -> Entities:
        """Return its state, by type. Raises: AmqpMeshError, OSError: it does not run."""
        return trio.run(_entities, self.url)

    def relayed(self) -> int:
        """Return the number of deliveries that have left it by its present lanes."""
        return sum(each["deliveries"] for each in self.entities()["lane"] if each["direction"] == "outgoing")

    def reachable(self) -> set[str]:
        """Return the other routers that it has a route to."""
        return {each["router"] for each in self.entities()["route"] if each["distance"]}


async def _entities(url: str) -> Entities:
    with trio.fail_after(PATIENCE):
        async with connect(url) as connection, connection.requester(ADDRESS, max_message_size=1 << 24) as management:
            return await all_pages(management.request)


class Mesh:
    """Routers by their ids."""

    def __init__(self, folder: Path, settings: Callable[[str], str] | None = None) -> None:
        """Args: settings: the table `[mesh]` of a router, and others; None: unsigned."""
        self._folder = folder
        self._settings = settings
        self.routers: dict[str, Router] = {}

    def __getitem__(self, id: str) -> Router:
        return self.routers[id]

    def add(self, id: str, *connectors: tuple[str, int], settings: str = "") -> Router:
        """Add a router, without starting it. Args: connectors: neighbours' URLs, each with the cost of
        sending there."""
        own = self._settings(id) if self._settings is not None else "[mesh]\ninsecure = true\n"
        for url, cost in connectors:
            own += f'[[connector]]\nurl = "{url}"\nrole = "mesh"\ncost = {cost}\n'
        router = Router(id, self._folder, secure=self._settings is not None, settings=own + settings)
        self.routers[id] = router
        return router

    def start(self) -> None:
        """Start all routers that do not run, and wait until they listen."""
        new = [each for each in self.routers.values() if each.process is None]
        for each in new:
            each.start()
        for each in new:
            each.wait()

    def line(self, ids: str, settings: str = "") -> None:
        """Add routers in a line, each connected to the one before, without starting them."""
        before: Router | None = None
        for each in ids:
            before = self.add(each, *([(before.mesh_url, 1)] if before is not None else []), settings=settings)

    def triangle(self) -> None:
        """Add routers where the path from A to C leads over B, without starting them."""
        c = self.add("C")
        b = self.add("B", (c.mesh_url, 1))
        self.add("A", (b.mesh_url, 1), (c.mesh_url, 5))

    def settled(self, *ids: str) -> None:
        """Wait until these routers reach each other; without arguments, all. Raises: Failed: they do not."""
        wanted = set(ids or self.routers)
        for each in [self[name] for name in sorted(wanted)]:

            def reaches_all(router: Router = each) -> bool:
                return wanted <= router.reachable() | {router.id}

            await_that(reaches_all, f"{each.id} does not reach all others")

    def end(self) -> dict[str, int]:
        """End all routers. Returns: their exit statuses."""
        return {each.id: each.end() for each in self.routers.values()}

    def close(self) -> None:
        for router in self.routers.values():
            if router.process is not None and router.process.poll() is None:
                router.kill()
            router.close()


def await_that(is_so: Callable[[], bool], what_else: str, patience: float = PATIENCE) -> float:
    """Wait for a condition that has to be queried. Returns: seconds. Raises: Failed: it does not become true."""
    began = time.monotonic()
    while True:
        # The router may not listen yet, or no longer, or may not answer.
        with suppress(AmqpMeshError, OSError, trio.TooSlowError):
            if is_so():
                return time.monotonic() - began
        if time.monotonic() > began + patience:
            raise Failed(what_else)
        time.sleep(LOOK)


@contextmanager
def mesh(settings: Callable[[str], str] | None = None) -> Iterator[Mesh]:
    """Make a mesh whose routers all end with the block."""
    with TemporaryDirectory(prefix="amqpmesh-") as folder:
        all_of_them = Mesh(Path(folder), settings)
        try:
            yield all_of_them
            all_of_them.end()
        finally:
            all_of_them.close()


def port_of(url: str) -> int:
    """Return the port of a URL."""
    found = re.search(r":(\d+)$", url)
    assert found is not None
    return int(found[1])
