"""The tokens of a running router: their judge, and the tasks that read its keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.access.tokens import end_tokens
from amqpmesh.router.runtime.token_keys import KeyReaders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.token_keys import TokenFiles
    from amqpmesh.router.tokens.judge import Tokens


class TokenStore:
    """The judge of one router's tokens, which comes with the first issuer or key, and follows the configuration."""

    def __init__(self, core: Core, wall_clock: Callable[[], float]) -> None:
        """Args: wall_clock: seconds since 1970."""
        self._core = core
        self._wall_clock = wall_clock
        self._readers: KeyReaders | None = None

    def begin(self, config: RouterConfig, files: TokenFiles | None) -> None:
        """Take tokens from now on. Args: files: what `config` names; None: it has no issuers and no keys."""
        if files is not None:
            self._readers = KeyReaders(config, self._judge(config, files))

    def _judge(self, config: RouterConfig, files: TokenFiles) -> Tokens:
        from amqpmesh.router.tokens.judge import Tokens  # here: most routers take no tokens

        self._core.context.tokens = tokens = Tokens(config, files.secrets, self._wall_clock)
        files.put_in_force(config, tokens)
        return tokens

    def start(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Start the tasks. Args: start: runs a task that ends with the router."""
        self._start = start
        if self._readers is not None:
            self._readers.start(start)

    def narrow(self, target: RouterConfig, files: TokenFiles | None) -> None:
        """Take no tokens any more that another configuration does not take, and close the connections that came by
        them.

        Args: files: as of `begin`.
        """
        tokens = self._core.context.tokens
        if tokens is not None and tokens.narrow(target, {} if files is None else files.secrets):
            self._core.change(partial(end_tokens, self._core.context, tokens), trio.current_time())

    def put_in_force(self, config: RouterConfig, files: TokenFiles | None) -> None:
        """Take the tokens of a configuration, and read its sets of keys again. Args: files: as of `begin`."""
        tokens = self._core.context.tokens
        if self._readers is None and files is not None:
            self.begin(config, files)
            self.start(self._start)
        elif tokens is not None and self._readers is not None:
            if files is None:  # the judge stays: a connection may still have a link to put tokens by
                tokens.change(config, {})
            else:
                files.put_in_force(config, tokens)
            self._readers.change(config)
