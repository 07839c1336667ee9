"""A Trio process that copies bytes between two sockets and knows nothing of them: what any router in Python costs.

python -m benchmarks.forwarder --to 127.0.0.1:5672[,127.0.0.1:5673...] [--certificate cert.pem --key key.pem]

It listens at a port for each place that it copies to, and says where, in the order of the places, with commas. With a
certificate it speaks TLS on both sides: what comes is decrypted, and encrypted again.
"""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Awaitable, Callable

import trio

BUFFER = 1 << 18
BACKLOG = 4096

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def copy(source: Stream, sink: Stream) -> None:
    try:
        while data := await source.receive_some(BUFFER):
            await sink.send_all(data)
        if isinstance(sink, trio.SocketStream):
            await sink.send_eof()
        else:
            await sink.aclose()  # TLS closes both directions
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
        return  # the other direction gets an error, too


async def forward(client: Stream, server: Stream) -> None:
    async with client, server, trio.open_nursery() as nursery:
        nursery.start_soon(copy, client, server)
        nursery.start_soon(copy, server, client)


def plain(host: str, port: int) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def handle(client: trio.SocketStream) -> None:
        await forward(client, await trio.open_tcp_stream(host, port))

    return handle


def secure(host: str, port: int, certificate: str, key: str) -> Callable[[trio.SocketStream], Awaitable[None]]:
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(certificate, key)
    theirs = ssl.create_default_context(cafile=certificate)
    theirs.check_hostname = False
    theirs.verify_mode = ssl.CERT_NONE

    async def handle(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream(host, port)
        await forward(
            trio.SSLStream(client, ours, server_side=True, https_compatible=True),
            trio.SSLStream(server, theirs, server_hostname=host, https_compatible=True),
        )

    return handle


async def main(options: argparse.Namespace) -> None:
    scheme = "amqps" if options.certificate else "amqp"
    listening = []
    async with trio.open_nursery() as nursery:
        for to in options.to.split(","):
            host, _, port = to.rpartition(":")
            if options.certificate:
                handle = secure(host, int(port), options.certificate, options.key)
            else:
                handle = plain(host, int(port))
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=BACKLOG)
            nursery.start_soon(trio.serve_listeners, handle, listeners)
            listening.append(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        print(f"listening url={scheme}://{','.join(listening)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="host:port; several with commas")
    parser.add_argument("--certificate", help="PEM; without it, bytes are copied as they are")
    parser.add_argument("--key", help="PEM: its key")
    trio.run(main, parser.parse_args())
