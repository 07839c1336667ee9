"""Names and keys of `$management` entities."""

from dataclasses import replace

from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.statistics.router_statistics import NodeStatistics


def test_dynamic_nodes_of_one_name_are_told_apart() -> None:
    assert without_secret("$dynamic/c/l/00") != without_secret("$dynamic/c/l/01")
    assert without_secret("$management") == "$management"


def test_what_differs_by_tenant_alone_has_its_own_identity() -> None:
    node = NodeStatistics(name="$n", tenant="", dynamic=False, maker=None, lifetime=None)
    nodes = (node, replace(node, tenant="a/b"), replace(node, tenant="a", name="b/$n"))
    identities = [TYPES["org.amqpmesh.node"].identity(each) for each in nodes]
    assert len(set(identities)) == 3
    assert identities[0] == "node/$n"


def test_an_attribute_that_an_entity_has_not_is_null() -> None:
    node = NodeStatistics(name="$n", tenant="", dynamic=False, maker=None, lifetime=None)
    read = TYPES["org.amqpmesh.node"].reader(["identity", "type", "maker", "colour", "dynamic"])
    assert read(node) == ["node/$n", "org.amqpmesh.node", None, None, False]
