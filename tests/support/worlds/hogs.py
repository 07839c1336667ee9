"""A client that has the router hold much for it, by a message that it does not read."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel import OVERHEAD
from tests.support.worlds.network import message

if TYPE_CHECKING:
    from tests.support.worlds.network import Client, Network

_FRAME: Final = 32 * 2**10


class Hog:
    """A receiver that stops reading, and the sender, of another host, of a message that has not come whole."""

    _names = count()

    def __init__(self, network: Network, octets: int, host: str = "127.0.0.1") -> None:
        """Args: octets: that its connection holds; 20,000 at least. host: the receiver's."""
        self.network = network
        address = f"hog {next(self._names)}"
        self.reader: Client = network.client(host=host, max_frame_size=_FRAME)
        self.reader.receiver(address, credit=10)
        self.reader.stopped = True
        self._producer = network.client(host="127.0.0.254", window=2048, max_frame_size=_FRAME)
        sender = self._producer.sender(address)
        payload = message("x" * (octets - OVERHEAD * (octets // _FRAME + 8)))
        sent = self._producer.send(sender, payload, more=True)
        self._producer.resume(sent, bytes(octets - self.octets - OVERHEAD), more=True)

    @property
    def octets(self) -> int:
        """The octets that its connection holds."""
        return self.reader.record.held

    @property
    def is_closed(self) -> bool:
        """The router has closed its connection."""
        return self.reader.record.lost

    def leave(self) -> None:
        """Let go of all that is held."""
        for client in (self.reader, self._producer):
            if not client.is_lost:
                client.lose()
            self.network.clients.remove(client)
        self.network.run()
