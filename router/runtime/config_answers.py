"""Answers of `$management` to requests that change the configuration of a running router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.edits import EditError
from amqpmesh.router.management.config_requests import APPLY, CONFIG, applied, arguments, config_part
from amqpmesh.router.management.edit_requests import UPDATE, config_edit, cost_edit, edited, refusal_of
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.service import BAD_REQUEST, CONFLICT, NOT_IMPLEMENTED, OK, RequestError, answer, refused
from amqpmesh.router.management.upgrade_requests import UPGRADE, asks_only, upgrade_told
from amqpmesh.router.management.user_requests import user_request
from amqpmesh.router.runtime.source_changes import apply_file, change_cost, edit_tables, text_of
from amqpmesh.router.runtime.user_answers import answer_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.message.content import Message
    from amqpmesh.router.runtime.applying import ConfigChanges
    from amqpmesh.router.runtime.reload import ConfigSource


async def answer_change(
    changes: ConfigChanges, source: ConfigSource | None, request: Message, by: Mapping[str, object]
) -> Message:
    """Answer a request for the configuration, to apply the router's own file, to change a table or a user, or to
    upgrade the router, from a sender who may.

    Args: source: None: the router has no file. by: the sender, for the audit log.
    """
    operation = request.application_properties.get("operation")
    try:
        if operation == CONFIG:
            return config_part(request, await text_of(changes, source))
        if operation == UPGRADE:
            return _upgrade(changes, source, request)
        if operation == APPLY:
            return await _apply_own_file(changes, source, request, by)
        wanted = user_request(request)
        if wanted is not None:
            return await answer_user(changes, source, request, wanted, by)
        return await _edit(changes, source, request, by)
    except ConfigError as error:
        return refused(request, RequestError(BAD_REQUEST, str(error)))
    except EditError as error:
        return refused(request, refusal_of(error))
    except OSError as error:
        return refused(request, RequestError(CONFLICT, f"{error.filename}: {error.strerror or error}"))
    except RequestError as refusal:
        return refused(request, refusal)


def _upgrade(changes: ConfigChanges, source: ConfigSource | None, request: Message) -> Message:
    """Upgrade the router in place: no request brings another program, or other arguments."""
    ask = asks_only(request)
    if source is None or source.upgrade is None:
        raise RequestError(NOT_IMPLEMENTED, "a program has started this router")
    worker = changes.config.worker
    return upgrade_told(request, changes.config.id if worker is None else worker.name, source.upgrade(ask))


async def _apply_own_file(
    changes: ConfigChanges, source: ConfigSource | None, request: Message, by: Mapping[str, object]
) -> Message:
    """Apply the router's own file. No request brings another one: the file can name any other file of the machine, and
    who may write it decides that.
    """
    file, dry_run = arguments(request)
    if source is None:
        raise RequestError(NOT_IMPLEMENTED, "a program has started this router, which has no file to read again")
    if file is not None and (source.file is None or file != str(source.file)):
        raise RequestError(CONFLICT, f"the router was started with {source.file or 'arguments alone'}")
    found = await apply_file(changes, source, dry_run=dry_run, by=by)
    return applied(request, found.differences, found.users)


async def _edit(
    changes: ConfigChanges, source: ConfigSource | None, request: Message, by: Mapping[str, object]
) -> Message:
    wanted = config_edit(request)
    if wanted is None:
        return await _change_cost(changes, source, request, by)
    if wanted.kind.kind == "log" and wanted.operation == UPDATE and source is None:
        raise RequestError(CONFLICT, "a program has started this router, and its process has the log")
    try:
        done = await edit_tables(changes, source, wanted.edit, by=by)
    except ConfigError as error:
        raise RequestError(BAD_REQUEST, f"{error.key}: {error.reason}") from None
    return edited(request, wanted, done.config, done.differences, done.marks)


async def _change_cost(
    changes: ConfigChanges, source: ConfigSource | None, request: Message, by: Mapping[str, object]
) -> Message:
    wanted = cost_edit(request)
    if wanted is None:
        raise RequestError(NOT_IMPLEMENTED, "there is no such change")
    identity = await change_cost(changes, source, wanted, by=by)
    kind, _, name = identity.partition("/")
    told = {"name": name, "identity": identity, "type": f"{PREFIX}{kind}", "cost": ULong(wanted.cost)}
    return answer(request, OK, "OK", told)
