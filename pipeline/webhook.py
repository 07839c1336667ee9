"""A webhook: alerts are posted to a URL that a file names, with its secrets. The endpoint may be hostile.

An attempt has a deadline for all of it. No redirect is followed: it would take the secret elsewhere. Of the answer only
the head is read. Only the host is named in errors: the path of a URL is often the secret.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError

ATTEMPTS: Final = 4
"""Attempts to post at most."""

TIME_OUT: Final = 10.0
"""Seconds of an attempt, from the connection to the head of the answer, except for the name's look-up."""

LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts at most, whatever `Retry-After` says."""

LARGEST: Final = 1 << 16
"""Octets of the file at most."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_KEYS: Final = {"url", "token", "ca"}


class WebhookError(AmqpMeshError):
    """The endpoint did not take the alerts."""


class _RetryError(Exception):
    """An attempt failed, and another one may not. Args: pause: seconds that the endpoint wants; None: none said."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass(frozen=True)
class Webhook:
    """A URL, and its secrets. Args: token: sent as `Authorization: Bearer`. ca: a file with certificates to trust."""

    host: str
    port: int
    path: str = field(repr=False)
    secure: bool
    token: str | None = field(default=None, repr=False)
    ca: str | None = None

    @staticmethod
    def of(file: Path) -> Webhook:
        """Read the file. Raises: CommandError: it is not valid; the reason has none of its values."""
        try:
            with file.open("rb") as stream:
                data = stream.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise CommandError(f"{file} is larger than {LARGEST:,} octets")
            told = tomllib.loads(data.decode())
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror or error}") from None
        except ValueError:
            raise CommandError(f"{file}: is no TOML") from None
        for key, value in told.items():
            if key not in _KEYS:
                raise CommandError(f"{file}: there is no key {key!r}; there are {', '.join(sorted(_KEYS))}")
            if (
                not isinstance(value, str)
                or not value
                or not value.isascii()
                or not value.isprintable()
                or " " in value
            ):
                raise CommandError(f"{file}: {key}: must be a text of printable ASCII, without spaces")
        return _webhook(file, told)

    def post(self, body: bytes, *, pause: Callable[[float], None] = time.sleep, time_out: float = TIME_OUT) -> None:
        """Post a JSON document; try again if it may help. Args: pause: waits that many seconds.

        Raises: WebhookError: the endpoint did not take it.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._attempt(body, time_out)
            except _RetryError as error:
                if attempt == ATTEMPTS:
                    raise WebhookError(f"webhook {self.host}: {error}, {ATTEMPTS} times") from None
                # Not all that were refused at one time shall come back at one time.
                usual = 2.0 ** (attempt - 1) * random.uniform(1.0, 1.5)  # noqa: S311 - nothing is guessed
                pause(min(LONGEST_PAUSE, max(usual, error.pause or 0.0)))
            else:
                return

    def _attempt(self, body: bytes, time_out: float) -> None:
        plain: socket.socket | None = None
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            if plain is not None:
                with suppress(OSError):
                    # Of the class: an `SSLSocket` would first say goodbye to the peer, and wait for it.
                    socket.socket.shutdown(plain, socket.SHUT_RDWR)

        watch = threading.Timer(time_out, end)
        watch.daemon = True
        connection = HTTPConnection(self.host, self.port, timeout=time_out)
        try:
            plain = socket.create_connection((self.host, self.port), time_out)
            watch.start()
            connection.sock = plain
            if self.secure:
                context = ssl.create_default_context(cafile=self.ca)
                secured = context.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
                plain = connection.sock = secured
                secured.do_handshake()
            headers = {"Content-Type": "application/json", "User-Agent": "amqpmesh", "Connection": "close"}
            if self.token is not None:
                headers["Authorization"] = f"Bearer {self.token}"
            connection.request("POST", self.path, body, headers)
            response = connection.getresponse()
            status, after = response.status, response.getheader("Retry-After", "")
            if is_late.is_set():  # the head may have ended there because its connection did
                raise TimeoutError
        except (OSError, HTTPException, ValueError) as error:
            if is_late.is_set() or isinstance(error, TimeoutError):
                raise _RetryError(f"there was no answer within {time_out:g} s") from None
            if isinstance(error, ssl.SSLCertVerificationError):
                raise WebhookError(
                    f"webhook {self.host}: its certificate is not valid: {error.verify_message}"
                ) from None
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise _RetryError(f"it cannot be reached ({reason})") from None
        finally:
            watch.cancel()
            connection.close()
        if 200 <= status < 300:
            return
        if status == 429 or status >= 500:
            raise _RetryError(
                f"it answered with {status}", float(after) if after.isdecimal() and len(after) < 9 else None
            )
        redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
        raise WebhookError(f"webhook {self.host}: it answered with {status}{redirect}")


def _webhook(file: Path, told: dict[str, Any]) -> Webhook:
    try:
        parts = urlsplit(told.get("url", ""))
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    secure = parts.scheme == "https"
    if not host or parts.scheme not in ("http", "https") or parts.username is not None:
        raise CommandError(f"{file}: url: must be https://HOST[:PORT]/PATH")
    token = told.get("token")
    if token is not None and not secure and host not in _LOOPBACK:
        raise CommandError(f"{file}: token: is sent over TLS only, and the url is no https://")
    ca = told.get("ca")
    if ca is not None and not (file.parent / ca).is_file():
        raise CommandError(f"{file}: ca: no file")
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    usual = 443 if secure else 80
    return Webhook(
        host, usual if port is None else port, path, secure, token, None if ca is None else str(file.parent / ca)
    )
