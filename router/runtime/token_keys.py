"""The keys of tokens: secrets and sets of public keys, read at the start, and again while the router runs.

A set of keys is read in a thread, never on the event loop: from a file, or over TLS from its issuer. An answer has at
most `jwks_size` octets and `time_out` seconds, and no redirect is followed. If reading fails, the last good set stays
in force, and the next attempt waits longer. A token that names an unknown key makes the next attempt come sooner, but
two attempts are never closer than `PAUSE`: invented keys cause no flood of requests.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPSConnection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import trio

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.io.environment import REAL, environment
from amqpmesh.router.io.threads import aside
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.credentials import read_password
from amqpmesh.router.tokens.key_sets import IssuerKeys, KeySetError, PublicKey, parse_key_set

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from amqpmesh.router.config.file import RouterConfig, TokenIssuerConfig
    from amqpmesh.router.tokens.judge import Tokens

log = event_log.EventLog("amqpmesh.logins")

PAUSE: Final = 10.0
"""Seconds between two attempts to read a set of keys at least."""

CHUNK: Final = 16 * 2**10
"""Octets of an answer that are read between two looks at the clock."""

PACKAGE: Final = "joserfc"


class KeysUnreadableError(Exception):
    """A set of keys cannot be read; the text says why, for the log."""


def secrets(config: RouterConfig) -> dict[str, tuple[bytes, ...]]:
    """Return the secrets of `[[token_key]]`, by name. Raises: ConfigError: one cannot be read, or is empty."""
    return {
        each.name: tuple(
            read_password(source, f"token_key[{position}].keys[{number}]").encode()
            for number, source in enumerate(each.keys)
        )
        for position, each in enumerate(config.token_keys)
    }


def key_sets(config: RouterConfig) -> dict[str, tuple[PublicKey, ...]]:
    """Return the sets of keys in files, by issuer. Raises: ConfigError: one is not valid, or joserfc is missing."""
    if config.token_issuers and find_spec(PACKAGE) is None:
        reason = f"tokens need the package {PACKAGE}: pip install 'amqpmesh[oauth]'"
        raise ConfigError("configuration", "token_issuer", reason)
    found = {}
    for position, each in enumerate(config.token_issuers):
        if each.jwks is not None:
            try:
                found[each.issuer] = read(each)
            except KeysUnreadableError as error:
                raise ConfigError(str(each.jwks), f"token_issuer[{position}].jwks", str(error)) from None
    return found


def read(issuer: TokenIssuerConfig) -> tuple[PublicKey, ...]:
    """Read the set of keys of an issuer; this waits for the disk or the network. Raises: KeysUnreadableError."""
    try:
        return parse_key_set(_fetched(issuer) if issuer.jwks_url is not None else _file(issuer))
    except KeySetError as error:
        raise KeysUnreadableError(str(error)) from None


def _file(issuer: TokenIssuerConfig) -> bytes:
    assert issuer.jwks is not None, "one or the other is given"
    try:
        with issuer.jwks.open("rb") as stream:
            octets = stream.read(issuer.jwks_size + 1)
    except OSError as error:
        raise KeysUnreadableError(error.strerror or str(error)) from None
    return _within(octets, issuer)


def _within(octets: bytes, issuer: TokenIssuerConfig) -> bytes:
    if len(octets) > issuer.jwks_size:
        raise KeysUnreadableError(f"it has more than {issuer.jwks_size} octets (jwks_size)")
    return octets


def _fetched(issuer: TokenIssuerConfig) -> bytes:
    """Fetch a set of keys by HTTPS, in `time_out` seconds from the first octet sent to the last one read."""
    assert issuer.jwks_url is not None
    parts = urlsplit(issuer.jwks_url)
    assert parts.hostname is not None
    until = time.monotonic() + issuer.time_out
    try:
        context = ssl.create_default_context(cafile=None if issuer.trust is None else str(issuer.trust))
        connection = HTTPSConnection(parts.hostname, parts.port, timeout=issuer.time_out, context=context)
        try:
            path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
            response = connection.getresponse()
            if response.status != 200:
                raise KeysUnreadableError(f"the answer has the status {response.status}")
            octets = bytearray()
            while len(octets) <= issuer.jwks_size:
                left = until - time.monotonic()
                if left <= 0:
                    raise KeysUnreadableError(f"the answer took longer than {issuer.time_out:g} s (time_out)")
                if connection.sock is not None:
                    connection.sock.settimeout(left)
                chunk = response.read1(CHUNK)
                if not chunk:
                    break
                octets += chunk
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise KeysUnreadableError(str(error) or type(error).__name__) from None
    return _within(bytes(octets), issuer)


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The content of the files that tokens need: secrets by the name of their key, and sets of keys by issuer."""

    secrets: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    key_sets: Mapping[str, tuple[PublicKey, ...]]

    @classmethod
    def read(cls, config: RouterConfig) -> Self | None:
        """Read the files; None: the router takes no tokens. Raises: ConfigError: one is not valid."""
        if not (config.token_issuers or config.token_keys):
            return None
        return cls(secrets(config), key_sets(config))

    @classmethod
    async def read_aside(cls, config: RouterConfig) -> Self | None:
        """Do the same as `read` in a thread; a router that takes no tokens does not wait."""
        return await aside(cls.read, config) if config.token_issuers or config.token_keys else None

    def put_in_force(self, config: RouterConfig, tokens: Tokens) -> None:
        """Put the content in force. Args: config: of which it is."""
        tokens.change(config, self.secrets)
        for issuer, keys in self.key_sets.items():
            tokens.keys[issuer].replace(keys)


