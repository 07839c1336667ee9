"""Listening sockets that a process has inherited from the one before it, which it takes over."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.config.listener import ListenerConfig

PACKET: Final = 8 * 2**10
"""Octets of a packet at most: it has a listener's name and URL, or the path of a socket."""

ADDRESSES: Final = 64
"""Sockets of a listener at most: one for each address of its host."""

PASS_ON: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""Received descriptors are not passed on to programs that this process starts."""


class Place(NamedTuple):
    """A listener's place, as its configuration says."""

    name: str
    url: str


def give(
    channel: socket.socket, places: Iterable[tuple[ListenerConfig, list[socket.socket]]], door: str | None
) -> None:
    """Send listening sockets, for `Inherited.receive`. Args: door: as there. Raises: OSError."""
    for config, sockets in places:
        told = {"name": config.name, "url": str(config.endpoint)}
        socket.send_fds(
            channel, [json.dumps(told).encode()], [each.fileno() for each in sockets if each.fileno() != -1]
        )
    channel.send(json.dumps({"door": door}).encode())


class Inherited:
    """The listening sockets that a process has got from its predecessor, and the path of the socket at which the
    predecessor can be joined, or of the folder of its workers' sockets; None: it is in no mesh.
    """

    def __init__(self, sockets: Mapping[Place, list[socket.socket]], door: str | None) -> None:
        self._sockets = dict(sockets)
        self.door = door

    @classmethod
    def receive(cls, channel: socket.socket) -> Inherited:
        """Read what the predecessor has sent. Raises: OSError; ValueError: it is nothing that can be understood."""
        sockets: dict[Place, list[socket.socket]] = {}
        while True:
            packet, descriptors, _, _ = socket.recv_fds(channel, PACKET, ADDRESSES, PASS_ON)
            found = [socket.socket(fileno=each) for each in descriptors]
            for each in found:
                each.setblocking(False)
            if not packet:
                raise ValueError("the predecessor has ended")
            told = json.loads(packet)
            if "url" not in told:
                return cls(sockets, told["door"])
            sockets[Place(told["name"], told["url"])] = found

    def take(self, config: ListenerConfig) -> list[socket.socket] | None:
        """Return the sockets of a listener, which it has from now on; None: there are none.

        A listener may have got another name. Of a port that the system has chosen, the name decides.
        """
        url = str(config.endpoint)
        is_fixed = bool(config.endpoint.port)
        alike = [each for each in self._sockets if each.url == url and (is_fixed or each.name == config.name)]
        return self._sockets.pop(alike[0]) if alike else None

    def close(self) -> None:
        """Close the sockets that no listener has taken."""
        while self._sockets:
            for each in self._sockets.popitem()[1]:
                each.close()
