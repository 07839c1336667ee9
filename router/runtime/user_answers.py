"""Answers of `$management` to requests about password users: the router writes their files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.config.users import (
    NoSuchUserError,
    ThereAlreadyError,
    TooManyUsersError,
    Users,
    change_user,
    prepared,
)
from amqpmesh.router.management.service import BAD_REQUEST, CONFLICT, NOT_FOUND, RequestError
from amqpmesh.router.management.user_requests import CREATE, DELETE, UserRequest, answered, listeners_of
from amqpmesh.router.runtime.source_changes import change_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.message.content import Message
    from amqpmesh.router.runtime.applying import ConfigChanges
    from amqpmesh.router.runtime.reload import ConfigSource


async def answer_user(
    changes: ConfigChanges,
    source: ConfigSource | None,
    request: Message,
    wanted: UserRequest,
    by: Mapping[str, object],
) -> Message:
    """Answer a request about a user, from a sender who may make it.

    Args: source: None: a program has started the router. by: the sender, for the audit log.
    Raises: RequestError: it cannot be done. EditError: another worker makes a change.
    """
    try:
        wanted = replace(wanted, name=prepared(wanted.name, "user name"))
        listeners = listeners_of(changes.config, wanted)
        if wanted.is_change:
            files, most, before = listeners[0].users_files, changes.config.runtime_users, changes.users_of(listeners[0])

            def write() -> Users:
                is_new = wanted.operation == CREATE
                return change_user(files, wanted.name, wanted_users, is_new=is_new, most=most, before=before)

            def wanted_users(users: Users) -> Users:
                return _changed(users, wanted)

            await change_users(changes, source, files, write, by=by)
        users = changes.users_of(listeners[0])
    except NoSuchUserError as error:
        raise RequestError(NOT_FOUND, str(error)) from None
    except (ThereAlreadyError, TooManyUsersError) as error:
        raise RequestError(CONFLICT, str(error)) from None
    except CommandError as error:
        raise RequestError(BAD_REQUEST, str(error)) from None
    except ConfigError as error:  # a person has written it; the place of the file is not told
        raise RequestError(CONFLICT, f"a file of users is not valid: {error.key}: {error.reason}") from None
    except OSError as error:
        raise RequestError(CONFLICT, f"the file of users cannot be written: {error.strerror or error}") from None
    if wanted.operation != DELETE and (users is None or wanted.name not in users):
        raise RequestError(NOT_FOUND, f"there is no user {wanted.name}")
    return answered(request, wanted, changes.config, listeners[0], users)


def _changed(users: Users, wanted: UserRequest) -> Users:
    """Return users after a change. Raises: CommandError: SASLprep refuses the password."""
    name = wanted.name
    if wanted.operation == DELETE:
        return users.remove(name)
    if wanted.password is not None:
        users = users.add(name, wanted.password)
    if wanted.groups is not None:
        users = users.group(name, wanted.groups)
    if wanted.disabled is not None:
        users = users.switch(name, disabled=wanted.disabled)
    return users
