"""Clients that do nothing wrong, beside peers that may do anything."""

from __future__ import annotations

from dataclasses import replace

from amqpmesh.router.config.file import AddressConfig
from tests.support.peers.scripted import Script
from tests.support.worlds.network import Network, message

#: What the listener takes of an intruder: frames in a session's window, octets, channels, handles.
WINDOW = 8
MAX_MESSAGE_SIZE = 1000
MAX_FRAME_SIZE = 4096
CHANNEL_MAX = 7
HANDLE_MAX = 7


class Bystanders:
    """A producer and a consumer with traffic of their own, and a partner of the intruders."""

    def __init__(self, *addresses: AddressConfig) -> None:
        self.network = Network(*addresses)
        self.producer = self.network.client("producer")
        self.consumer = self.network.client("consumer")
        self.receiver = self.consumer.receiver("news", credit=1000)
        self.sender = self.producer.sender("news")
        #: Takes what intruders send to "a", and feeds who attaches to "feed".
        self.partner = self.network.client("partner")
        self.taker = self.partner.receiver("a", credit=4)
        self.feeder = self.partner.sender("feed")
        self._number = 0

    def exchange(self) -> None:
        """Send a message from the producer to the consumer, and accept it."""
        self._number += 1
        body = message(f"news {self._number}")
        sent = self.producer.send(self.sender, body)
        (arrival,) = self.consumer.take(1)
        assert bytes(arrival.payload) == body
        arrival.accept()
        self.network.run()
        ((state, settled),) = sent.said
        assert (type(state).__name__, settled) == ("Accepted", True)

    def feed(self) -> None:
        """Send a delivery to an intruder."""
        self.partner.send(self.feeder)

    def leave(self) -> None:
        """Close all clients, and assert that nothing is left."""
        self.network.leave()


class Intruder:
    """A stream to the router, whose octets a test writes."""

    def __init__(
        self,
        network: Network,
        *,
        max_frame_size: int = 2**20,
        window: int = WINDOW,
        handle_max: int = HANDLE_MAX,
        host: str = "127.0.0.1",
        most_sent: int = MAX_FRAME_SIZE,
        shares: bool = False,
    ) -> None:
        """Args: max_frame_size: octets, above which reading raises. host: it comes from there. most_sent: octets of a
        frame that the router takes. shares: it has the network's listener, not one of its own with narrow limits.
        """
        self.network = network
        core = network.core
        narrow = replace(
            network.listener,
            session_window=window,
            max_message_size=MAX_MESSAGE_SIZE,
            max_frame_size=most_sent,
            channel_max=CHANNEL_MAX,
            handle_max=handle_max,
        )
        listener = network.listener if shares else narrow
        self.record = core.accept(listener, host, network.now, secured=False)
        self.peer = Script(self.give, self.take, max_frame_size=max_frame_size)

    @property
    def is_finished(self) -> bool:
        """True if the router will close the stream."""
        return self.record.engine.finished

    def give(self, data: bytes) -> None:
        """Give octets to the router, and let all others react."""
        self.network.core.receive(self.record, data, self.network.now)
        self.network.run()

    def take(self) -> bytes:
        """Return the octets that the router has to send."""
        core = self.network.core
        data = core.data_to_send(self.record, self.network.now)
        core.sent(self.record, self.network.now)
        self.network.run()
        return data

    def leave(self) -> None:
        """End the stream."""
        self.network.core.receive_eof(self.record, self.network.now)
        self.network.run()
