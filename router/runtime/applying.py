"""Changes of the configuration of a running router: compared, then put in force as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.access.change import end_logins
from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.config.differences import Difference, differences, in_force, row_pairs
from amqpmesh.router.config.edits import EditError
from amqpmesh.router.config.users import Users
from amqpmesh.router.io.threads import aside
from amqpmesh.router.logs import event_log
from amqpmesh.router.management.changed_config import look_again, put_in_force, running_config
from amqpmesh.router.management.runtime_marks import Marks, marks_between
from amqpmesh.router.runtime.listeners import Listener, listening_at
from amqpmesh.router.runtime.noted_changes import note_change
from amqpmesh.router.runtime.reload import NewConfig, Reader, Reloaded, UserChange, configuration, user_changes

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from amqpmesh.router.config.edits import Edit
    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig, WorkerConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.edge import Edge
    from amqpmesh.router.runtime.membership import Membership
    from amqpmesh.router.runtime.observers import Observers
    from amqpmesh.router.runtime.on_demand_connectors import OnDemand
    from amqpmesh.router.runtime.policy_store import PolicyStore
    from amqpmesh.router.runtime.shared_config import SharedCost
    from amqpmesh.router.runtime.token_store import TokenStore

log = event_log.EventLog("amqpmesh.io")

LOGGED: Final = 100
"""Differences of one change that are logged; the number of the others is told."""

ENDS: Final = "the router has ended, or is about to"
"""The reason to change nothing any more."""

FROM_FILE: Final[Mapping[str, object]] = {"source": "file"}


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a change of the configuration, or of its trial."""

    differences: tuple[Difference, ...]
    """The keys that differ from what ran before, in the order of the file's tables."""
    users: tuple[UserChange, ...]
    """The changes in files of users."""

    @property
    def waiting(self) -> tuple[Difference, ...]:
        """The differences that wait for a restart; all others are in force."""
        return tuple(each for each in self.differences if each.needs_restart)


