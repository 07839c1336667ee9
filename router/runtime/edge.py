"""The edge of a running router: its listeners and connectors, and the credentials of both."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import trio

from amqpmesh.router.management.changed_config import end_clients, end_connection, follow
from amqpmesh.router.runtime.http_listeners import HttpListeners, by_protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.config.users import Users
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.connectors import Connector
    from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
    from amqpmesh.router.runtime.listeners import Admit, Listener
    from amqpmesh.router.runtime.poller import Poller


class Edge:
    """The listeners and connectors of one router.

    Attributes: `listeners`, `connectors`: in the order of the configuration. `is_stopped`: nothing comes any more.
        `credentials`: of listeners, and of others whose rules hold for streams that the program serves.
    """

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        #: Those for AMQP; a server of their own has those for HTTP.
        self.amqp: list[Listener] = []
        self.http: HttpListeners
        self.connectors: list[Connector] = []
        #: Connectors that are in no configuration: to the process that this one takes over.
        self.unlisted: list[Connector] = []
        self.is_stopped = False
        self.credentials: dict[ListenerConfig, Credentials] = {}
        #: The configurations that listeners had before; handshakes and logins may have begun with them. None: the
        #: listener is gone.
        self._replaced: WeakKeyDictionary[ListenerConfig, ListenerConfig | None] = WeakKeyDictionary()

    def hold(self, bound: list[Listener]) -> None:
        """Have these listeners."""
        self.listeners, self.amqp = bound, by_protocol(bound)[0]

    def begin(
        self,
        core: Core,
        poller: Poller | None,
        start: Callable[..., object],
        admit: Admit,
        start_connector: Callable[[ConnectorConfig, ConnectorCredentials], Connector],
    ) -> None:
        """Accept connections. Args: start: runs a task that ends with the router. admit: as of `Listener.accept`."""
        self._core = core
        self._poller = poller
        self._start = start
        self._admit = admit
        self._start_connector = start_connector
        for each in self.amqp:
            self._accept(each)

    def accept_again(self) -> None:
        """Accept connections of all listeners after their pause."""
        for each in self.listeners:
            each.is_paused = False  # those for HTTP look at it
        for each in self.amqp:
            self._accept(each)

    def connect(self, config: ConnectorConfig, credentials: ConnectorCredentials) -> None:
        """Start a connector."""
        self.connectors.append(self._start_connector(config, credentials))

    def stop(self) -> None:
        """Accept and open no more connections."""
        self.is_stopped = True
        for listener in self.amqp:
            listener.close()
        for connector in (*self.connectors, *self.unlisted):
            connector.stop()

    # ----------------------------------------------------------------------------------------------------- credentials

    def now(self, listener: ListenerConfig) -> ListenerConfig | None:
        """Return the configuration that a listener has now. Args: listener: as it was. Returns: None: it is gone."""
        current: ListenerConfig | None = listener
        while current is not None and current in self._replaced:
            current = self._replaced[current]
        return current

    def admitting(self, listener: ListenerConfig) -> ListenerConfig | None:
        """Return the same, for a connection whose handshake began with `listener`.

        Returns: None: the listener is gone, or has come to demand TLS, which the connection does not have.
        """
        found = self.now(listener)
        return None if found is not None and found.endpoint.secure and not listener.endpoint.secure else found

    def credentials_of(self, listener: ListenerConfig) -> Credentials:
        """Return the credentials that a listener has now. Raises: KeyError: it is gone."""
        found = self.now(listener)
        if found is None:
            raise KeyError(listener.name)
        return self.credentials[found]

    def users_of(self, listener: ListenerConfig) -> Users | None:
        """Return the users that a listener has now; None: it has none."""
        found = self.now(listener)
        credentials = None if found is None else self.credentials.get(found)
        return None if credentials is None else credentials.users

    def is_revoked(self, listener: ListenerConfig, certificate: bytes) -> bool:
        """Tell whether a client's certificate was revoked since its handshake. Args: certificate: DER."""
        found = self.now(listener)
        return found is not None and found in self.credentials and self.credentials[found].has_revoked(certificate)

    # --------------------------------------------------------------------------------------------------------- changes

    def listener_of(self, config: ListenerConfig) -> Listener:
        """Return the listener of a configuration in force."""
        return next(each for each in self.listeners if each.config is config)

    def add_listener(self, listener: Listener, credentials: Credentials) -> None:
        """Accept connections of one more listener."""
        self._come(listener.config, credentials)
        self.listeners.append(listener)
        if listener.config.is_http:
            self.http.serve(listener)
        else:
            self.amqp.append(listener)
            self._accept(listener)

    def change_listener(
        self, listener: Listener, config: ListenerConfig, credentials: Credentials, sockets: list[socket.socket] | None
    ) -> None:
        """Let a listener have another configuration.

        Args: sockets: for another URL, of one for AMQP; None: it listens where it does.
        """
        before = listener.config
        if before is config:
            self.credentials[config] = credentials
            return
        if sockets is not None:
            listener.accept_rest()  # as before, so that they follow the change like all others
        self.credentials.pop(before, None)
        self._come(config, credentials)
        if before != config:
            self._replaced[before] = config
        follow(self._core.context, before, config)
        if sockets is None:
            listener.config = config
            if config.is_http and before != config:
                self.http.serve(listener)
        else:
            listener.move(config, sockets)
            self._accept(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Close a listener, and its connections."""
        self.listeners.remove(listener)
        if listener.config.is_http:
            listener.is_removed = True
            self.http.remove(listener)
        else:
            listener.remove()
            self.amqp.remove(listener)
        self.credentials.pop(listener.config, None)
        self._replaced[listener.config] = None
        end_clients(self._core, listener.config)

    def change_connector(
        self, connector: Connector, config: ConnectorConfig, credentials: ConnectorCredentials
    ) -> None:
        """Let a connector have another configuration. It connects anew if its connection leads elsewhere now."""
        if connector.can_become(config):
            follow(self._core.context, connector.config, config)
            connector.config, connector.credentials = config, credentials
            return
        self.remove_connector(connector)
        self.connect(config, credentials)

    def remove_connector(self, connector: Connector) -> None:
        """End a connector, and its connection."""
        self.connectors.remove(connector)
        connector.stop()
        end_connection(self._core, connector.config, trio.current_time())

    def sort(self, config: RouterConfig) -> None:
        """Bring listeners and connectors into the order of the configuration."""
        by_listener = {each.name: at for at, each in enumerate(config.listeners)}
        by_connector = {each.name: at for at, each in enumerate(config.connectors)}
        self.listeners.sort(key=lambda each: by_listener[each.name])
        self.connectors.sort(key=lambda each: by_connector[each.name])

    def _come(self, config: ListenerConfig, credentials: Credentials) -> None:
        self._replaced.pop(config, None)  # it may have had this configuration before
        self.credentials[config] = credentials

    def _accept(self, listener: Listener) -> None:
        endpoint = listener.config.endpoint
        poller = None if endpoint.secure or endpoint.is_websocket else self._poller
        self._start(listener.accept, self._admit, poller)
