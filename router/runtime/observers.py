"""The observers of a running router: the writers of its telemetry and its audit log, and the exporter of its spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.runtime.noted_changes import note_change

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.audit_writer import AuditWriter
    from amqpmesh.router.runtime.reload import UserChange
    from amqpmesh.router.runtime.span_exporter import SpanExporter
    from amqpmesh.router.runtime.telemetry_writer import TelemetryWriter


class Observers:
    """The observers of one router. Each of them is None if the configuration does not ask for it."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self.telemetry: TelemetryWriter | None = None
        self.audit: AuditWriter | None = None
        self.spans: SpanExporter | None = None
        self._core: Core | None = None

    def begin(self, core: Core, wall_clock: Callable[[], float]) -> None:
        """Write from now on. Args: wall_clock: seconds since 1970. Raises: ConfigError: the audit log cannot be
        written, or OpenTelemetry is missing.
        """
        self._core = core
        if self._config.tracing.endpoint is not None:
            from amqpmesh.router.runtime.span_exporter import SpanExporter  # here: OpenTelemetry is an extra

            self.spans = SpanExporter(core)
        if self._config.audit is not None:
            from amqpmesh.router.runtime.audit_writer import AuditWriter  # here: most routers have none

            audit = AuditWriter(self._config)
            audit.begin(core, wall_clock)
            self.audit = audit
        if self._config.telemetry is not None:
            from amqpmesh.router.runtime.telemetry_writer import TelemetryWriter  # here: most routers record nothing

            telemetry = TelemetryWriter(self._config.telemetry, core.context.id, wall_clock)
            telemetry.begin(core)
            self.telemetry = telemetry
        if self.spans is not None:
            self.spans.begin()

    def start(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Start the tasks of the observers. Args: start: starts one."""
        if self.telemetry is not None:
            start(self.telemetry.run)
        if self.audit is not None:
            start(self.audit.run)
        if self.spans is not None:
            start(self.spans.run)

    def change(self, before: RouterConfig, after: RouterConfig) -> None:
        """Follow a changed configuration, as far as it needs no restart."""
        if self.telemetry is not None and after.telemetry is not None and before.telemetry != after.telemetry:
            self.telemetry.change(after.telemetry)

    def reopen(self) -> None:
        """Open files again that other programs may have renamed."""
        if self.audit is not None:
            self.audit.reopen()

    async def end(self) -> None:
        """Write and export the rest."""
        if self.telemetry is not None:
            await self.telemetry.end()
        if self.audit is not None:
            await self.audit.end()
        if self.spans is not None:
            await self.spans.end()

    def users_changed(self, changes: Sequence[UserChange], by: Mapping[str, object] | None = None) -> None:
        """Note the changed users of listeners in the audit log.

        Args: by: the client that has changed them; None: their files were read again.
        """
        if self._core is None:
            return
        context = self._core.context
        if by is not None:  # listeners that share a file have the same changes
            for event, user in dict.fromkeys((each.event, each.user) for each in changes):
                note_change(context, event, of=f"user/{user}", **by)
            return
        for each in changes:
            fields = {"user": each.user, "count": each.others, "listener": each.listener}
            note_change(context, each.event, **fields, source="file")
