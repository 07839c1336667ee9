"""Channels between the workers of one router, for packets with file descriptors.

Each worker listens at a Unix socket in the workers' private folder. A packet is sent whole or not at all
(SOCK_SEQPACKET, unix(7)).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.inherited import PASS_ON
from amqpmesh.router.runtime.listeners import PAUSE, WORKER, is_of_this_user
from amqpmesh.router.runtime.poller import READABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from amqpmesh.router.runtime.poller import Poller

log = event_log.EventLog("amqpmesh.io")

PACKET: Final = 32 * 2**10
"""Octets of a packet at most. The system holds several of this size."""

BATCH: Final = 16
"""Packets read in a row before other sockets have their turn."""


class Channel:
    """One end of a channel, served by the poller.

    Attributes: `is_open`.
    """

    is_heavy = False

    def __init__(
        self,
        connected: socket.socket,
        poller: Poller,
        on_packet: Callable[[Channel, bytes, list[int]], None],
        on_end: Callable[[Channel], None],
    ) -> None:
        """Args: connected: belongs to this object from now on. on_packet: gets each packet with its descriptors, which
        it must close. on_end: is called once, when the other end is gone.
        """
        connected.setblocking(False)
        self.is_open = True
        self._socket = connected
        self._poller = poller
        self._on_packet = on_packet
        self._on_end = on_end
        poller.add(connected.fileno(), self, READABLE)

    @classmethod
    def to(cls, path: Path, *arguments: Any) -> Channel:
        """Connect to a worker. Raises: OSError: it does not listen, or its queue of channels is full."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connecting.setblocking(False)
            connecting.connect(str(path))
            return cls(connecting, *arguments)
        except OSError:
            connecting.close()
            raise

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        """Send a packet. Raises: OSError: the other end is gone, or reads too slowly; nothing was sent."""
        if descriptor is None:
            self._socket.send(packet)
        else:
            socket.send_fds(self._socket, [packet], [descriptor])

    def serve(self, until: float) -> bool:  # noqa: ARG002 - `BATCH` limits its time
        """See `Polled`. The system reports the packets that are left."""
        for _ in range(BATCH):
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._socket, PACKET, 1, PASS_ON)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionResetError:
                # The other end is gone and has not read all. Its own packets can still be read.
                continue
            except OSError as error:
                log.warning("worker unreachable", reason=error.strerror or str(error))
                packet, descriptors = b"", []
            if not packet:
                self.close()
                self._on_end(self)
                return False
            try:
                self._on_packet(self, packet, descriptors)
            except Exception as error:
                log.error("internal error", exception=error)
                close_all(descriptors)
        return False

    def close(self) -> None:
        """Close this end."""
        if self.is_open:
            self.is_open = False
            self._poller.remove(self._socket.fileno())
            self._socket.close()


class Door:
    """The socket at which other workers open channels, served by the poller."""

    is_heavy = False

    def __init__(self, path: Path, backlog: int, poller: Poller, admit: Callable[[socket.socket], None]) -> None:
        """Listen. Args: backlog: channels that may wait. admit: gets each channel's socket, and must not raise.

        Raises: OSError: the system refuses the socket.
        """
        self._admit = admit
        self._poller = poller
        self._socket = listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.setblocking(False)
            with suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(str(path))
            listening.listen(backlog)
            poller.add(listening.fileno(), self, READABLE)
        except OSError:
            listening.close()
            raise

    def serve(self, until: float) -> bool:  # noqa: ARG002 - there are few channels
        """See `Polled`."""
        try:
            connected, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return False
        except OSError as error:  # no file descriptors or memory are left
            log.warning("accept failed", peer=WORKER, reason=error.strerror or str(error))
            self._poller.rest(self._socket.fileno(), PAUSE)
            return False
        if is_of_this_user(connected):
            self._admit(connected)
        else:
            connected.close()
        return False

    def close(self) -> None:
        """Take no more channels."""
        if self._socket.fileno() != -1:
            self._poller.remove(self._socket.fileno())
            self._socket.close()


def close_all(descriptors: list[int]) -> None:
    """Close received descriptors that nobody uses."""
    for each in descriptors:
        os.close(each)
