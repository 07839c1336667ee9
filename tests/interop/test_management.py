"""`$management`, queried by a client that knows only AMQP Management, and nothing of this router."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.interop

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
