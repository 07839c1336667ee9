"""Common parts of the proton clients: arguments, connecting, reporting, and an end in limited time."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import values
from proton import Connection, SSLDomain, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container


def say(event: str, **fields: Any) -> None:
    """Print one line of JSON, for the tests to read."""
    print(json.dumps({"event": event, **fields}), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all proton clients."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True, help="amqp://host:port or amqps://host:port")
    parser.add_argument("--address", help="of the link; a sender without one is anonymous")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds until the client gives up")
    parser.add_argument("--container-id")
    parser.add_argument("--heartbeat", type=float, help="seconds; announced as the idle time-out")
    parser.add_argument("--max-frame-size", type=int)
    parser.add_argument("--mechanism", help="the one SASL mechanism to use; NONE for no SASL layer")
    parser.add_argument("--user")
    parser.add_argument("--password")
    parser.add_argument("--trust", help="PEM file of the authority")
    parser.add_argument("--certificate", help="PEM file of the client")
    parser.add_argument("--key", help="PEM file of the client")
    return parser


class Peer(MessagingHandler):
    """A client with one connection. Any unexpected event ends it with status 1."""

    def __init__(self, options: argparse.Namespace, *, prefetch: int = 0) -> None:
        super().__init__(prefetch=prefetch, auto_accept=False, auto_settle=False, peer_close_is_error=True)
        self.options = options
        self.connection: Connection
        self.failure: str | None = "the container stopped early"

    def run(self) -> None:
        """Run until done. Returns: the exit status."""
        Container(self).run()
        if self.failure is not None:
            say("failed", error=self.failure)
            sys.exit(1)

    def on_start(self, event: Any) -> None:
        options = self.options
        container = event.container
        if options.container_id:
            container.container_id = options.container_id
        extra: dict[str, Any] = {}
        if options.mechanism == "NONE":
            extra["sasl_enabled"] = False
        elif options.mechanism:
            extra["allowed_mechs"] = options.mechanism
            # The router refuses insecure logins; a client that refused them first would test nothing.
            extra["allow_insecure_mechs"] = True
        if options.user:
            extra |= {"user": options.user, "password": options.password}
        if options.max_frame_size:
            extra["max_frame_size"] = options.max_frame_size
        if options.trust:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(options.trust)
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
            if options.certificate:
                domain.set_credentials(options.certificate, options.key, None)
            extra["ssl_domain"] = domain
        self.connection = container.connect(options.url, reconnect=False, heartbeat=options.heartbeat, **extra)
        container.schedule(options.timeout, self)
        self.begin(event)

    def begin(self, event: Any) -> None:
        """Attach links."""
        raise NotImplementedError

    def on_connection_opened(self, event: Any) -> None:
        say("opened", container=event.connection.remote_container, user=self.options.user)

    def done(self) -> None:
        """Close the connection: all went as requested."""
        self.failure = None
        self.connection.close()

    def fail(self, reason: str) -> None:
        """Report an error, and stop at once."""
        say("failed", error=reason)
        # The reactor may be in any state; nothing more is sent to the peer.
        sys.stdout.flush()
        sys.exit(1)

    def on_timer_task(self, event: Any) -> None:
        if self.failure is not None:
            self.fail(f"time-out after {self.options.timeout} s")
        event.container.stop()

    def on_connection_closed(self, event: Any) -> None:
        event.container.stop()

    def on_transport_error(self, event: Any) -> None:
        condition = event.transport.condition
        self.fail(f"transport: {condition.name}: {condition.description}")

    def on_disconnected(self, event: Any) -> None:
        if self.failure is not None:
            self.fail("the peer closed the transport")

    def on_connection_remote_close(self, event: Any) -> None:
        # proton hides this condition, for programs that let it reconnect.
        condition = event.connection.remote_condition
        if condition is not None and condition.name == "amqp:connection:forced":
            self._endpoint_failed("connection", event.connection)

    def _endpoint_failed(self, what: str, endpoint: Any) -> None:
        condition = endpoint.remote_condition
        if condition is None:
            self.fail(f"{what} closed by the peer")
        else:
            info = {} if condition.info is None else {"info": values.to_json(condition.info)}
            say(f"{what}-error", condition=str(condition.name), description=condition.description, **info)
            self.fail(f"{what}: {condition.name}: {condition.description}")

    def on_connection_error(self, event: Any) -> None:
        self._endpoint_failed("connection", event.connection)

    def on_session_error(self, event: Any) -> None:
        self._endpoint_failed("session", event.session)

    def on_link_error(self, event: Any) -> None:
        self._endpoint_failed("link", event.link)


def symbol_keys(fields: dict[Any, Any]) -> dict[Any, Any]:
    """Return `fields` with its keys as symbols."""
    return {symbol(key): value for key, value in fields.items()}