class ConfigChanges:
    """The changes of one running router; one at a time.

    A change goes in this order: files are read and checked; new listeners, whose ports may be in use, and another audit
    log are opened; then, without a pause, rights are taken away, everything else follows, and last what is removed.
    What may fail comes first: if it does, nothing has changed.
    """

    def __init__(
        self,
        core: Core,
        driver: Driver,
        edge: Edge,
        *,
        on_demand: OnDemand,
        policies: PolicyStore,
        observers: Observers,
        membership: Membership | None,
        tokens: TokenStore,
        changed: Callable[[RouterConfig], None],
    ) -> None:
        """Args: changed: called with each configuration that is put in force."""
        self._core = core
        self._driver = driver
        self._edge = edge
        self._on_demand = on_demand
        self._policies = policies
        self._observers = observers
        self._membership = membership
        self._tokens = tokens
        self._changed = changed
        self._lock = trio.Lock()
        observers.decide_anew = self._decide_anew
        #: The configuration that the router was given last: at its start, or by `apply`.
        self._given = core.context.config
        self.marks = Marks()
        #: The text of a configuration that was asked for, by the configuration and its marks.
        self.text: tuple[tuple[RouterConfig, Marks], str] | None = None
        #: The numbers of applied files, and of changes of users, that this worker has followed.
        self.followed = 0
        self.followed_users = 0
        #: The costs that the workers of this router share, as this one has them.
        self._costs: Mapping[str, SharedCost] = {}

    @property
    def config(self) -> RouterConfig:
        """The configuration in force, without costs that were changed while the router runs."""
        return self._core.context.config

    @property
    def running(self) -> RouterConfig:
        """The configuration in force."""
        return running_config(self._core)

    @property
    def worker(self) -> WorkerConfig:
        """The worker that this router is."""
        found = self.config.worker
        assert found is not None, "the caller has asked"
        return found

    def start_from(self, given: RouterConfig) -> None:
        """Note the configuration that the router was given, if it has started with changes of management."""
        self._given, self.marks = given, marks_between(given, self.config)

    def reload(self, config: NewConfig = None) -> list[str]:
        """Read the files of the running configuration again. Args, Returns, Raises: as `Router.reload`."""
        running, reader = self._begin()
        new = configuration(config)
        return self._finish_reload(running, new, reader.read(running))

    async def reload_aside(self, config: NewConfig = None) -> list[str]:
        """Do the same, and read the files in a thread."""
        async with self._lock, self._policies.changing:
            running, reader = self._begin()
            new = await aside(configuration, config)
            return self._finish_reload(running, new, await aside(reader.read, running))

    async def apply(
        self,
        config: NewConfig,
        *,
        dry_run: bool = False,
        by: Mapping[str, object] = FROM_FILE,
        follows: bool = False,
    ) -> Applied:
        """Put a configuration in force.

        Args, Returns, Raises: as `Router.apply`. by: for the audit log. follows: another worker of this router has it
            in force already: who has lost rights there has lost them here, too, even if the audit log cannot be opened.
        """
        async with self._lock, self._policies.changing:
            running, reader = self._begin()

            def prepare(new: NewConfig) -> tuple[RouterConfig, tuple[Difference, ...], Reloaded]:
                wanted = configuration(new) or running
                wanted = replace(wanted, worker=running.worker)
                target = in_force(running, wanted)
                return target, differences(running_config(self._core), wanted), reader.read(target)

            target, found, read = await aside(prepare, config)
            result = Applied(found, read.users)
            if dry_run:
                return result
            self._demand_running()
            with trio.CancelScope(shield=True):  # from here on it is whole
                try:
                    sockets = await self._listen(running, target)
                except (OSError, ConfigError):
                    if follows:
                        self._take_away(running, target, read)
                    raise
                running = self._begin_with(sockets, running, target, read)
                self._commit(running, target, read, sockets)
                if config is not None:
                    self._given, self.marks = target, Marks()
                self._tell(result, by)
                if self._observers.change_audit(target):
                    self._tell_audit(result, by)
                await self._edge.http.settled()  # last: the router may end meanwhile
            return result

    async def edit(self, edit: Edit, *, by: Mapping[str, object]) -> Applied:
        """Change tables of the configuration in force, as a whole or not at all; files are read again only for the
        listeners and connectors that change.

        Args: edit: the change. by: for the audit log.
        Raises: EditError: it cannot be made, or waits for a restart. ConfigError; OSError: as `apply`.
        """
        async with self._lock, self._policies.changing:
            running, reader = self._begin()
            connecting = {each.config: each.credentials for each in self._edge.connectors}

            def prepare(edit: Edit) -> tuple[RouterConfig, tuple[Difference, ...], Reloaded, Marks]:
                target = edit(running)
                found = differences(running, target)
                marks = marks_between(self._given, target)
                check_in_force(found)
                check_count(marks, self.marks, target)
                return target, found, reader.read_changed(target, connecting), marks

            target, found, read, marks = await aside(prepare, edit)
            result = Applied(found, ())
            if not found:
                return result
            self._demand_running()
            with trio.CancelScope(shield=True):  # from here on it is whole
                sockets = await self._listen(running, target)
                running = self._begin_with(sockets, running, target, read)
                self._commit(running, target, read, sockets, keep_costs=True)
                self.marks = marks
                self._tell(result, by)
                await self._edge.http.settled()
            return result

    def follow_costs(self, costs: Mapping[str, SharedCost], *, by: Mapping[str, object] | None = None) -> None:
        """Have the costs that the workers of this router share: those that it does not have yet.

        Args: costs: by the identity of a listener or connector. by: for the audit log; None: another worker has it.
        """
        mesh, config, audit = self._core.mesh, self.config, self._core.context.audit
        assert mesh is not None, "workers are a mesh"
        rows: dict[str, ListenerConfig | ConnectorConfig] = {
            **{f"listener/{each.name}": each for each in config.listeners},
            **{f"connector/{each.name}": each for each in config.connectors},
        }
        for identity, told in costs.items():
            if self._costs.get(identity) == told:
                continue
            log.info("cost changed", of=identity, cost=told.cost)
            if identity in rows:  # each connector belongs to one worker
                self._core.change(partial(mesh.set_cost_of, rows[identity], told.cost), trio.current_time())
            if audit is not None and by is not None:
                audit.change("cost changed", of=identity, to=told.cost, **by)
        self._costs = dict(costs)
        self._driver.settle()

    def users_of(self, listener: ListenerConfig) -> Users | None:
        """Return the users of a listener of the configuration in force."""
        return self._edge.users_of(listener)

    async def change_users(
        self, files: Sequence[Path], change: Callable[[], Users | None], *, by: Mapping[str, object]
    ) -> None:
        """Change a file of users, and put the users of its listeners in force; other files are not read again.

        Args: files: the one that `change` writes is one of them. change: runs in a thread; returns the users of the
            files, unless they are to be read. by: for the audit log.
        Raises: what `change` raises; ConfigError: a file is not valid. CommandError: the router is about to end.
        """
        among = frozenset(files)

        def work(
            before: Mapping[ListenerConfig, Credentials],
        ) -> tuple[dict[ListenerConfig, Credentials], list[UserChange]]:
            changed = change()
            # A file of 100,000 users takes seconds to read: it is read once, for all of its listeners.
            users = {} if changed is None else {tuple(files): changed}
            read = {}
            for each, held in before.items():
                if each.users_files not in users:
                    users[each.users_files] = Users.load(*each.users_files, before=held.users)
                read[each] = replace(held, users=users[each.users_files])
            return read, [told for each in before for told in user_changes(each.name, before[each], read[each])]

        async with self._lock:
            self._demand_running()
            held = self._edge.credentials
            before = {each: held[each] for each in held if among.intersection(each.users_files)}
            with trio.CancelScope(shield=True):  # the file and what is in force are to agree
                read, found = await aside(work, before)
            held.update(read)
            for each in found:
                log.info(each.event, user=each.user, count=each.others, listener=each.listener)
            self._observers.users_changed(found, by)
            end_logins(self._core.context)
            self._driver.settle()

    def _demand_running(self) -> None:
        """Check that the router has not begun to end meanwhile. Raises: CommandError."""
        if self._edge.is_stopped:
            raise CommandError(ENDS)

    def _begin(self) -> tuple[RouterConfig, Reader]:
        self._observers.reopen()
        running = self._core.context.config
        return running, Reader(running, dict(self._edge.credentials), tuple(self._on_demand))

    def _finish_reload(self, running: RouterConfig, new: RouterConfig | None, read: Reloaded) -> list[str]:
        self._take_away(running, running, read)
        self._tokens.put_in_force(running, read.tokens)
        self._put_credentials(read)
        self._driver.settle()
        return [] if new is None else [each.key for each in differences(running, new)]

    # ------------------------------------------------------------------------------------------------ what may fail

    async def _listen(self, running: RouterConfig, target: RouterConfig) -> dict[ListenerConfig, list[socket.socket]]:
        """Listen at all new places, and open another audit log. Raises: OSError: a port is in use; ConfigError: the
        audit log cannot be opened. Then none of them is.
        """
        shared = target.worker is not None
        leaving = [
            self._edge.listener_of(old)
            for old, new in row_pairs(running, target, "listeners")
            if old is not None and (new is None or _moves(old, new))
        ]
        found: dict[ListenerConfig, list[socket.socket]] = {}
        with ExitStack() as undoing:
            undoing.callback(self._observers.drop_opened)
            await self._observers.open_audit(target)
            for old, new in row_pairs(running, target, "listeners"):
                if new is not None and (old is None or _moves(old, new)):
                    found[new] = await listening_at(new.endpoint, shared=shared, beside=leaving)
                    for each in found[new]:
                        undoing.callback(each.close)
            undoing.pop_all()
        return found

    def _begin_with(
        self,
        sockets: Mapping[ListenerConfig, list[socket.socket]],
        running: RouterConfig,
        target: RouterConfig,
        read: Reloaded,
    ) -> RouterConfig:
        """Take rights away, once all that is new listens. Args, Returns: as of `_take_away`.

        Raises: ConfigError: the certificate is another router's, or what a mesh trusts is not valid; CommandError: the
            router has begun to end. Then nothing is open that was opened for the change.
        """
        try:
            self._demand_running()
            return self._take_away(running, target, read)
        except BaseException:
            for each in chain.from_iterable(sockets.values()):
                each.close()
            self._observers.drop_opened()
            raise

    # ------------------------------------------------------------------------------------------- what does not fail

    def _take_away(self, running: RouterConfig, target: RouterConfig, read: Reloaded) -> RouterConfig:
        """Put policies and secrets in force, and take away the rights that users and listeners lose.

        Returns: the configuration without these rights, which is in force.
        """
        core = self._core
        if self._membership is not None and core.mesh is not None and read.is_whole:
            self._membership.reload(core.mesh, trio.current_time())
        if read.policy is not None:
            assert running.policy is not None, "the first one waits for a restart"
            assert target.policy is not None, "it was read"
            policy = replace(running.policy, file=target.policy.file, signed=target.policy.signed)
            running = replace(running, policy=policy)
            self._policies.follow(running)
            self._policies.put_in_force(read.policy)
        if read.is_whole:
            self._tokens.narrow(target, read.tokens)
        self._observers.users_changed(read.users)
        narrowed = {
            old.name: self._narrow(old, new, read)
            for old, new in row_pairs(running, target, "listeners")
            if old is not None and new is not None
        }
        listeners = tuple(narrowed.get(each.name, each) for each in running.listeners)
        if listeners != running.listeners:
            running = replace(running, listeners=listeners)
        core.context.config = running
        self._changed(running)
        end_logins(core.context)
        self._driver.settle()
        return running

    def _narrow(self, old: ListenerConfig, new: ListenerConfig, read: Reloaded) -> ListenerConfig:
        credentials = read.accepting[new]
        narrow = old if new.manage or not old.manage else replace(old, manage=False)
        if old != new:
            before = self._edge.credentials_of(old)
            users = before.users
            if users is not None and credentials.users is not None:
                users = users.limited_to(credentials.users)
            credentials = replace(before, users=users)
        self._edge.change_listener(self._edge.listener_of(old), narrow, credentials, None)
        return narrow

    def _commit(
        self,
        running: RouterConfig,
        target: RouterConfig,
        read: Reloaded,
        sockets: dict[ListenerConfig, list[socket.socket]],
        *,
        keep_costs: bool = False,
    ) -> None:
        core, edge = self._core, self._edge
        gone = []
        for old, new in row_pairs(running, target, "listeners"):
            listener = None if old is None else edge.listener_of(old)
            if listener is not None and (new is None or old.role != new.role or (new.is_http and new in sockets)):
                gone.append(listener)
            elif listener is not None:
                edge.change_listener(listener, new, read.accepting[new], sockets.get(new))
            if new is not None and (listener is None or listener in gone):
                edge.add_listener(Listener(new, sockets[new]), read.accepting[new])
        for listener in gone:
            edge.remove_listener(listener)
        connectors = {each.config: each for each in edge.connectors}
        for old, new in row_pairs(running, target, "connectors"):
            if old is not None and new is None:
                edge.remove_connector(connectors[old])
            elif old is None:
                edge.connect(new, read.connecting[new])
            else:
                edge.change_connector(connectors[old], new, read.connecting[new])
        if read.is_whole:
            self._tokens.put_in_force(target, read.tokens)
        self._put_credentials(read)
        edge.sort(target)
        put_in_force(core, target, trio.current_time(), keep_costs=keep_costs)
        self._observers.change(running, target, read.sender)
        self._driver.passwords.renew(target)
        self._changed(target)
        end_logins(core.context)
        self._driver.settle()

    def _decide_anew(self) -> None:
        self._core.change(partial(look_again, self._core), trio.current_time())
        self._driver.settle()

    def _put_credentials(self, read: Reloaded) -> None:
        self._edge.credentials.update(read.accepting)
        for connector in self._edge.connectors:
            connector.credentials = read.connecting[connector.config]
        for connector, credentials in read.on_demand.items():
            connector.credentials = credentials

    def _tell(self, result: Applied, by: Mapping[str, object]) -> None:
        """Log the differences, and note them in the audit log."""
        context = self._core.context
        for each in result.differences[:LOGGED]:
            fields: dict[str, object] = {"key": each.key, "from": each.before, "to": each.after}
            if each.needs_restart:
                log.warning("restart required", **fields, reason=each.reason or None)
            else:
                log.info("configuration changed", **fields, effect=str(each.effect))
            note_change(context, "configuration changed", **fields, effect=str(each.effect), **by)
        if len(result.differences) > LOGGED:
            log.info("configuration changed", others=len(result.differences) - LOGGED)
            note_change(context, "configuration changed", count=len(result.differences) - LOGGED, **by)

    def _tell_audit(self, result: Applied, by: Mapping[str, object]) -> None:
        """Begin an audit log with the change that it comes from: the one before ends with it."""
        for each in result.differences:
            if each.key.partition(".")[0] == "audit":
                fields: dict[str, object] = {"key": each.key, "from": each.before, "to": each.after}
                note_change(self._core.context, "configuration changed", **fields, effect=str(each.effect), **by)


def check_count(marks: Marks, before: Marks, config: RouterConfig) -> None:
    """Refuse more changes than management may make. Raises: EditError."""
    if marks.total > max(config.runtime_tables, before.total):
        raise EditError(f"{config.runtime_tables} tables differ from the file already: see runtime_tables")


def check_in_force(found: Sequence[Difference]) -> None:
    """Refuse what waits for a restart: after it, nothing would be left of the change. Raises: EditError."""
    for each in found:
        if each.needs_restart:
            reason = f": {each.reason}" if each.reason else ""
            raise EditError(
                f"{each.key} needs a restart{reason}; change the configuration file, and restart the router"
            )


def _moves(old: ListenerConfig, new: ListenerConfig) -> bool:
    """Tell whether a listener has to be bound anew."""
    return old.url != new.url or old.role != new.role
