"""Notes of changes that operators make to a running router: in the audit log, and for the pages that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.telemetry.recent_changes import GraphWatch, RecentChanges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.core import Core

_OF_THE_CLIENT = frozenset({"source", "connection", "container", "listener", "mechanism", "certificate", "groups"})


def keep_changes(core: Core, listeners: Iterable[ListenerConfig]) -> None:
    """Keep the changes of a router from now on, or as many as the limits are now. Args: listeners: all for HTTP."""
    most = max(each.http_limits.changes for each in listeners)
    if core.context.recent is not None:
        core.context.recent.resize(most)
        return
    recent = core.context.recent = RecentChanges(most)
    mesh = core.mesh
    if mesh is None:
        return
    watch = GraphWatch(mesh.topology.graph)
    core.context.on_graph_change = lambda: watch.look(recent, core.context.wall_clock())
    core.context.on_graph_change()


def note_change(context: Context, event: str, **fields: object) -> None:
    """Note a change. Args: fields: what has changed, and who has changed it, as the audit log shows it."""
    if context.audit is not None:
        context.audit.change(event, **fields)
    note_recent(context, event, **fields)


def note_recent(context: Context, event: str, **fields: object) -> None:
    """Note what pages show, and the audit log has in another form or not at all."""
    if context.recent is not None:
        kept = {name: value for name, value in fields.items() if name not in _OF_THE_CLIENT}
        context.recent.note(context.wall_clock(), event, kept)
