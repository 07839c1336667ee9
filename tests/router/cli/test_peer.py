"""The options that say which peer, as far as any command shows them."""

import json

import pytest

from amqpmesh.router.io.client.delivery import Delivery
from tests.support.served import Command, Served


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
