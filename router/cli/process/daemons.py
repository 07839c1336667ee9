"""Routers as child processes: each runs `amqpmesh run`, with its own configuration and log."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli.process.system import signal_at_parent_death

CLIENTS: Final = "clients"
"""The name of the listener for clients."""

NEIGHBOURS: Final = "neighbours"
"""The name of the listener for neighbours."""

LOOK: Final = 0.05
"""Seconds between two checks of a process."""

END_TIME: Final = 3.0
"""Seconds that processes have to drain and end."""

_CONFIGURATION: Final = f"""\
[router]
id = "{{id}}"
drain = 0.2
[mesh]
insecure = true # unsigned: all of it is on loopback
[[listener]]
name = "{CLIENTS}"
url = "amqp://127.0.0.1:0"
[[listener]]
name = "{NEIGHBOURS}"
url = "amqp://127.0.0.1:0"
role = "mesh"
"""
_CONNECTOR: Final = """\
[[connector]]
url = "{url}"
cost = {cost}
"""
_LISTENING: Final = re.compile(r"listening url=(\S+) name=(\w+)$", re.MULTILINE)


class Daemon:
    """The process of one router."""

    def __init__(self, id: str, folder: Path, connectors: Sequence[tuple[str, int]]) -> None:
        """Start the process. Args: connectors: neighbours' URLs, each with its cost."""
        self.id = id
        written = "".join(_CONNECTOR.format(url=url, cost=cost) for url, cost in connectors)
        config = folder / f"{id}.toml"
        config.write_text(_CONFIGURATION.format(id=id) + written, encoding="utf-8")
        self._log = folder / f"{id}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "amqpmesh", "run", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the command only, which ends the routers in order
                preexec_fn=signal_at_parent_death(signal.SIGKILL),
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    async def listening(self) -> Mapping[str, str]:
        """Wait until it listens. Returns: its listeners' URLs by name. Raises: AmqpMeshError: it has ended instead."""
        while True:
            is_over = self.is_over
            said = self._log.read_text(encoding="utf-8")
            urls = {name: url for url, name in _LISTENING.findall(said)}
            if len(urls) == 2:
                return urls
            if is_over:
                last = said.strip().rpartition("\n")[2]
                raise AmqpMeshError(f"router {self.id} ended with {self._process.returncode}: {last or 'no output'}")
            await trio.sleep(LOOK)

    def tell_to_end(self) -> None:
        """Make the router drain and stop."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the router (SIGKILL)."""
        self._process.kill()
        self._process.wait()


class Daemons:
    """The router processes of a demo, by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Daemon] = {}

    def start(self, id: str, *connectors: tuple[str, int]) -> Daemon:
        """Start a router; it may have run before."""
        self._running[id] = Daemon(id, self._folder, connectors)
        return self._running[id]

    def kill(self, id: str) -> int:
        """Kill a router (SIGKILL). Returns: its process id."""
        self._running[id].kill()
        return self._running[id].pid

    async def end(self) -> None:
        """Stop all routers, in order if that does not take too long."""
        running = self._running.values()
        for each in running:
            each.tell_to_end()
        until = time.monotonic() + END_TIME
        while not all(each.is_over for each in running) and time.monotonic() < until:
            await trio.sleep(LOOK)

    def kill_all(self) -> None:
        """Kill all remaining routers."""
        for each in self._running.values():
            each.kill()


@asynccontextmanager
async def daemons() -> AsyncIterator[Daemons]:
    """Provide router processes; none of them outlives the block."""
    with TemporaryDirectory(prefix="amqpmesh-") as folder:
        all_of_them = Daemons(Path(folder))
        try:
            yield all_of_them
        finally:
            try:
                with trio.CancelScope(shield=True):
                    await all_of_them.end()
            finally:
                all_of_them.kill_all()
