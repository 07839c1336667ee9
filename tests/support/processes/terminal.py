"""A terminal, for programs that behave otherwise there."""

from __future__ import annotations

import os
import termios
import threading
from typing import TextIO

from tests.support.processes.router_thread import PATIENCE


class Terminal:
    """A terminal, and all text that was shown on it."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.stream: TextIO = os.fdopen(slave, "w")
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # nobody has it open any more
                return
            if not chunk:
                return
            self._shown += chunk

    def shown(self) -> str:
        """Return all of it, and close the terminal."""
        self.stream.close()
        self._reader.join(PATIENCE)
        return self._shown.decode()

    def close(self) -> None:
        self.stream.close()
        self._reader.join(PATIENCE)
        os.close(self._master)
