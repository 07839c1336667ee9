"""A gateway in a web service: an HTTP POST becomes an AMQP request, and the reply becomes the HTTP response.

    python examples/gateway.py [HOST:PORT [URL]]        (pip install 'hypercorn[trio]')
    python examples/service.py
    curl --data EUR/CHF http://127.0.0.1:8080/

The router runs in this program. Services connect to it over sockets; the web side has a link inside the process. If no
service replies within two seconds, the response is 503.
"""

import sys
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from amqpmesh import AmqpMeshError, Message, OutcomeError, RejectedError, Requester, Router

HTTP, AMQP = [*sys.argv[1:], *["127.0.0.1:8080", "amqp://127.0.0.1:5672"][len(sys.argv) - 1 :]]
PATIENCE = 2.0  # seconds


async def answer(quotes: Requester, body: bytes) -> tuple[int, bytes]:
    """Send a request. Returns: the HTTP status and the body of the response."""
    try:
        with trio.fail_after(PATIENCE):
            reply = await quotes.request(Message(body))
    except trio.TooSlowError:
        return 503, b"nobody serves\n"  # no service, hence no credit; or one that does not answer
    except RejectedError as error:
        return 400, f"{error}\n".encode()
    except OutcomeError as error:
        return 503, f"{error}\n".encode()
    except AmqpMeshError as error:
        return 502, f"{error}\n".encode()  # an answer came that cannot be read, or the link is over
    return (200, reply.body) if isinstance(reply.body, bytes) else (502, b"the service answers with no octets\n")


async def web(quotes: Requester, scope: Any, receive: Any, send: Any) -> None:
    """Handle an HTTP request, as an ASGI application: hypercorn calls this function for each request."""
    if scope["type"] == "lifespan":
        for _ in ("startup", "shutdown"):
            event = await receive()
            await send({"type": f"{event['type']}.complete"})
        return
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    status, text = await answer(quotes, body) if scope["method"] == "POST" else (405, b"POST a request\n")
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text})


async def main() -> None:
    """Run the router, a requester that all HTTP requests share, and the web server."""
    config = Config()
    config.bind = [HTTP]
    config.errorlog = None  # hypercorn's own words
    async with (
        Router(id="gateway", listeners=[AMQP]) as router,
        router.requester("quotes") as quotes,
        trio.open_nursery() as nursery,
    ):
        (url,) = await nursery.start(partial(serve, partial(web, quotes), config, mode="asgi"))
        print(f"{url} asks {router.listeners[0].url}", flush=True)


if __name__ == "__main__":
    try:
        trio.run(main)
    except* KeyboardInterrupt:
        print("stopped")
