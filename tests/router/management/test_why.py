"""The question WHY at `$management`: how it is read."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh.router.management.service import BAD_REQUEST, RequestError
from amqpmesh.router.management.why import question_of, request
from amqpmesh.router.message.content import Message

ASKED = {"operation": "WHY", "type": "org.amqpmesh.address", "name": "a"}


def test_a_question_is_read_as_it_was_asked() -> None:
    asked = question_of(request("a", sends=False, tenant=None, peer={"user": "ann", "groups": ["g", "h"]}))
    assert (asked.address, asked.sends, asked.tenant) == ("a", False, None)
    assert asked.peer is not None
    assert (asked.peer.user, asked.peer.groups, asked.peer.hostname) == ("ann", ("g", "h"), None)


def test_without_a_peer_the_asking_client_is_meant() -> None:
    asked = question_of(Message(None, application_properties={**ASKED, "type": "address"}))
    assert (asked.sends, asked.tenant, asked.peer) == (True, None, None)
    assert question_of(request("a", sends=True, tenant="shop", peer={})).tenant == "shop"


@pytest.mark.parametrize(
    ("properties", "body"),
    [
        ({"type": "link"}, None),
        ({"name": 7}, None),
        ({"send": "yes"}, None),
        ({}, "ann"),
        ({}, {"user": 7}),
        ({}, {"groups": "g"}),
        ({}, {"groups": [7]}),
        ({}, {"tenant": b"shop"}),
        ({}, {"password": "x"}),
        ({}, {7: "x"}),
    ],
)
def test_a_malformed_question_is_a_bad_request(properties: dict[str, Any], body: Any) -> None:
    with pytest.raises(RequestError) as refused:
        question_of(Message(body, application_properties={**ASKED, **properties}))
    assert refused.value.status == BAD_REQUEST
