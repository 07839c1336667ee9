"""A broker of another make for this test run only: a process in a temporary folder, on loopback.

It is RabbitMQ 3.x, as Debian packages it, with its AMQP 1.0 plugin (version 4 has other addresses and other faults).
One node serves the whole run. A test that kills it starts it again, on the same ports and with the same data.

This broker differs from others in the following ways, as seen with proton 0.40 and with our client:

- Addresses: `/queue/NAME` and `NAME` declare a queue, which ends with the broker unless the terminus is `durable`.
  `/amq/queue/NAME` needs an existing queue. But a sender to a missing queue is attached, and its messages are *accepted
  and dropped*. `/exchange/NAME/KEY`, `/topic/KEY`: a missing exchange ends the session.
- A receiver is refused if there is no queue. When its queue is deleted, its session falls silent at once, and the
  connection is aborted after three seconds. A sender alone is told nothing, and its messages are accepted and dropped.
- If a receiver never got credit, its `detach` is not answered before the session ends. It may be the single active
  consumer of a queue; then no other receiver gets messages.
- A refusal ends the session with all its links, not only the link: a missing node (not-found), dynamic nodes, the
  anonymous terminus, `rcv-settle-mode` second (not-implemented), a `user-id` that is not the connection's user
  (precondition-failed).
- A wrong password is refused after three seconds.
- A drain on a classic queue ends the session with internal-error. On a quorum queue the `flow` that answers a drain
  comes *before* the deliveries that were on their way: only the delivery-count tells when all have arrived. It answers
  a second drain on a link without counting returned deliveries. After two `flow` frames with the same credit it sends
  twice as many deliveries. It sends more than its credit whenever a `flow` crosses deliveries.
- Its sources lack the outcome `modified`, as their attach says; it ends the session (invalid-field). `rejected` drops
  the message, or dead-letters it; `released` puts it back. It keeps no delivery-count: a redelivery shows only in
  `first-acquirer`.
- It does not support aborted transfers: one ends the session (internal-error).
- It keeps sections and body types. A message without a body comes back with an empty data section, and always with
  header and properties. Some values make the connection fall silent, without a close: an amqp-value that is a list of
  two elements or more, and arrays of binary, uuid, or integers in their short encodings. So does a queue that refuses
  messages because it is full.
- Its channels have the numbers of ours, and the `begin` of a session may come before the `end` of the one before it.
- After it is killed, messages that were acknowledged in the last moment come again from a classic queue.
- Its `flow` for a new link has no delivery-count. It closes an idle connection only after six times its own
  idle-time-out. For a client's idle-time-out below a second it sends no heartbeats at all.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import PATIENCE, Credentials, Lines

INSTALLED = Path("/usr/lib/rabbitmq/lib")
#: Seconds until it is up, on two busy cores: five to ten were measured.
STARTING = 120.0

USER, PASSWORD = "alice", "correct horse"
#: The user of connections without a login.
NOBODY = "nobody"

#: Queues that the router's links receive from, and send to.
_LINKED: dict[str, dict[str, str]] = {"drained": {}, "drained-quorum": {"x-queue-type": "quorum"}, "fed": {}}
#: Faults of tests: each has such queues of its own, since redelivered messages must not reach other tests.
BREAKING = ("connection", "broker")

QUEUES = {
    "quorum": {"x-queue-type": "quorum"},
    "dying": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "dead": {},
    "lasting": {},
    "asked-for": {},
    **_LINKED,
    **{f"{breaks}-{name}": arguments for breaks in BREAKING for name, arguments in _LINKED.items()},
}


class RabbitMQ:
    """A node of RabbitMQ without Erlang distribution, so without epmd and its port, and with one plugin only."""

    def __init__(self, server: Path, folder: Path, credentials: Credentials) -> None:
        self._script = server / "sbin" / "rabbitmq-server"
        self._folder = folder
        port, tls_port = _free_port(), _free_port()
        self.url = f"amqp://127.0.0.1:{port}"
        self.tls_url = f"amqps://localhost:{tls_port}"
        self._process: subprocess.Popen[str]
        self._log: Lines
        self._configure(port, tls_port, credentials)
        self.start()

    def _configure(self, port: int, tls_port: int, credentials: Credentials) -> None:
        users = (USER, NOBODY)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "vhosts": [{"name": "/"}],
            "users": [{"name": user, "password": PASSWORD, "tags": ""} for user in users],
            "permissions": [{"user": user, "vhost": "/", **everything} for user in users],
            "queues": [
                {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments}
                for name, arguments in QUEUES.items()
            ],
        }
        (self._folder / "definitions.json").write_text(json.dumps(definitions))
        (self._folder / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (self._folder / "rabbitmq-env.conf").touch()  # replaces the system's file
        (self._folder / "rabbitmq.conf").write_text(f"""
            listeners.tcp.1 = 127.0.0.1:{port}
            listeners.ssl.1 = 127.0.0.1:{tls_port}
            ssl_options.cacertfile = {credentials.trust}
            ssl_options.certfile = {credentials.certificate}
            ssl_options.keyfile = {credentials.key}
            load_definitions = {self._folder}/definitions.json
            amqp1_0.default_user = {NOBODY}
            heartbeat = 1
            log.console = true
            log.file = false
        """)

    def start(self) -> None:
        """Start it, and return when it accepts connections."""
        # Without distribution the node can be reached only over AMQP. It still wants the port of an epmd. It starts
        # programs to get one, so the setting that prevents epmd is in the environment, not in arguments.
        no_distribution = "-dist_listen false -start_epmd false -erl_epmd_port 1"
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self._folder),  # for the cookie
            "RABBITMQ_ALLOW_INPUT": "true",  # the script becomes the node, so that its id is the node's
            "RABBITMQ_NODENAME": "test@localhost",
            "RABBITMQ_BASE": str(self._folder),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-sname test@localhost",
            "ERL_FLAGS": no_distribution,
        }
        self._process = subprocess.Popen(
            [str(self._script), "-noinput"],
            env=environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self._process.stdout is not None
        self._log = Lines(self._process.stdout)
        deadline = time.monotonic() + STARTING
        while (line := self._log.next(deadline)) is not None:
            if "Server startup complete" in line:
                return
        raise AssertionError("RabbitMQ ended:\n" + "\n".join(self._log.seen))

    def kill(self) -> None:
        """Kill it. Its clients get no farewell, and its data on disk stays."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._log.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def rabbitmq(required_in_ci, credentials, tmp_path_factory) -> Iterator[RabbitMQ]:
    """Start the broker: `url` admits any user, and `USER` with `PASSWORD`; `tls_url` is the same under TLS."""
    servers = sorted(INSTALLED.glob("rabbitmq_server-3.*"))
    if not servers:
        required_in_ci("rabbitmq-server 3 (Debian's package)")
    broker = RabbitMQ(servers[-1], tmp_path_factory.mktemp("rabbitmq"), credentials)
    yield broker
    broker.kill()


@pytest.fixture
def queue(request) -> str:
    """Return the name of a queue that no other test has."""
    return str(request.node.name)
