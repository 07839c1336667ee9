"""Readings of a router by clients of a tenant: `$management` by the names of all types, metrics, HTTP, and `why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.codec.values import decode, encode
from amqpmesh.router.attach.explanation import explain
from amqpmesh.router.http.entities import listed
from amqpmesh.router.http.metrics import Metrics, Scope, Selection
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management import service
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.known_tools import requests
from amqpmesh.router.management.known_tools.tables import PREFIXES, TABLES
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import Numbers, TenantViews, of_tenant
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.core import Core
    from amqpmesh.router.management.views import View

OPERATIONS: Final = ("GET-LOG", "GET-MGMT-NODES", "GET-TYPES")
"""Operations without a type."""

SERIES: Final = 2000


class Readings:
    """The doors of one router for clients that read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._metrics = Metrics(core, list, lambda: SERIES)

    def renew(self) -> None:
        """Take a snapshot, and read the counts of metrics again."""
        self._views = TenantViews(snapshot(self._core), Numbers(bytes(16)))
        run_to_end(self._metrics.refresh())

    def view(self, tenant: str) -> View:
        """Return what a client of a tenant may see, who may read all types."""
        return of_tenant(run_to_end(self._views.of(tenant)))

    def tools(self, tenant: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of the types of known tools, with the names of the types."""
        view = self.view(tenant)
        for name in TABLES:
            query = {"operation": "QUERY", "entityType": PREFIXES[0] + name}
            request = Message({"attributeNames": []}, application_properties=query)
            body: Any = decode(encode(run_to_end(requests.respond(request, view)).body))[0]
            for row in body["results"]:
                yield name, dict(zip(body["attributeNames"], row, strict=True))

    def answers(self, tenant: str) -> Iterator[str]:
        """Yield what is said to requests by operation."""
        view = self.view(tenant)
        for operation in OPERATIONS:
            request = Message(None, application_properties={"operation": operation})
            respond = requests.respond if requests.asks(request) else service.respond
            yield _said(run_to_end(respond(request, view)))

    def asked(self, tenant: str, identities: Iterable[str]) -> Iterator[str]:
        """Yield what is said to requests to read and to change entities. Args: identities: such as others have."""
        view = self.view(tenant)
        for identity in identities:
            for operation in ("READ", "UPDATE", "DELETE"):
                request = Message({"cost": 2}, application_properties={"operation": operation, "identity": identity})
                yield _said(run_to_end(service.respond(request, view)))

    def pages(self, tenant: str) -> str:
        """Return all entities as HTTP tells them."""
        return b"".join(listed(list(TYPES.values()), self.view(tenant))).decode()

    def metrics(self, tenant: str, *tenants: str) -> list[str]:
        """Return the lines of metrics. Args: tenants: that it asks for by their names, beside those by default."""
        scope = Scope(tenant, frozenset(each.kind for each in TYPES.values()))
        found = run_to_end(self._metrics.document(scope, is_open=False)).decode()
        for each in tenants:
            found += run_to_end(self._metrics.selected(scope, Selection(each, "#"), is_open=False)).decode()
        return [line for line in found.splitlines() if not line.startswith("#")]

    def why(self, tenant: str, address: str) -> dict[str, Any]:
        """Return what is told of an address."""
        context, lookup = self._core.context, self._core.lookup
        return {
            use: explain(context, lookup, tenant, address, sends=use == "send", for_operator=False)
            for use in ("send", "receive")
        }


def _said(answer: Message) -> str:
    return f"{answer.application_properties} {decode(encode(answer.body))[0]}"
