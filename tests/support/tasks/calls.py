"""Calls in tasks of their own, which a test looks at and cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Call(Generic[T]):
    """A call in a task of its own."""

    def __init__(self, nursery: trio.Nursery, call: Callable[..., Awaitable[T]], *args: Any, **keywords: Any) -> None:
        self._call = call
        self._scope = trio.CancelScope()
        self._done = trio.Event()
        self._result: T
        #: What it raised.
        self.error: Exception | None = None
        nursery.start_soon(self._run, args, keywords)

    async def _run(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        try:
            with self._scope:
                self._result = await self._call(*args, **keywords)
        except Exception as error:
            self.error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """True if the call has returned, raised, or was cancelled."""
        return self._done.is_set()

    async def cancel(self) -> None:
        """Cancel the call, and wait until it has ended."""
        self._scope.cancel()
        await self._done.wait()
        assert self._scope.cancelled_caught, "it had come to an end"

    async def result(self) -> T:
        """Wait for the result. Raises: the call's exception."""
        await self._done.wait()
        if self.error is not None:
            raise self.error
        return self._result

    async def failure(self) -> Exception:
        """Wait for the call's exception."""
        await self._done.wait()
        assert self.error is not None, "it did not fail"
        return self.error
