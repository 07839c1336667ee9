"""`amqpmesh collect DIR`: write what the routers of a mesh publish into a directory, for `amqpmesh pipeline`."""

import argparse
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import trio

from amqpmesh.policies.access import PUBLISHED
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.cli import arguments, client_peer
from amqpmesh.router.cli.exit_status import EPILOG, Exit, StoppedError
from amqpmesh.router.cli.output.bodies import dump
from amqpmesh.router.cli.output.progress import Progress, reconnects_reported
from amqpmesh.router.cli.process.interruptible import PeerTimeout, run_interruptible
from amqpmesh.router.client.connect import Connection
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.telemetry.schema import Kind
from amqpmesh.router.telemetry.segments import SUFFIX, Damage, Name, read

CREDIT: Final = 16
"""Segments that may be on their way."""

LOOK: Final = 60.0
"""Seconds between two looks for segments that are too old."""


def declare(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.description = (
        "Receive what the routers of a mesh record, from $telemetry at any of them, and write it into a directory for "
        "`amqpmesh pipeline`. Routers publish it with [telemetry] publish = true. The command ends at SIGINT or "
        "SIGTERM. What is recorded while it does not run is missed, and counted as lost by the analysis."
    )
    command.epilog = EPILOG
    command.add_argument("directory", metavar="DIR", type=Path, help="the directory, made if there is none")
    command.add_argument("--tenant", metavar="NAME", type=arguments.name, help="only the part of this tenant")
    command.add_argument(
        "--keep",
        metavar="DURATION",
        type=arguments.age,
        default=timedelta(days=7),
        help=f"remove segments that are older ({', '.join(arguments.UNITS)}); default: 7d",
    )
    command.add_argument("--count", metavar="N", type=arguments.count, help="stop after N segments")
    command.add_argument(
        "--timeout", metavar="S", type=arguments.seconds, help="seconds to wait for the router, and for each segment"
    )
    command.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    client_peer.add_options(command, reconnect="what is recorded meanwhile is missed")
    command.set_defaults(command=collect)


def collect(given: argparse.Namespace) -> int:
    """Write segments. Returns: 0. Raises: AmqpMeshError, OSError: as `receive`; or the directory cannot be written."""
    given.directory.mkdir(parents=True, exist_ok=True)
    return trio.run(_Collecting(given).run, client_peer.connection(given, "collect"))


class _Collecting:
    """The work of one command."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._progress = Progress("collected", given.count, shown=not given.json)
        self._patience = PeerTimeout(given.timeout)
        self._segments = self._octets = 0
        self._routers: set[str] = set()
        self._looked_at = -LOOK

    async def run(self, connection: Connection) -> int:
        """Collect, and print the summary. Returns, Raises: as `collect`."""
        try:
            with reconnects_reported(self._progress.say, wanted=self._given.reconnect):
                await run_interruptible(lambda: self._collect(connection), self._patience)
        except StoppedError:
            self._tell()
            if self._given.count is not None:
                raise
        except (AmqpMeshError, OSError):
            self._tell()
            raise
        else:
            self._tell()
        return Exit.DONE

    async def _collect(self, connection: Connection) -> None:
        tenant = self._given.tenant
        self._patience.wait("the connection")
        async with connection:
            self._patience.progress()
            async with connection.receiver(f"{PUBLISHED}/{tenant}" if tenant else PUBLISHED, credit=CREDIT) as receiver:
                while self._given.count is None or self._segments < self._given.count:
                    self._patience.wait("a segment")
                    delivery = await receiver.receive()
                    self._patience.rest()
                    self._take(delivery)
                    self._remove_old()

    def _take(self, delivery: Delivery) -> None:
        body = delivery.message.body
        name = _name_of(body)
        if name is None:
            raise CommandError("what came is no segment: the address is not one of routers")
        path = self._given.directory / name.file()
        if path.exists():
            raise CommandError(
                f"{path} is there: another tenant's part, or what a router writes, needs its own directory"
            )
        _write(path, body)
        delivery.accept()
        self._segments += 1
        self._octets += len(body)
        self._routers.add(name.router)
        self._progress.step()

    def _remove_old(self) -> None:
        now = time.time()
        if trio.current_time() - self._looked_at < LOOK:
            return
        self._looked_at = trio.current_time()
        for each in self._given.directory.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another command removes them, too
                if now - each.stat().st_mtime > self._given.keep.total_seconds():
                    each.unlink()

    def _tell(self) -> None:
        self._progress.close()
        if self._given.json:
            print(dump({"segments": self._segments, "octets": self._octets, "routers": sorted(self._routers)}))
        else:
            routers = f"{len(self._routers)} router{'' if len(self._routers) == 1 else 's'}"
            print(f"collected {self._segments:,} segments of {routers}, {self._octets:,} octets", file=sys.stderr)


def _name_of(body: object) -> Name | None:
    """Return the name of a segment, from its first record; None: it is none."""
    if not isinstance(body, bytes):
        return None
    first = next(read(body, Damage()), None)
    if first is None or first.kind != Kind.SEGMENT:
        return None
    try:
        (told,) = first.records()
        router, epoch, number = told["router"], told["epoch"], told["segment"]
    except (ValueError, KeyError):
        return None
    if not (isinstance(router, str) and isinstance(epoch, int) and isinstance(number, int)):
        return None
    # Only a name that reads as itself names a file in the directory, and one that jobs read.
    name = Name(router, epoch, number)
    return name if Name.of(name.file()) == name else None


def _write(path: Path, octets: bytes) -> None:
    """Write a file that is whole as soon as it has its name."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(octets)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
