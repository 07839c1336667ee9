"""Questions of one worker of a router to the others, and the answers of all of them put together.

Each worker listens for the others at a Unix socket. The worker that a client has reached logs it in, and says with each
question what the client may see. Only processes of the same user are believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import h11

from amqpmesh.router.http.requests import NOT_FOUND, HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.http.visitors import Visitor

VISITOR: Final = "x-amqpmesh-visitor"
"""The header field that describes the client that asks."""

ROUTER: Final = "router"
"""The parameter of a target that names one worker by its id."""


def path_of(folder: Path, number: int) -> Path:
    """Return the path of the socket at which a worker answers the others."""
    return folder / f"http-{number}"


class Question:
    """A request to another worker, and its answer, without I/O."""

    def __init__(self, request: Request, visitor: Visitor | None) -> None:
        """Args: visitor: of the client; None: the request needs no login."""
        self._h11 = h11.Connection(h11.CLIENT)
        query = urlencode({name: value for name, value in request.query.items() if name != ROUTER})
        kept = ("accept", "content-type", "x-amqpmesh-change")
        fields = {name: request.headers[name] for name in kept if name in request.headers}
        if visitor is not None:
            fields[VISITOR] = visitor.written()
        fields |= {"host": "localhost", "connection": "close", "content-length": str(len(request.body))}
        # As they were read: a client may send any octets in a field.
        headers = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        target = f"{request.path}?{query}" if query else request.path
        head = h11.Request(method=request.method, target=target, headers=headers)
        self.octets = b"".join(
            self._h11.send(event) or b"" for event in (head, h11.Data(data=request.body), h11.EndOfMessage())
        )
        #: The status of the answer; 0: it has not come. `kind`: the media type of its content.
        self.status = 0
        self.kind = ""
        self.is_over = False

    def receive(self, data: bytes) -> bytes:
        """Take octets of the answer; b"": there are no more. Returns: those of its content.

        Raises: ValueError: it is malformed, or cut off.
        """
        content = bytearray()
        try:
            self._h11.receive_data(data)
            while not self.is_over:
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    break
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                    self.kind = dict(event.headers).get(b"content-type", b"").decode()
                elif isinstance(event, h11.Data):
                    content += event.data
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    self.is_over = True
        except h11.RemoteProtocolError as error:
            raise ValueError(str(error)) from None
        return bytes(content)


def merged(documents: Iterable[bytes]) -> bytes:
    """Return documents of metrics as one, in which each family stands once. Their series have different labels."""
    families: dict[bytes, list[bytes]] = {}
    end = b""
    for document in documents:
        head = b""
        found: list[bytes] = []
        for line in document.splitlines(keepends=True):
            if line == b"# EOF\n":
                end = line
            elif line.startswith(b"# HELP "):
                families.setdefault(head, []).extend(found)
                head, found = line, []
            elif line.startswith(b"# TYPE "):
                head += line
            else:
                found.append(line)
        families.setdefault(head, []).extend(found)
    return b"".join(part for head, lines in families.items() for part in (head, *lines)) + end


def chosen(request: Request, ids: Iterable[str]) -> str | None:
    """Return the worker that a request names; None: it names none. Raises: HttpError: there is none of that id."""
    wanted = request.query.get(ROUTER)
    if wanted is not None and wanted not in ids:
        raise HttpError(NOT_FOUND, "there is no worker of that id")
    return wanted
