"""CPU of the router for links and connections: attach and detach, and connections with each way to log in.

A Python client sends one step at a time and waits for the answer, so the CPU of the router depends little on its speed.
Beside it, the same octets pass a byte forwarder, and a thread repeats the router's recorded answers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme

from amqpmesh.router.config.users import Users
from benchmarks import wire
from benchmarks.bench import Bench, progress
from benchmarks.meshes import Port, port_of
from benchmarks.processes import Failed, cpu_seconds
from benchmarks.tables import Figures
from benchmarks.targets import Target, forwarders, router

USER, PASSWORD = "till", "correct horse"
ITERATIONS = 4096  # of hashing, the fewest: PLAIN pays them at the router, and this client is not to be slow
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
FEWEST = 20  # exchanges of a round
PATIENCE = 10.0  # seconds without an answer
SHARE = 0.4  # of the seconds of a run in other parts

Say = bytes | Callable[[bytes], bytes]
"""Octets, or a function that makes them of the frame that came last."""

Steps = tuple[tuple[Say, int], ...]
"""Octets of the client, each with the code of the performative that it then waits for."""

Recorded = list[tuple[bytes, bytes]]
"""Octets of the client, each with the octets of the router's answer."""


@dataclass(frozen=True)
class Exchange:
    """Steps that are taken once for each connection, and those of each exchange."""

    name: str
    each: Steps
    once: Steps = ()
    """Without them, each exchange has a connection of its own."""
    is_secure: bool = False
    has_users: bool = False
    threads_apart: bool = False
    """True: only the main thread of our router counts; a thread beside it hashes the password."""


def symbol(value: str) -> bytes:
    return b"\xa3" + bytes([len(value)]) + value.encode()


def binary(value: bytes) -> bytes:
    return b"\xa0" + bytes([len(value)]) + value


def sasl(code: int, *fields: bytes) -> bytes:
    return wire.frame(wire.described(code, *fields), sasl=True)


