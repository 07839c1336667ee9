"""Common parts of the clients on Azure's pure-Python AMQP stack (that of azure-eventhub, without its service)."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from azure.eventhub._pyamqp import client
from azure.eventhub._pyamqp.authentication import AccessToken, JWTTokenAuth, SASLPlainAuth, SASTokenAuth
from azure.eventhub._pyamqp.constants import TransportType
from azure.eventhub._pyamqp.sasl import SASLAnonymousCredential

# The stack has no type hints.
SendClient: Any = client.SendClient
ReceiveClient: Any = client.ReceiveClient


def say(event: str, **fields: Any) -> None:
    """Print one line of JSON, for the tests to read."""
    print(json.dumps({"event": event, **fields}), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all Azure clients."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True, help="amqp://, amqps://, ws:// or wss://host:port")
    parser.add_argument("--address", required=True)
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds until the client gives up")
    parser.add_argument("--user")
    parser.add_argument("--password")
    parser.add_argument("--token", type=Path, help="file with a token, which is put by claims-based security")
    parser.add_argument("--key", help="NAME=SECRET: sign tokens for --audience, and put them")
    parser.add_argument("--audience", default="amqps://mesh.example/")
    parser.add_argument("--trust", help="PEM file of the authority")
    return parser


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of SendClient and ReceiveClient, `hostname` among them."""
    # Some calls of the stack block without a time-out: the whole process gets one.
    faulthandler.dump_traceback_later(options.timeout, exit=True, file=sys.stderr)
    url = urlsplit(options.url)
    auth: Any
    if options.token:
        token = AccessToken(options.token.read_text(), int(time.time()) + 3600)
        auth = JWTTokenAuth(options.audience, options.audience, lambda: token)
    elif options.key:
        name, _, secret = options.key.partition("=")
        auth = SASTokenAuth(options.audience, options.audience, name, secret)
    elif options.user:
        auth = SASLPlainAuth(options.user, options.password)
    else:
        # The stack has a class for this only for its own service.
        auth = SimpleNamespace(sasl=SASLAnonymousCredential(), auth_type="AUTH_SASL_ANONYMOUS")
    common: dict[str, Any] = {"hostname": url.netloc, "auth": auth, "socket_timeout": 0.05}
    if url.scheme in ("ws", "wss"):
        return common | {
            "hostname": url.hostname,
            "custom_endpoint_address": f"sb://{url.netloc}/$servicebus/websocket",
            "transport_type": TransportType.AmqpOverWebsocket,
            "use_tls": url.scheme == "wss",
            "connection_verify": options.trust,
        }
    if url.scheme == "amqps":
        return common | {
            "hostname": url.hostname,
            "custom_endpoint_address": f"sb://{url.netloc}",
            "connection_verify": options.trust,
        }
    return common | {"use_tls": False}
