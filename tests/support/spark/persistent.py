"""A sender that sends each message until it is accepted, whatever dies; and the contents of Spark's file sink."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import trio

from amqpmesh import Backoff, InDoubtError, ModifiedError, ReleasedError, connect

PATIENCE = 150.0
"""Seconds; nothing here takes a third of them."""

AT_ONCE = 200
"""Messages that have no outcome yet."""


def eventually(is_so: Callable[[], Any], what: str) -> None:
    """Wait until it is true."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < PATIENCE, what
        time.sleep(0.02)


class Persistent:
    """A thread that sends the numbers below `count` as text, until all are accepted or it is left."""

    def __init__(self, url: str, count: int, address: str = "q") -> None:
        self.accepted: set[int] = set()
        #: How often one was sent that was not accepted then.
        self.again = 0
        self.count = count
        self._url = url
        self._address = address
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)

    def __enter__(self) -> Persistent:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(trio.RunFinishedError):  # all is accepted
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(PATIENCE)

    def until(self, count: int) -> None:
        """Wait until so many are accepted."""
        eventually(lambda: len(self.accepted) >= count, f"{len(self.accepted)} of {count} are accepted")

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        limit = trio.CapacityLimiter(AT_ONCE)
        with self._scope:
            async with (
                connect(self._url, reconnect=Backoff(first=0.05, longest=0.3)) as connection,
                connection.sender(self._address) as sender,
                trio.open_nursery() as nursery,
            ):

                async def send(number: int) -> None:
                    async with limit:
                        while number not in self.accepted:
                            try:
                                await sender.send(b"%d" % number)
                            except (InDoubtError, ModifiedError, ReleasedError):
                                self.again += 1
                                await trio.sleep(0.05)
                            else:
                                self.accepted.add(number)

                for number in range(self.count):
                    nursery.start_soon(send, number)


def in_sink(folder: Path) -> Counter[int]:
    """Return the numbers in a Parquet sink of Spark's, and how often each is there, as far as its batches are
    committed.
    """
    added = set()
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            added.add(unquote(urlsplit(json.loads(line)["path"]).path))
    return Counter(int(body) for file in added for body in pq.read_table(file)["body"].to_pylist())
