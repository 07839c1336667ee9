"""`$management`, queried by a client that knows only AMQP Management, and nothing of this router."""

from __future__ import annotations

import pytest

from tests.interop.conftest import PATIENCE

pytestmark = pytest.mark.interop

COUNT = 300

NODE = {"name": "self", "type": "org.amqp.management"}


def query(entity_type, names=(), **properties):
    return {
        "properties": {**NODE, "operation": "QUERY", "entityType": entity_type, **properties},
        "body": {"attributeNames": list(names)},
    }


def test_proton_queries_and_reads(router, client):
    receiver = client("proton_receive", router.url, "--address", "orders", "--count", "0")
    receiver.expect("attached")
    manager = client(
        "proton_manage",
        router.url,
        "--address",
        "$management",
        messages=[
            query("org.amqpmesh.address", ["name", "consumers"]),
            query("org.amqpmesh.connection", offset=1, count=1),
            {"properties": {"operation": "READ", "type": "org.amqpmesh.router", "identity": "router/A"}},
            {"properties": {"operation": "READ", "identity": "link/no"}},
            {"properties": {**NODE, "operation": "GET-TYPES"}},
        ],
    )
    manager.finish()
    receiver.stop()
    addresses, connections, whole, nothing, types = manager.of("answer")
    assert addresses["properties"] == {"statusCode": 200, "statusDescription": "OK"}
    assert addresses["body"]["attributeNames"] == ["name", "consumers"]
    assert ["orders", 1] in addresses["body"]["results"]
    assert len(connections["body"]["results"]) == 1
    assert (whole["body"]["id"], whole["body"]["connections"]) == ("A", 2)
    assert nothing["properties"]["statusCode"] == 404
    assert "org.amqpmesh.link" in types["body"]


def test_a_client_is_told_that_its_link_or_connection_was_removed(start_router, client):
    router = start_router('[router]\nid = "A"\n[[listener]]\nurl = "amqp://127.0.0.1:0"\nmanage = true\n')

    def manage(*messages):
        manager = client("proton_manage", router.url, "--address", "$management", messages=messages)
        manager.finish()
        return manager.of("answer")

    for name in ("proton_receive", "rhea_receive"):
        for kind, condition in (("link", "amqp:link:detach-forced"), ("connection", "amqp:connection:forced")):
            receiver = client(name, router.url, "--address", f"{name}/{kind}", "--count", "1")
            receiver.expect("attached")
            names = ["address", "identity"] if kind == "link" else ["container_id", "identity", "links"]
            (found,) = manage(query(f"org.amqpmesh.{kind}", names))
            rows = [row for row in found["body"]["results"] if kind == "connection" or row[0] == f"{name}/{kind}"]
            (answer,) = manage({"properties": {"operation": "DELETE", "identity": rows[0][1]}})
            assert answer["properties"]["statusCode"] == 204
            receiver.process.wait(PATIENCE)
            assert condition in str(receiver.stop())


@pytest.mark.parametrize(("sending", "receiving"), [("proton", "rhea"), ("rhea", "proton")])
def test_changes_of_the_configuration_disturb_no_message_of_others(sending, receiving, start_router, client):
    router = start_router('[router]\nid = "A"\n[[listener]]\nurl = "amqp://127.0.0.1:0"\nname = "l"\nmanage = true\n')
    receiver = client(f"{receiving}_receive", router.url, "--address", "orders", "--count", str(COUNT))
    receiver.expect("attached")
    messages = [{"sections": [[0x77, ["string", str(number)]]]} for number in range(COUNT)]
    sender = client(f"{sending}_send", router.url, "--address", "orders", "--pace", "0.01", messages=messages)
    sender.expect("sent")

    def change(operation, entity_type, name, body=None):
        properties = {"operation": operation, "type": entity_type, "name": name}
        return {"properties": properties, "body": {} if body is None else body}

    container = {"url": "amqp://127.0.0.1:9", "role": "container"}
    changes = [
        change("CREATE", "address-pattern", "orders", {"max_credit": 50}),
        change("CREATE", "listener", "more", {"url": "amqp://127.0.0.1:0"}),
        change("CREATE", "connector", "c", container),
        change("CREATE", "container-link", "k", {"connector": "c", "source": "s", "address": "t"}),
        change("UPDATE", "address-pattern", "orders", {"max_credit": 5, "attempts": 9}),
        change("UPDATE", "listener", "l", {"connections": 500}),
        change("UPDATE", "listener", "more", {"url": "amqp://localhost:0"}),
        change("UPDATE", "router", "A", {"memory": 2**24, "max_frame_size": 4096}),
        change("UPDATE", "log", "log", {"level": "warning"}),
        change("DELETE", "container-link", "k"),
        change("DELETE", "connector", "c"),
        change("DELETE", "listener", "more"),
        change("DELETE", "address-pattern", "orders"),
    ]
    manager = client("proton_manage", router.url, "--address", "$management", messages=changes)
    manager.finish()
    codes = [each["properties"]["statusCode"] for each in manager.of("answer")]
    assert codes == [201] * 4 + [200] * 5 + [204] * 4
    sender.finish()
    receiver.finish()
    assert [each["outcome"] for each in sender.of("outcome")] == ["accepted"] * COUNT
    assert len(receiver.of("message")) == COUNT
