"""The observers of a running router: the writers of its telemetry and its audit log, and the exporter of its spans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.io.threads import aside
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.noted_changes import note_change
from amqpmesh.router.runtime.telemetry_publisher import TelemetryPublisher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from amqpmesh.router.config.file import ListenerConfig, RouterConfig
    from amqpmesh.router.config.observability import TelemetryConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.audit_writer import AuditWriter
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.reload import UserChange
    from amqpmesh.router.runtime.span_exporter import SpanExporter, SpanSender
    from amqpmesh.router.runtime.telemetry_writer import TelemetryWriter

log = event_log.EventLog("amqpmesh.telemetry")


class Observers:
    """The observers of one router. Each of them is None if the configuration does not ask for it."""

    def __init__(self, config: RouterConfig, listener: ListenerConfig) -> None:
        """Args: listener: the limits of connections within the process."""
        self._config = config
        self._publisher = TelemetryPublisher(listener, config.id)
        self.telemetry: TelemetryWriter | None = None
        self.audit: AuditWriter | None = None
        self.spans: SpanExporter | None = None
        self._core: Core | None = None
        #: Has the core decide again how messages pass, after spans or a recording have come or gone.
        self.decide_anew: Callable[[], object] = lambda: None
        #: The recording that the configuration asks for; `_following`: until there is no other one.
        self._recorded = config.telemetry
        #: The audit log that is to come, whose file is open; those that have gone, and may still write.
        self._opened: AuditWriter | None = None
        self._left: list[AuditWriter] = []
        self._following = trio.Lock()
        self._is_over = False

    def begin(self, core: Core, wall_clock: Callable[[], float]) -> None:
        """Write from now on. Args: wall_clock: seconds since 1970. Raises: ConfigError: the audit log cannot be
        written, or OpenTelemetry is missing.
        """
        self._core = core
        self._wall_clock = wall_clock
        tracing = self._config.tracing
        if tracing.endpoint is not None:
            from amqpmesh.router.runtime.span_exporter import (  # here: OpenTelemetry is an extra
                SpanExporter,
                new_sender,
            )

            sender = new_sender(None, tracing)
            assert sender is not None, "there is an endpoint"
            self.spans = SpanExporter(core, tracing, sender)
        if self._config.audit is not None:
            from amqpmesh.router.runtime.audit_writer import AuditWriter  # here: most routers have none

            audit = AuditWriter(self._config)
            audit.open()
            audit.begin(core, wall_clock)
            self.audit = audit
        if self._config.telemetry is not None:
            from amqpmesh.router.runtime.telemetry_writer import TelemetryWriter  # here: most routers record nothing

            telemetry = TelemetryWriter(self._config.telemetry, core.context.id, wall_clock, self._publisher)
            telemetry.begin(core)
            self.telemetry = telemetry
        if self.spans is not None:
            self.spans.begin()

    def start(
        self,
        start: Callable[[Callable[[], Awaitable[None]]], object],
        driver: Driver,
        start_inside: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        """Start the tasks of the observers.

        Args: start: starts one. driver: of the router. start_inside: starts a task that serves links in the process.
        """
        self._start = start
        self._publisher.begin(driver, start_inside)
        if self.telemetry is not None:
            start(self.telemetry.run)
        if self.audit is not None:
            start(self.audit.run)
        if self.spans is not None:
            start(self.spans.run)

    def change(self, before: RouterConfig, after: RouterConfig, sender: SpanSender | None) -> None:
        """Follow a changed configuration. Args: sender: of spans, to a collector that is new."""
        if before.tracing != after.tracing:
            self._change_tracing(after, sender)
        if before.telemetry != after.telemetry:
            self._recorded = wanted = after.telemetry
            writer = None if self._following.locked() else self.telemetry
            if writer is not None and wanted is not None and writer.can_become(wanted):
                writer.change(wanted)
            else:
                self._start(self._follow)

    async def open_audit(self, wanted: RouterConfig) -> None:
        """Open the audit log of another configuration, if it is another file. Raises: ConfigError: it cannot be."""
        if wanted.audit is not None and (self.audit is None or not self.audit.writes(wanted)):
            from amqpmesh.router.runtime.audit_writer import AuditWriter  # here: most routers have none

            for each in tuple(self._left):  # it may be the same file
                await each.end()
            opened = AuditWriter(wanted)
            await aside(AuditWriter.open, opened)
            self._opened = opened

    def drop_opened(self) -> None:
        """Close what `open_audit` has opened: the configuration is not put in force."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def change_audit(self, after: RouterConfig) -> bool:
        """Follow a changed configuration. Returns: whether lines go to another file from now on."""
        assert self._core is not None, "the router runs"
        opened, self._opened = self._opened, None
        before = self.audit
        if opened is None and after.audit is not None:
            assert before is not None, "its file is the same"
            before.change(after.audit)
            return False
        if opened is not None:
            opened.begin(self._core, self._wall_clock)
            self._start(opened.run)
        else:
            self._core.context.audit = None
        self.audit = opened
        if before is not None:
            self._left.append(before)
            self._start(partial(self._end_left, before))
        return opened is not None

    async def _end_left(self, writer: AuditWriter) -> None:
        """Write the rest of an audit log that has gone."""
        await writer.end()
        self._left.remove(writer)

    def _change_tracing(self, after: RouterConfig, sender: SpanSender | None) -> None:
        assert self._core is not None, "the router runs"
        self._core.context.traces.change(after.tracing)
        if self.spans is not None:
            self.spans.change(after.tracing, sender)
        elif sender is not None:
            from amqpmesh.router.runtime.span_exporter import SpanExporter  # here: OpenTelemetry is an extra

            self.spans = SpanExporter(self._core, after.tracing, sender)
            self.spans.begin()
            self._start(self.spans.run)
        else:
            return
        self.decide_anew()

    async def _follow(self) -> None:
        """Have the recording that the configuration asks for. It may change again meanwhile."""
        assert self._core is not None, "the router runs"
        async with self._following:
            try:
                while not self._is_over:
                    writer, wanted = self.telemetry, self._recorded
                    if (None if writer is None else writer.config) == wanted:
                        return
                    if writer is not None and wanted is not None and writer.can_become(wanted):
                        writer.change(wanted)
                    elif writer is not None:
                        await writer.leave()
                        self.telemetry = None
                        self.decide_anew()
                    else:
                        assert wanted is not None, "there is a difference"
                        await self._record(self._core, wanted)
            except Exception as error:  # the router relays on without a recording
                log.error("internal error", exception=error)

    async def _record(self, core: Core, wanted: TelemetryConfig) -> None:
        from amqpmesh.router.runtime.telemetry_writer import TelemetryWriter  # here: most routers record nothing

        def made(config: TelemetryConfig) -> TelemetryWriter:
            return TelemetryWriter(config, core.context.id, self._wall_clock, self._publisher)

        writer = await aside(made, wanted)  # it may have gigabytes
        if self._is_over:
            return
        self.telemetry = writer
        await writer.join(core)
        self.decide_anew()
        self._start(writer.run)

    def stop(self) -> None:
        """Publish no more: the router stops."""
        self._publisher.end()

    def reopen(self) -> None:
        """Open files again that other programs may have renamed."""
        if self.audit is not None:
            self.audit.reopen()

    async def end(self) -> None:
        """Write and export the rest."""
        self._is_over = True
        if self.telemetry is not None:
            self.telemetry.stop()
        async with self._following:
            if self.telemetry is not None:
                await self.telemetry.end()
        for each in (*self._left, *filter(None, [self.audit])):
            await each.end()
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