def reply_to(challenge: bytes) -> bytes:
    """Answer a challenge of SCRAM-SHA-256 (RFC 5802)."""
    said = bytes(wire.fields(challenge, 0)[0])
    parts = dict(part.split(b"=", 1) for part in said.split(b","))
    salt, iterations = base64.b64decode(parts[b"s"]), int(parts[b"i"])
    key = hmac.digest(_salted(salt, iterations), b"Client Key", "sha256")
    without_proof = b"c=biws,r=" + parts[b"r"]
    signed = b",".join([FIRST, said, without_proof])
    proof = bytes(map(int.__xor__, key, hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")))
    return sasl(RESPONSE, binary(without_proof + b",p=" + base64.b64encode(proof)))


_known: dict[tuple[bytes, int], bytes] = {}


def _salted(salt: bytes, iterations: int) -> bytes:
    """Hash the password, once: it is the client's work, which is not measured."""
    if (salt, iterations) not in _known:
        _known[salt, iterations] = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, iterations)
    return _known[salt, iterations]


FIRST = b"n=" + USER.encode() + b",r=" + base64.b64encode(bytes(18))
LINK = wire.attach("exchange", "exchange", receiver=True, settled=False)
ENTER: Steps = ((wire.opening("exchange") + LINK, wire.ATTACH), (wire.close(), wire.CLOSE))


def log_in(mechanism: str, response: bytes | None = None) -> Steps:
    init = sasl(INIT, symbol(mechanism), *([binary(response)] if response is not None else []))
    return ((SASL_HEADER, MECHANISMS), (init, OUTCOME), *ENTER)


EXCHANGES = (
    Exchange(
        "link attached and detached", ((LINK, wire.ATTACH), (wire.detach(0), wire.DETACH)),
        ((wire.opening("exchange"), wire.BEGIN),),
    ),
    Exchange("connection opened and closed", ENTER),
    Exchange("connection with SASL ANONYMOUS", log_in("ANONYMOUS")),
    Exchange("connection with EXTERNAL over TLS", log_in("EXTERNAL", b""), is_secure=True),
    Exchange(
        "connection with SCRAM-SHA-256",
        (
            (SASL_HEADER, MECHANISMS),
            (sasl(INIT, symbol("SCRAM-SHA-256"), binary(b"n,," + FIRST)), CHALLENGE),
            (reply_to, OUTCOME),
            *ENTER,
        ),
        has_users=True,
    ),
    Exchange(
        "connection with PLAIN, hashing apart", log_in("PLAIN", f"\0{USER}\0{PASSWORD}".encode()), has_users=True,
        threads_apart=True,
    ),
)  # fmt: skip


class ExchangeClient:
    """A connection of the client."""

    def __init__(self, port: int, secure: ssl.SSLContext | None = None) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure is not None:
            self._socket = secure.wrap_socket(self._socket)
        self._buffer = b""

    def take(self, steps: Steps) -> Recorded:
        """Say all, and wait for each answer. Raises: Failed: another one came."""
        said: Recorded = []
        frame = b""
        for say, code in steps:
            octets = say if isinstance(say, bytes) else say(frame)
            self._socket.sendall(octets)
            answer, frame = self._until(code)
            said.append((octets, answer))
        return said

    def repeat(self, steps: Recorded) -> None:
        """Say what was said, and wait for as many octets as were answered."""
        for said, answer in steps:
            self._socket.sendall(said)
            read_exactly(self._socket, len(answer))

    def end(self) -> None:
        self._socket.close()

    def _until(self, code: int) -> tuple[bytes, bytes]:
        """Read a frame of this performative. Returns: all octets that came with it, and the frame."""
        position, have = 0, self._buffer
        while True:
            size = 8 if have[position : position + 4] == b"AMQP" else self._size(have, position)
            if not size or len(have) - position < size:
                more = self._socket.recv(1 << 16)
                if not more:
                    raise Failed(f"the peer ended the stream: {have!r}")
                have += more
                continue
            frame = have[position : position + size]
            position += size
            if size > 8 and frame[10] == code:
                self._buffer = have[position:]
                return have[:position], frame
            if size > 8 and frame[10] in (wire.DETACH, wire.END, wire.CLOSE):
                raise Failed(f"the peer said {frame!r}")

    @staticmethod
    def _size(have: bytes, position: int) -> int:
        return int(struct.unpack_from(">I", have, position)[0]) if len(have) - position >= 8 else 0


def read_exactly(sock: socket.socket, count: int) -> None:
    """Read so many octets. Raises: Failed: the peer ended the stream."""
    while count:
        got = len(sock.recv(count))
        if not got:
            raise Failed("the peer ended the stream")
        count -= got


class Exchanger:
    """An exchange at one target."""

    def __init__(self, exchange: Exchange, target: Target, secure: ssl.SSLContext | None = None) -> None:
        self.exchange, self.target = exchange, target
        self._port, self._secure = port_of(target.send_url), secure

    def record(self) -> tuple[Recorded, Recorded]:
        """Do it once. Returns: the octets of a connection's beginning, and those of the exchange."""
        client = ExchangeClient(self._port, self._secure)
        found = client.take(self.exchange.once), client.take(self.exchange.each)
        client.end()
        return found

    def go(self, count: int) -> None:
        """Do it so many times."""
        if self.exchange.once:
            client = ExchangeClient(self._port, self._secure)
            client.take(self.exchange.once)
            for _ in range(count):
                client.take(self.exchange.each)
            client.end()
            return
        for _ in range(count):
            client = ExchangeClient(self._port, self._secure)
            client.take(self.exchange.each)
            client.end()

    def round(self, count: int) -> Figures:
        """Do it so many times, and what that took."""
        main_only = self.exchange.threads_apart and self.target.name == "router"
        before = sum(cpu_seconds(pid, main_only=main_only) for pid in self.target.pids)
        began, worked = time.monotonic(), time.thread_time()
        self.go(count)
        worked, took = time.thread_time() - worked, time.monotonic() - began
        busy = sum(cpu_seconds(pid, main_only=main_only) for pid in self.target.pids) - before
        per = busy / count * 1e6
        return {
            "cpu_us": per,
            "ingress_us": per,
            "messages_per_second": count / took,
            "client_us": worked / count * 1e6,
        }


class Replayer(Exchanger):
    """The same octets over a forwarder, with a thread that answers."""

    def __init__(self, exchange: Exchange, target: Target, once: Recorded, each: Recorded) -> None:
        super().__init__(exchange, target)
        self._once, self._each = once, each
        self._listener = socket.create_server(("127.0.0.1", target.port), backlog=128)
        self._thread = threading.Thread(target=self._answer_all, daemon=True)
        self._thread.start()

    def go(self, count: int) -> None:
        if self._once:
            client = ExchangeClient(self._port)
            client.repeat(self._once)
            for _ in range(count):
                client.repeat(self._each)
            client.end()
            return
        for _ in range(count):
            client = ExchangeClient(self._port)
            client.repeat(self._each)
            client.end()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # it ends the accept, which would keep the port
        self._thread.join(PATIENCE)
        self._listener.close()

    def _answer_all(self) -> None:
        with suppress(OSError):  # closed
            while True:
                self._answer(self._listener.accept()[0])

    def _answer(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, suppress(Failed, OSError):
            self._replay(peer, self._once)
            while True:
                self._replay(peer, self._each)

    @staticmethod
    def _replay(peer: socket.socket, steps: Recorded) -> None:
        for said, answer in steps:
            read_exactly(peer, len(said))
            peer.sendall(answer)


@contextmanager
def ours(exchange: Exchange) -> Iterator[tuple[Target, ssl.SSLContext | None]]:
    """Start a router that offers what an exchange needs. Yields: it, and the client's side of TLS."""
    if not exchange.is_secure:
        users = Users({}).add(USER, PASSWORD, ITERATIONS) if exchange.has_users else None
        with router(users=users) as target:
            yield target, None
        return
    with TemporaryDirectory(prefix="amqpmesh-") as folder, ExitStack() as stack:
        port = Port()
        stack.callback(port.close)
        authority = trustme.CA()
        files = {name: str(Path(folder, f"{name}.pem")) for name in ("trust", "server", "client")}
        authority.cert_pem.write_to_path(files["trust"])
        for name in ("server", "client"):
            authority.issue_cert(f"{name}.example", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
                files[name]
            )
        url = f"amqps://127.0.0.1:{port.number}"
        settings = (
            f'[[listener]]\nurl = "{url}"\nsasl = ["EXTERNAL"]\n'
            f'tls = {{ certificate = "{files["server"]}", key = "{files["server"]}", trust = "{files["trust"]}", '
            'client = "required" }'
        )
        secure = ssl.create_default_context(cafile=files["trust"])
        secure.check_hostname = False
        secure.load_cert_chain(files["client"])
        target = stack.enter_context(router(settings=settings))
        yield Target("router", url, url, target.pids), secure


def measure(bench: Bench, exchange: Exchange, forwarder: Target, other: Target | None) -> dict[str, Figures]:
    """Measure an exchange in turns at a fresh router, over a forwarder, and at another router."""
    with ours(exchange) as (target, secure), ExitStack() as stack:
        mine = Exchanger(exchange, target, secure)
        replayer = Replayer(exchange, forwarder, *mine.record())
        stack.callback(replayer.close)
        all_of_them: dict[str, Exchanger] = {"router": mine, "forwarder": replayer}
        if other is not None and not exchange.has_users and not exchange.is_secure:
            all_of_them["other"] = Exchanger(exchange, other)
        seconds = SHARE * bench.seconds
        counts = {}
        for name, each in all_of_them.items():
            speed = each.round(FEWEST)["messages_per_second"]
            counts[name] = max(FEWEST, int(speed * seconds))
        targets = [each.target for each in all_of_them.values()]
        return bench.take_turns(targets, lambda target: all_of_them[target.name].round(counts[target.name]))


def exchanges(bench: Bench, other: Target | None) -> Iterator[tuple[str, dict[str, Figures]]]:
    """Measure all exchanges. Yields: the name and the medians of each."""
    with forwarders() as forwarder:
        for exchange in EXCHANGES:
            if bench.extent == 0 and exchange is not EXCHANGES[0]:
                continue
            progress(f"patterns: {exchange.name}")
            try:
                yield exchange.name, measure(bench, exchange, forwarder, other)
            except Failed as error:  # the others are worth having
                bench.failed.append(f"patterns, {exchange.name}: {error}")
