"""Changes of a router that the command line has started: by its file, and by management, in all of its workers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.differences import differences
from amqpmesh.router.config.file import lines
from amqpmesh.router.io.threads import aside
from amqpmesh.router.management.runtime_marks import Marks, marks_between
from amqpmesh.router.management.service import NOT_IMPLEMENTED, RequestError
from amqpmesh.router.runtime.applying import FROM_FILE, Applied, check_count, check_in_force
from amqpmesh.router.runtime.audit_file import demand_writable
from amqpmesh.router.runtime.shared_config import SharedState, whole_in_force
from amqpmesh.router.runtime.shared_costs import at_costs, kept, share_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from amqpmesh.router.config.differences import Difference
    from amqpmesh.router.config.edits import Edit
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.users import Users
    from amqpmesh.router.management.edit_requests import CostEdit
    from amqpmesh.router.runtime.applying import ConfigChanges
    from amqpmesh.router.runtime.reload import ConfigSource
    from amqpmesh.router.runtime.shared_config import SharedConfig


BY_MANAGEMENT: Final[Mapping[str, object]] = {"source": "management"}
"""The source of a change that another worker has made, for the audit log."""


class Edited(NamedTuple):
    """The result of a change by management: of the whole router, if it has workers."""

    config: RouterConfig
    """In force now."""
    marks: Marks
    differences: tuple[Difference, ...]


async def apply_file(
    changes: ConfigChanges, source: ConfigSource, *, dry_run: bool = False, by: Mapping[str, object] = FROM_FILE
) -> Applied:
    """Read the router's file again, and put it in force in all workers. Raises: as `Router.apply`; EditError: another
    worker makes a change that takes too long.
    """
    shared = source.shared
    if shared is None:
        return await changes.apply(source.read, dry_run=dry_run, by=by)
    async with shared.locked():
        try:
            state = await _followed(changes, shared)
        except (ConfigError, OSError):  # logged when it was told; the file may mend what this worker could not follow
            state = await aside(lambda _: shared.read(), None)
        wanted = await aside(lambda _: source.read(), None)
        if dry_run:
            return await changes.apply(shared.part_of(wanted), dry_run=True, by=by)
        audit, before = wanted.audit, state.running.audit
        if audit is not None and (before is None or audit.file != before.file):
            await aside(partial(demand_writable, audit), changes.worker.count)
        running = whole_in_force(state.running, wanted, changes.worker)
        after = SharedState(state.applied + 1, wanted, running, changed=state.changed, users=state.users)
        prepared = await aside(shared.prepare, after)  # first: if the disk is full, no worker changes
        try:
            result = await changes.apply(shared.part_of(wanted), by=by)
        except BaseException:
            prepared.unlink()
            raise
        shared.publish(prepared)
        changes.followed = state.applied + 1
        shared.tell()
    return result


async def edit_tables(
    changes: ConfigChanges, source: ConfigSource | None, edit: Edit, *, by: Mapping[str, object]
) -> Edited:
    """Change tables of the configuration in force, in all workers. Raises: as `ConfigChanges.edit`."""
    shared = None if source is None else source.shared
    if shared is None:
        applied = await changes.edit(edit, by=by)
        return Edited(changes.config, changes.marks, applied.differences)
    async with shared.locked():
        state = await _followed(changes, shared)
        worker = changes.worker

        def prepare(before: SharedState) -> tuple[SharedState, Edited]:
            wanted = edit(before.running)
            found = differences(replace(before.running, worker=worker), replace(wanted, worker=worker))
            check_in_force(found)
            given = whole_in_force(shared.started, before.wanted, worker)
            marks = marks_between(given, wanted)
            check_count(marks, marks_between(given, before.running), wanted)
            costs = kept(before.costs, before.running, wanted)
            return before._replace(running=wanted, costs=costs), Edited(wanted, marks, found)

        after, result = await aside(prepare, state)
        await changes.edit(lambda _: shared.part_of(after.running), by=by)
        if not result.differences:
            return result
        try:
            await aside(shared.write, after)
        except OSError:  # the disk is full: then no worker has it
            await changes.edit(lambda _: shared.part_of(state.running), by=by)
            raise
        shared.tell()
    return result


async def change_cost(
    changes: ConfigChanges, source: ConfigSource | None, edit: CostEdit, *, by: Mapping[str, object]
) -> str:
    """Change the cost of a listener or connector, in all workers.

    Returns: its identity. Raises: RequestError: there is none of that name, or the router has no workers. EditError:
        another worker makes a change that takes too long. OSError.
    """
    shared = None if source is None else source.shared
    if shared is None:
        raise RequestError(NOT_IMPLEMENTED, "there is no such change")
    async with shared.locked():
        state = await _followed(changes, shared)
        identity = edit.identity_in(state.running)
        after = await share_cost(shared, state, identity, edit.cost)
        changes.follow_costs(after.costs, by=by)
        shared.tell()
    return identity


async def change_users(
    changes: ConfigChanges,
    source: ConfigSource | None,
    files: Sequence[Path],
    change: Callable[[], Users],
    *,
    by: Mapping[str, object],
) -> None:
    """Change a file of users, and put it in force in all workers. Raises: as `ConfigChanges.change_users`; EditError:
    another worker makes a change that takes too long.
    """
    shared = None if source is None else source.shared
    if shared is None:
        await changes.change_users(files, change, by=by)
        return
    async with shared.locked():
        state = await _followed(changes, shared)
        # Before and after: if the disk is full, no file has changed; if this worker dies, others read the files again.
        await aside(shared.write, state._replace(users=state.users + 1))
        try:
            await changes.change_users(files, change, by=by)
            changes.followed_users = state.users + 2
            await aside(shared.write, state._replace(users=state.users + 2))
        finally:
            shared.tell()


async def follow(changes: ConfigChanges, shared: SharedConfig) -> None:
    """Put in force what another worker has put in force. Raises: as `Router.apply`."""
    await _followed(changes, shared)


async def _followed(changes: ConfigChanges, shared: SharedConfig) -> SharedState:
    """Follow the shared configuration, and return it."""
    state = await aside(lambda _: shared.read(), None)
    if state.applied != changes.followed:
        await changes.apply(shared.part_of(state.wanted), follows=True)
        changes.followed = state.applied
    if state.users != changes.followed_users:
        files = [file for each in changes.config.listeners for file in each.users_files]
        await changes.change_users(files, lambda: None, by=BY_MANAGEMENT)
        changes.followed_users = state.users
    await changes.edit(lambda _: shared.part_of(state.running), by=BY_MANAGEMENT)
    changes.follow_costs(state.costs)
    return state


def begin(changes: ConfigChanges, shared: SharedConfig) -> None:
    """Note that the router has started with the shared configuration, as it is now. Raises: OSError."""
    state = shared.read()
    changes.followed, changes.followed_users = state.applied, state.users
    changes.start_from(shared.part_of(whole_in_force(shared.started, state.wanted, changes.worker)))
    changes.follow_costs(state.costs)


async def text_of(changes: ConfigChanges, source: ConfigSource | None) -> str:
    """Return the configuration in force as TOML, without what has its default; its comments name the changes that
    management has made. Raises: OSError.
    """
    shared = None if source is None else source.shared
    own = changes.running, changes.marks

    def make(shown: tuple[RouterConfig, Marks]) -> str:
        config, marks = shown
        if shared is not None:
            state = shared.read()
            config = at_costs(state.running, state.costs)
            marks = marks_between(whole_in_force(shared.started, state.wanted, changes.worker), config)
        if source is not None and source.as_in_file is not None:
            config = source.as_in_file(config)
        found = (f"# changed by management: {json.dumps(key, ensure_ascii=False)}" for key in marks.keys)
        return "\n".join((*found, *lines(config, brief=True))) + "\n"

    if changes.text is None or changes.text[0] != own or shared is not None:
        changes.text = own, await aside(make, own)
    return changes.text[1]
