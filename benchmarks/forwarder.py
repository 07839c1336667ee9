"""A Trio process that copies bytes between two sockets and knows nothing of them: what any router in Python costs.

python -m benchmarks.forwarder --to 127.0.0.1:5672
"""

from __future__ import annotations

import argparse

import trio

BUFFER = 1 << 18


async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    try:
        while data := await source.receive_some(BUFFER):
            await sink.send_all(data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # the other direction hears of it too


async def forward(client: trio.SocketStream, host: str, port: int) -> None:
    server = await trio.open_tcp_stream(host, port)
    async with client, server, trio.open_nursery() as nursery:
        nursery.start_soon(copy, client, server)
        nursery.start_soon(copy, server, client)


async def main(to: str) -> None:
    host, _, port = to.rpartition(":")

    async def handle(client: trio.SocketStream) -> None:
        await forward(client, host, int(port))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"listening url=amqp://127.0.0.1:{listener.socket.getsockname()[1]}", flush=True)
    await trio.serve_listeners(handle, [listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="host:port")
    trio.run(main, parser.parse_args().to)
