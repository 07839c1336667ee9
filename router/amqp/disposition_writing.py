"""Dispositions of a session, written into frames that the peer takes (§2.7.6, §2.4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router import kernel
from amqpmesh.router.amqp.shortening import short_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def write_dispositions(session: kernel.KernelSession, limit: int) -> None:
    """Write the dispositions that are due on a session and that the kernel does not write alone.

    They are dropped if the session has no channel. Args: limit: octets of a frame that the peer takes.
    """
    if session.channel != -1:
        for run in _joined_runs(session.progress):
            _write_run(session, run, limit)
        for run in session.dispositions:
            _write_run(session, run, limit)
    session.progress.clear()
    session.dispositions.clear()


def _write_run(session: kernel.KernelSession, run: kernel.DispositionRun, limit: int) -> None:
    """Write one frame. If its state is too long for the peer's frames, write the state's short form."""
    out = session.wire.out
    start = len(out)
    kernel.write_disposition(out, session.channel, run)
    if len(out) - start > limit and run.state is not None:
        del out[start:]
        run.state = short_state(run.state)
        if run.state is not None or run.settled:
            kernel.write_disposition(out, session.channel, run)


def _joined_runs(progress: Mapping[tuple[bool, int], bytes]) -> Iterator[kernel.DispositionRun]:
    """Join non-terminal states into runs: consecutive delivery-ids with the same state are one run.

    Args: progress: states by (we are the receiver, delivery-id).
    """
    run: kernel.DispositionRun | None = None
    for (receiver, delivery_id), state in progress.items():
        if run is not None and run.receiver == receiver and run.state == state and run.last + 1 == delivery_id:
            run.last = delivery_id
            continue
        if run is not None:
            yield run
        run = kernel.DispositionRun(receiver, delivery_id, False, state)
    if run is not None:
        yield run
