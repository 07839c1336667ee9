"""The other workers of a router, as the one asks them that a client of HTTP has reached."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.http.requests import NO_CONTENT, OK, UNAVAILABLE, Answer, HttpError
from amqpmesh.router.http.siblings import Question, chosen, merged, path_of
from amqpmesh.router.io.streams import READ_SIZE
from amqpmesh.router.runtime.http_calls import STANDS_STILL
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from amqpmesh.router.config.mesh import WorkerConfig
    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.http.visitors import Visitor

HEALTH_TIME: Final = 1.75
"""Seconds that another worker has to say how it is: a little more than its own loop has."""

ANSWER_TIME: Final = 20.0
"""Seconds that another worker has for each part of an answer."""

LONGEST: Final = 64 * 2**20
"""Octets of metrics of another worker."""


class Siblings:
    """The other workers; used in the thread that serves HTTP."""

    def __init__(self, worker: WorkerConfig) -> None:
        self.own = worker_of(worker.name, worker.number)
        numbers = [each for each in range(1, worker.count + 1) if each != worker.number]
        self._paths = {worker_of(worker.name, each): path_of(worker.folder, each) for each in numbers}

    def chosen(self, request: Request) -> str | None:
        """Return the worker that a request names; None: it names none. Raises: HttpError: there is none of that id."""
        return chosen(request, (self.own, *self._paths))

    async def why_not(self, request: Request) -> str | None:
        """Return the reason why a worker is not well; None: there is none. One that does not listen is started anew."""
        reasons: list[str] = []

        async def ask(worker: str) -> None:
            try:
                with trio.fail_after(HEALTH_TIME):
                    status, content = await self._whole(worker, request, None)
                if status != OK:
                    reasons.append(content.decode(errors="replace").strip())
            except trio.TooSlowError:
                reasons.append(STANDS_STILL)
            except (OSError, trio.BrokenResourceError, ValueError):
                return

        async with trio.open_nursery() as nursery:
            for each in self._paths:
                nursery.start_soon(ask, each)
        return reasons[0] if reasons else None

    async def metrics(self, request: Request, visitor: Visitor, own: Answer) -> Answer:
        """Return the metrics of all workers together. Args: own: those of this one."""
        documents = [own.body]

        async def ask(worker: str) -> None:
            # One that does not answer is missing: the series of the others are right.
            try:
                with trio.move_on_after(ANSWER_TIME):
                    status, content = await self._whole(worker, request, visitor)
                    if status == OK:
                        documents.append(content)
            except (OSError, trio.BrokenResourceError, ValueError):
                return

        async with trio.open_nursery() as nursery:
            for each in self._paths:
                nursery.start_soon(ask, each)
        return Answer(OK, merged(documents), own.kind)

    def listed(self, request: Request, visitor: Visitor, own: Answer) -> Answer:
        """Return the entities of all workers, in an object by their ids. Args: own: those of this one, in parts."""
        assert own.parts is not None, "a list comes in parts"
        return Answer(OK, kind=own.kind, parts=self._parts(request, visitor, own.parts))

    async def forward(self, worker: str, request: Request, visitor: Visitor) -> Answer:
        """Return the answer of another worker. Raises: HttpError: it gives none."""
        asked = _Asked(self._paths[worker], Question(request, visitor))
        await asked.begin()
        if asked.question.status == NO_CONTENT:
            await asked.close()
            return Answer(NO_CONTENT)
        return Answer(asked.question.status, kind=asked.question.kind, parts=asked.parts())

    async def _parts(
        self, request: Request, visitor: Visitor, own: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        yield b"{" + json.dumps(self.own).encode() + b":"
        async with aclosing(own):
            async for part in own:
                yield part
        for worker, path in self._paths.items():
            asked = _Asked(path, Question(request, visitor))
            try:
                await asked.begin()
            except HttpError:  # it is started anew
                continue
            async with aclosing(asked.parts()) as parts:
                yield b"," + json.dumps(worker).encode() + b":"
                async for part in parts:
                    yield part
        yield b"}\n"

    async def _whole(self, worker: str, request: Request, visitor: Visitor | None) -> tuple[int, bytes]:
        """Return the status and the content of an answer. Raises: OSError; trio.BrokenResourceError; ValueError."""
        question = Question(request, visitor)
        content = bytearray()
        async with await trio.open_unix_socket(str(self._paths[worker])) as stream:
            await stream.send_all(question.octets)
            while not question.is_over:
                content += question.receive(bytes(await stream.receive_some(READ_SIZE)))
                if len(content) > LONGEST:
                    raise ValueError("the answer is too long")
        return question.status, bytes(content)


class _Asked:
    """A question to another worker that has been sent, and the answer as it comes."""

    def __init__(self, path: Path, question: Question) -> None:
        self.question = question
        self._path = path
        self._stream: trio.SocketStream | None = None
        self._content = b""

    async def begin(self) -> None:
        """Ask, and wait for the head of the answer. Raises: HttpError: there is none."""
        try:
            self._stream = await trio.open_unix_socket(str(self._path))
            await self._stream.send_all(self.question.octets)
            while not self.question.status:
                self._content += await self._read(self._stream)
        except (OSError, trio.BrokenResourceError):
            await self.close()
            raise HttpError(UNAVAILABLE, "the worker does not answer") from None
        except BaseException:
            await self.close()
            raise

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the content in parts. Raises: HttpError: it is cut off."""
        assert self._stream is not None, "it has begun"
        try:
            yield self._content
            while not self.question.is_over:
                yield await self._read(self._stream)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)

    async def _read(self, stream: trio.SocketStream) -> bytes:
        try:
            with trio.fail_after(ANSWER_TIME):
                return self.question.receive(bytes(await stream.receive_some(READ_SIZE)))
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError):
            raise HttpError(UNAVAILABLE, "the worker does not answer") from None
