"""A broker of another make, private to the test run: a process in a temporary folder, on loopback only.

RabbitMQ 3.x, as Debian packages it, with its AMQP 1.0 plugin (version 4 has other addresses and other faults). One node
serves the whole run; a test that kills it starts it again, on the same ports and with the same data.

What this broker does that others do not, as seen with proton 0.40 and with our client:

- Addresses: `/queue/NAME` and `NAME` declare a queue, which ends with the broker unless the terminus is `durable`;
  `/amq/queue/NAME` wants one that is there - but a sender to one that is not is attached, and its messages are
  *accepted and dropped*. `/exchange/NAME/KEY`, `/topic/KEY`: an exchange that is not there ends the session.
- A receiver is refused where there is no queue. When its queue is deleted, its session falls silent at once, and the
  connection is aborted after three seconds; a sender alone hears nothing, and its messages are accepted and dropped.
- A receiver that was given no credit is not answered when it detaches, unless with the session. It may be the single
  active consumer of a queue, and nobody else has messages then.
- What it does not like ends the session, not the link: a node that is not there (not-found), dynamic nodes, the
  anonymous terminus, `rcv-settle-mode` second (not-implemented), a `user-id` that is not the connection's user
  (precondition-failed). All links of that session go with it.
- A refused password is answered after three seconds.
- A drain on a classic queue ends the session with internal-error. On a quorum queue the `flow` that says "drained"
  comes *before* the deliveries that were on their way: only the delivery-count tells when all have come.
  A second drain on a link it answers without counting what was given back; after a `flow` with the same credit twice
  it sends twice as many, and some more than it may whenever a `flow` crosses deliveries that are on their way.
- Its sources do not have the outcome `modified`, as their attach says; it ends the session (invalid-field). `rejected`
  drops the message, or dead-letters it; `released` puts it back. No delivery-count is kept: what comes again shows in
  `first-acquirer` alone.
- It does not know aborted transfers: one ends the session (internal-error).
- Sections are kept, body types too; a message without a body comes back with an empty data section, header and
  properties are always there. Some values make the connection fall silent, without a close: an amqp-value that is a
  list of two elements or more, arrays of binary, uuid, or integers in their short encodings. So does a queue that
  refuses for its length.
- Its channels have the numbers of ours, and the `begin` of a session may come before the `end` of the one before it.
- What was acknowledged within the last moment before it is killed comes again from a classic queue.
- Its `flow` for a new link has no delivery-count. Of its own idle-time-out it waits six times as long before it closes;
  for a client's below a second it sends no heartbeats at all.
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
#: Seconds until it is up, on two cores that do other things, too: five to ten were seen.
STARTING = 60.0

USER, PASSWORD = "alice", "correct horse"
#: Who comes without a name.
NOBODY = "nobody"

#: What the router's links to the broker drain, and feed.
_LINKED: dict[str, dict[str, str]] = {"drained": {}, "drained-quorum": {"x-queue-type": "quorum"}, "fed": {}}
#: What breaks in a test: each has queues like those to itself, as what comes again is to be nobody else's.
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
    """A node of RabbitMQ: no Erlang distribution, so neither epmd nor a port of its own for it; no other plugin."""

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
        (self._folder / "rabbitmq-env.conf").touch()  # in the place of the system's
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
        """Start it, and return when it takes connections."""
        # Without distribution nobody can reach the node but over AMQP. It insists on a port of an epmd all the same; as
        # it starts programs to have one, what keeps epmd from being started is in the environment, not in arguments.
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
        """End it without a word to its clients. What it wrote to disk stays."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._log.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def rabbitmq(required_in_ci, credentials, tmp_path_factory) -> Iterator[RabbitMQ]:
    """The broker: `url` takes anybody, and `USER` with `PASSWORD`; `tls_url` is the same under TLS."""
    servers = sorted(INSTALLED.glob("rabbitmq_server-3.*"))
    if not servers:
        required_in_ci("rabbitmq-server 3 (Debian's package)")
    broker = RabbitMQ(servers[-1], tmp_path_factory.mktemp("rabbitmq"), credentials)
    yield broker
    broker.kill()


@pytest.fixture
def queue(request) -> str:
    """The name of a queue that no other test has."""
    return str(request.node.name)
