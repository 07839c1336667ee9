"""Declaration and deletion of RabbitMQ's queues over AMQP 0-9-1, since AMQP 1.0 has no frames for it."""

import socket
import struct

PATIENCE = 60.0  # seconds

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
DECLARE, DECLARE_OK, DELETE, DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
METHOD, HEARTBEAT = 1, 8
DURABLE = b"\x02"
NOTHING = struct.pack(">I", 0)


class Declaring:
    """A connection with one channel."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(START)
        shown = f"\0{user}\0{password}".encode()
        self._say(0, START_OK, NOTHING + _short("PLAIN") + struct.pack(">I", len(shown)) + shown + _short("en_US"))
        self._expect(TUNE)
        self._say(0, TUNE_OK, struct.pack(">HIH", 10, 2**17, 0))
        self._say(0, OPEN, _short("/") + _short("") + b"\0")
        self._expect(OPEN_OK)
        self._say(1, CHANNEL_OPEN, _short(""))
        self._expect(CHANNEL_OPEN_OK)

    def declare(self, queue: str) -> None:
        """Declare a durable classic queue."""
        self._say(1, DECLARE, b"\0\0" + _short(queue) + DURABLE + NOTHING)
        self._expect(DECLARE_OK)

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages."""
        self._say(1, DELETE, b"\0\0" + _short(queue) + b"\0")
        self._expect(DELETE_OK)

    def close(self) -> None:
        """Close the socket without a farewell."""
        self._socket.close()

    def _say(self, channel: int, method: tuple[int, int], arguments: bytes) -> None:
        payload = struct.pack(">HH", *method) + arguments
        self._socket.sendall(struct.pack(">BHI", METHOD, channel, len(payload)) + payload + b"\xce")

    def _expect(self, method: tuple[int, int]) -> None:
        kind = HEARTBEAT
        while kind == HEARTBEAT:
            kind, _, size = struct.unpack(">BHI", self._exactly(7))
            payload = self._exactly(size + 1)
        assert struct.unpack(">HH", payload[:4]) == method, payload

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the connection ended"
            data += more
        return data


def _short(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()
