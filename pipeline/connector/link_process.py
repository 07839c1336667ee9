"""A link of a stream in a process of its own, so that several of them use several cores.

The reader's process asks by a socket pair, and this process answers in order. When the socket ends, for any reason, the
deliveries that are not accepted are released, and the process ends, whatever it does. So it never outlives the reader
by long.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.connector.intake import LEAVE_TIME
from amqpmesh.pipeline.connector.offers import Offers
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.pipeline.connector.options import Options

QUESTIONS: Final = frozenset({"start", "state", "take", "written", "accept"})
"""Methods of `Offers` that can be asked for."""

START_TIME: Final = 10.0
"""Seconds in which a process that was told to end may still have to start."""

ANSWER_TIME: Final = 60.0
"""Seconds for an answer, besides those to connect in. Each takes far less, if the process runs at all."""

MOMENT: Final = 0.01
"""Seconds for an answer that is late already: it may be there."""


class LinkProcess:
    """The reader's end. Each `ask` is followed by one `answer`; several questions may be on their way."""

    def __init__(self, options: Options, number: int) -> None:
        """Start the process. It connects when it is asked to `start`. Args: as of `Offers`."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "amqpmesh.pipeline.connector.link_process", str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - this program
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._number = number
        self._connect_time: float = options["connectTimeout"]
        #: The times by `time.monotonic` until which the answers have to come, in order.
        self._until: deque[float] = deque()
        #: The time by `time.monotonic` at which the process is killed if it has not ended.
        self._patience = float("inf")
        self._send((options, number))

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, question: str, *arguments: Any) -> None:
        """Ask for a method of `Offers`. Raises: CommandError: the process has ended."""
        self._send((question, arguments))
        self._until.append(time.monotonic() + ANSWER_TIME + (self._connect_time if question == "start" else 0.0))

    def answer(self) -> Any:
        """Return the answer to the first question without one.

        A process that does not answer in time, because it was stopped or has no core, is killed: the peer sends its
        deliveries again. Raises: its error, or CommandError: as `ask`, or no answer came.
        """
        self._limit_reads(max(MOMENT, self._until.popleft() - time.monotonic()))
        try:
            is_error, value = self._connection.recv()
        except BlockingIOError:
            self._process.kill()
            raise CommandError(f"{self._described} does not answer, and was killed") from None
        except (EOFError, OSError):
            raise self._ended() from None
        if is_error:
            raise value
        return value

    def hang_up(self) -> None:
        """Tell the process to release its deliveries and to end. It is safe amid a question."""
        self._patience = min(self._patience, time.monotonic() + LEAVE_TIME + START_TIME)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        """Wait for the end of the process after `hang_up`, and kill it if it does not end in time."""
        # Each wait has a limit: a signal's handler may call this amid another wait, which has the lock of `Popen`.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._patience - time.monotonic()))
        if self._process.returncode is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_TIME)
        self._socket.close()
        self._connection.close()

    def _send(self, value: Any) -> None:
        try:
            self._connection.send(value)
        except OSError:
            raise self._ended() from None

    def _limit_reads(self, seconds: float) -> None:
        """Let a read fail that gets nothing for so long, also in the middle of an answer."""
        whole, part = divmod(seconds, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(whole), int(part * 1e6)))

    def _ended(self) -> CommandError:
        return CommandError(f"{self._described} has ended")

    @property
    def _described(self) -> str:
        return f"link {self._number} of the stream: its process {self.pid}"


def serve(connection: Connection) -> None:
    """Answer questions until the connection ends; then release what is not accepted."""
    offers: Offers | None = None
    try:
        options, number = connection.recv()
        offers = Offers(options, number)
        threading.Thread(target=_end_with, args=(connection.fileno(), offers), daemon=True).start()
        while True:
            question, arguments = connection.recv()
            assert question in QUESTIONS
            try:
                answer = False, getattr(offers, question)(*arguments)
            except Exception as error:
                answer = True, _portable(error)
            connection.send(answer)
    except (EOFError, OSError):
        pass
    finally:
        if offers is not None:
            offers.stop()


def _end_with(descriptor: int, offers: Offers) -> None:
    """End the process with its connection, also amid a question: to connect may take as long as `connectTimeout`."""
    watch = select.poll()
    watch.register(descriptor, 0)  # the end is told in any case
    watch.poll()
    offers.stop()
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """Return the error, or one with the same words if it cannot be pickled."""
    try:
        found = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # an error's class decides what is raised here
        return CommandError(str(error))
    return error if type(found) is type(error) and str(found) == str(error) else CommandError(str(error))


if __name__ == "__main__":
    # Ctrl-C in a terminal goes to all its processes. Which of them stop is for the driver to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