class KeyReaders:
    """The tasks that read the sets of keys again, one for each issuer."""

    def __init__(
        self,
        config: RouterConfig,
        tokens: Tokens,
        read: Callable[[TokenIssuerConfig], tuple[PublicKey, ...]] = read,
    ) -> None:
        """Args: read: reads one set of keys, in a thread. Raises: KeysUnreadableError."""
        self._tokens = tokens
        self._read = read
        self._readers = {each.issuer: self._reader(each) for each in config.token_issuers}

    def _reader(self, issuer: TokenIssuerConfig) -> _KeyReader:
        return _KeyReader(issuer, self._tokens.keys[issuer.issuer], self._read)

    def start(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Start the tasks. Args: start: runs a task that ends with the router."""
        self._start = start
        for each in self._readers.values():
            start(each.run)

    def change(self, config: RouterConfig) -> None:
        """Read the sets of the issuers of another configuration, as soon as possible. The tokens follow it already."""
        before, self._readers = self._readers, {}
        for issuer in config.token_issuers:
            reader = before.get(issuer.issuer)
            if reader is not None and reader.goes_on(issuer, self._tokens.keys[issuer.issuer]):
                reader.wake()
            else:
                reader = self._reader(issuer)
                self._start(reader.run)
            self._readers[issuer.issuer] = reader
        for reader in before.values():
            if reader not in self._readers.values():
                reader.end()


class _KeyReader:
    """The task that reads the set of keys of one issuer."""

    def __init__(
        self,
        issuer: TokenIssuerConfig,
        keys: IssuerKeys,
        read: Callable[[TokenIssuerConfig], tuple[PublicKey, ...]],
    ) -> None:
        self._issuer = issuer
        self._keys = keys
        self._read = read
        self._wanted = trio.Event()
        # An attempt that hangs, in a look-up of a name for instance, is abandoned, and no other begins before it ends.
        self._threads = trio.CapacityLimiter(1)
        self._scope = trio.CancelScope()
        keys.on_missing = self.wake

    def goes_on(self, issuer: TokenIssuerConfig, keys: IssuerKeys) -> bool:
        """Follow a changed issuer from the next attempt on. Returns: False: its keys are others', and not read here."""
        if keys is self._keys:
            self._issuer = issuer
        return keys is self._keys

    def end(self) -> None:
        """Read nothing more."""
        self._scope.cancel()

    def wake(self) -> None:
        """Read the set as soon as the pause after the last attempt is over."""
        self._wanted.set()

    async def run(self) -> None:
        """Read the set again and again, until `end`. Raises: nothing; failures are logged."""
        with self._scope:
            await self._read_for_ever()

    async def _read_for_ever(self) -> None:
        failures = 0
        if len(self._keys):  # its file was read at the start
            await self._wait(self._issuer.refresh)
        while True:
            # What was asked before an attempt is answered by it.
            self._wanted = trio.Event()
            reason = await self._attempt()
            failures = 0 if reason is None else failures + 1
            if reason is not None:
                log.warning(
                    "keys not read",
                    issuer=self._issuer.issuer,
                    source=self._issuer.place,
                    reason=reason,
                    keys=len(self._keys),
                )
            await trio.sleep(PAUSE)
            again = min(self._issuer.refresh, PAUSE * 2 ** min(failures, 10)) if failures else self._issuer.refresh
            await self._wait(max(0.0, again - PAUSE))

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._wanted.wait()

    async def _attempt(self) -> str | None:
        """Read the set once. Returns: the reason of a failure; None: the set is in force."""
        with trio.move_on_after(self._issuer.time_out + 1.0) as patience:
            try:
                found = await self._aside()
            except KeysUnreadableError as error:
                return str(error)
            except Exception as error:
                log.error("internal error", exception=error, issuer=self._issuer.issuer)
                return "internal error"
        if patience.cancelled_caught:
            return f"it took longer than {self._issuer.time_out:g} s (time_out)"
        changed = [each.id for each in found] != [each.id for each in self._keys.all]
        self._keys.replace(found)
        if changed:
            log.info("keys read", issuer=self._issuer.issuer, source=self._issuer.place, keys=len(found))
        return None

    async def _aside(self) -> tuple[PublicKey, ...]:
        if environment() is not REAL:  # a simulation must repeat exactly, and its virtual clock waits for no thread
            await trio.lowlevel.checkpoint()
            return self._read(self._issuer)
        work = partial(self._read, self._issuer)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
