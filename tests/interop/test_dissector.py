"""All bytes that the router writes, read by Wireshark's AMQP dissector, which shares no code with this project.

A proxy between clients and router records the bytes, and they are written as a capture file. Capturing on the interface
needs rights that a build server does not give, and loses packets on a busy machine.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import struct
import subprocess
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.interop

ROUTER_PORT = 5672
SEGMENT = 1400
SYN, FIN, PUSH, ACK = 0x02, 0x01, 0x08, 0x10
TO_ROUTER, FROM_ROUTER = True, False

TEXT = {"sections": [[0x77, ["string", "hello"]]]}
PERFORMATIVES = dict(
    zip(
        ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close"),
        range(0x10, 0x19),
        strict=True,
    )
)


class Recording:
    """A proxy in front of a router that keeps the bytes of each connection, with their direction, in order."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._router = (parts.hostname, parts.port)
        self.connections: list[list[tuple[bool, bytes]]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            chunks: list[tuple[bool, bytes]] = []
            self.connections.append(chunks)
            thread = threading.Thread(target=self._relay, args=(client, chunks), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _relay(self, client: socket.socket, chunks: list[tuple[bool, bytes]]) -> None:
        with client, socket.create_connection(self._router) as router, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, (router, TO_ROUTER))
            selector.register(router, selectors.EVENT_READ, (client, FROM_ROUTER))
            while selector.get_map():
                for key, _ in selector.select():
                    to, direction = key.data
                    try:
                        data = key.fileobj.recv(65536)  # type: ignore[union-attr]  # a socket, as registered
                        if data:
                            chunks.append((direction, data))
                            to.sendall(data)
                            continue
                        to.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass  # the other side has closed already
                    selector.unregister(key.fileobj)

    def finish(self) -> None:
        """Accept no more connections, and wait until the present ones have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def capture(connections: list[list[tuple[bool, bytes]]]) -> bytes:
    """Return a capture file (pcap, raw IPv4) of these connections, one after the other."""
    packets = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)]
    clock = 0

    def packet(source: int, destination: int, sequence: int, acknowledged: int, flags: int, data: bytes = b"") -> None:
        nonlocal clock
        clock += 1
        tcp = struct.pack(">HHIIBBHHH", source, destination, sequence, acknowledged, 0x50, flags, 65535, 0, 0) + data
        loopback = bytes([127, 0, 0, 1])
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, loopback, loopback)
        length = len(ip) + len(tcp)
        packets.append(struct.pack("<IIII", clock // 1_000_000, clock % 1_000_000, length, length) + ip + tcp)

    for number, chunks in enumerate(connections):
        client = 40000 + number
        ports = {TO_ROUTER: (client, ROUTER_PORT), FROM_ROUTER: (ROUTER_PORT, client)}
        packet(*ports[TO_ROUTER], 0, 0, SYN)
        packet(*ports[FROM_ROUTER], 0, 1, SYN | ACK)
        packet(*ports[TO_ROUTER], 1, 1, ACK)
        sequence = {TO_ROUTER: 1, FROM_ROUTER: 1}
        for direction, data in chunks:
            for start in range(0, len(data), SEGMENT):
                part = data[start : start + SEGMENT]
                packet(*ports[direction], sequence[direction], sequence[not direction], PUSH | ACK, part)
                sequence[direction] += len(part)
        packet(*ports[TO_ROUTER], sequence[TO_ROUTER], sequence[FROM_ROUTER], FIN | ACK)
        packet(*ports[FROM_ROUTER], sequence[FROM_ROUTER], sequence[TO_ROUTER] + 1, FIN | ACK)
    return b"".join(packets)


@pytest.fixture
def tshark(required_in_ci, tmp_path):
    """Yield `tshark(connections, filter, field...)`: it returns the lines that tshark prints about the AMQP in them."""
    program = shutil.which("tshark")
    if program is None:
        required_in_ci("tshark")
    path: Path = tmp_path / "session.pcap"

    def run(connections: list[list[tuple[bool, bytes]]], display: str, *fields: str) -> list[str]:
        path.write_bytes(capture(connections))
        command = [program, "-r", str(path), "-d", f"tcp.port=={ROUTER_PORT},amqp", "-Y", display]
        if fields:
            command += ["-T", "fields", *(argument for field in fields for argument in ("-e", field))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.splitlines()

    return run


WRONG = "_ws.malformed || _ws.expert.severity == 8388608"  # the second is Wireshark's number for an error


def a_session_of_everything(url, client):
    """Run clients of three makes: every outcome, a drain, a dynamic node, a refusal.

    No message has several frames: the dissector does not join them, and takes a continuation for the beginning of a
    message.
    """
    outcomes = [
        {"outcome": "accepted"},
        {"outcome": "rejected", "condition": "x:y", "description": "z", "info": ["map", [[["symbol", "i"], ["null"]]]]},
        {"outcome": "released"},
        {"outcome": "modified", "failed": True, "annotations": ["map", [[["symbol", "x-opt-a"], ["uint", "1"]]]]},
    ]
    for receiving, sending in (("proton", "rhea"), ("rhea", "proton")):
        receiver = client(
            f"{receiving}_receive", url, "--address", "all", "--count", "5", "--outcomes", json.dumps(outcomes)
        )
        client(f"{sending}_send", url, "--address", "all", messages=[TEXT] * 5).finish()
        receiver.finish()
    receiver = client("azure_receive", url, "--address", "hub")
    receiver.expect("attached")
    client("azure_send", url, "--address", "hub", messages=[{"value": "x"}]).finish()
    receiver.finish()
    client("proton_receive", url, "--address", "empty", "--drain", "3").finish()
    responder = client("proton_respond", url, "--address", "upper")
    responder.expect("attached")
    client("rhea_request", url, "--address", "upper", messages=["a"]).finish()
    responder.finish()
    refused = client("proton_receive", url, "--address", "$reserved")
    refused.finish(status=1)


def test_the_dissector_finds_no_malformed_frame_in_a_session_of_everything(router, client, tshark):
    recording = Recording(router.url)
    a_session_of_everything(recording.url, client)
    recording.finish()
    assert tshark(recording.connections, WRONG) == []
    seen = Counter(
        int(number)
        for line in tshark(recording.connections, f"amqp && tcp.srcport == {ROUTER_PORT}", "amqp.performative")
        for number in line.split(",")
        if number
    )
    # This proves that the dissector has read them.
    assert seen.keys() >= set(PERFORMATIVES.values()), seen
    assert seen[PERFORMATIVES["open"]] == len(recording.connections)


def test_the_dissector_does_find_a_malformed_frame(tshark):
    header = b"AMQP\x00\x01\x00\x00"
    # An open whose list claims more octets than the frame has.
    body = b"\x00\x53\x10\xc0\xff\x02\xa1\x01a"
    frame = struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body
    assert tshark([[(TO_ROUTER, header), (FROM_ROUTER, header), (FROM_ROUTER, frame)]], WRONG) != []
