"""Options that choose the peer, in every command that has them."""

import json
from typing import Any

import pytest

from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, PlaceConfig, RedirectConfig
from tests.support.processes.router_thread import Command, Serve, Served


@pytest.mark.parametrize(
    ("options", "hostname"), [([], "127.0.0.1"), (["--hostname", "vhost:shop"], "vhost:shop")], ids=["url's", "named"]
)
def test_the_peer_is_told_which_host_is_wanted(
    served: Served, command: Command, options: list[str], hostname: str
) -> None:
    told = json.loads(command("status", "--json", *options).out)
    assert [each["hostname"] for each in told["connections"]] == [hostname]

    seen: set[str | None] = set()

    def look(delivery: Delivery) -> None:
        senders = [each for each in served.router.statistics().connections if "send" in each.container_id]
        seen.update(each.hostname for each in senders)
        delivery.accept()

    served.receive("q", look)
    assert command("send", "q", "--body", "hi", *options).status == 0
    assert seen == {hostname}


def test_a_hostname_that_no_frame_holds_ends_with_2(served: Served, command: Command) -> None:
    said = command("send", "q", "--body", "hi", "--hostname", "x" * 100_000)
    assert (said.status, said.out) == (2, "")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("what", ["the connection", "the link"])
def test_a_peer_may_send_us_elsewhere_where_that_is_allowed(what: str, serve: Serve, command: Command) -> None:
    there = serve(id="B")
    came = there.receive("q")
    place: dict[str, Any] = {"hostname": "b.example", "network_host": "127.0.0.1"}
    place["port"] = int(there.url.rpartition(":")[2])
    if what == "the connection":
        here = serve(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", redirect=PlaceConfig(**place))])
    else:
        here = serve(addresses=[AddressConfig(pattern="q", redirect=RedirectConfig(**place))])
    send = ("send", "q", "--url", here.url, "--body", "hi")
    refused = command(*send)
    assert refused.status == Exit.UNREACHABLE
    assert refused.err.rstrip().endswith("; allow it with --redirect")
    assert "the host 'b.example' is not allowed" in refused.err
    assert command(*send, "--redirect", "*.example").status == Exit.DONE
    assert [each.body for each in came] == ["hi"]


def test_a_host_to_be_sent_to_is_a_host(command: Command) -> None:
    said = command("send", "q", "--redirect", "amqp://b.example")
    assert said.status == Exit.USAGE
    assert "argument --redirect: 'amqp://b.example' is no host" in said.err
