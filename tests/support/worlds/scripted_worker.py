"""Worker 2 of a router, as a script: it answers the hand-overs of worker 1 as a test wants."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.config.workers import hand_over_path
from amqpmesh.router.runtime import hand_overs

if TYPE_CHECKING:
    from pathlib import Path


class Sibling:
    """Worker 2, as a script."""

    def __init__(self, folder: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(hand_over_path(folder, 2)))
        self._listening.listen(1)
        self._listening.setblocking(False)
        self.channel = self._listening

    async def passed(self) -> tuple[int, hand_overs.Arrival, int]:
        """Return the next connection: its number, its packet, its socket."""
        if self.channel is self._listening:
            await trio.lowlevel.wait_readable(self._listening)
            self.channel, _ = self._listening.accept()
            self.channel.setblocking(False)
        await trio.lowlevel.wait_readable(self.channel)
        packet, descriptors, _, _ = socket.recv_fds(self.channel, 2**17, 1)
        number, arrival = hand_overs.parsed(packet)
        return number, arrival, descriptors[0]

    def answer(self, kind: int, number: int) -> None:
        self.channel.send(hand_overs._HEAD.pack(kind, number, 0, 0))

    def end(self) -> None:
        self.channel.close()
        self._listening.close()
