"""The text of `users.toml` as `amqpmesh user` writes it, read and written user by user; other TOML is read in parts.

A file may have a hundred thousand users, and any change reads it: the reader of TOML would take a quarter of a minute,
and would hold up the whole process when the one document that it makes is freed.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.tables import parsed_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys

HEAD: Final = "# Written by `amqpmesh user`: verifiers, no passwords."

READ_SIZE: Final = 2**16
"""Characters of one read."""

LONGEST: Final = 2**20
"""Characters without an empty line up to which a text can be one of ours."""

PART: Final = 2**16
"""Characters from which on a part of a text ends at the next table of another user."""

# The beginning of a table, up to the end of the first key of its name.
_BEGIN: Final = re.compile(r'[ \t]*\[[ \t]*("(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+)[ \t]*[.\]]')

# JSON and TOML quote in the same way what has none of the other escapes.
_TEXT: Final = r'"(?:[^"\\\x00-\x1f\x7f]|\\["\\])*"'
_BASE64: Final = r'"([A-Za-z0-9+/=]*)"'

_OF_USER: Final = re.compile(rf"\[({_TEXT})\](?:\n(disabled = true))?(?:\ngroups = (\[(?:{_TEXT}(?:, {_TEXT})*)?\]))?")
_OF_MECHANISM: Final = re.compile(
    rf'\[({_TEXT})\."([A-Z0-9-]+)"\]\nsalt = {_BASE64}\niterations = ([1-9][0-9]{{0,8}})\n'
    rf"stored_key = {_BASE64}\nserver_key = {_BASE64}"
)


class OtherTextError(Exception):
    """A text that somebody else has written: it may be good TOML, or not."""


def written_users(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each user of a file, with the table that TOML means; a user's own table comes before those of mechanisms.

    Raises: OtherTextError: the file has another form; what was yielded before counts for nothing then. OSError.
        UnicodeDecodeError: it is not UTF-8.
    """
    names: set[str] = set()
    name, quoted, table = "", "", dict[str, Any]()
    for block in _blocks(file):
        found = _OF_MECHANISM.fullmatch(block) or _OF_USER.fullmatch(block)
        if found is None:
            if block == HEAD and not names:
                continue
            raise OtherTextError
        if found[1] != quoted:
            if quoted:
                yield name, table
            quoted, table = found[1], {}
            name = json.loads(quoted)
            if name in names:
                raise OtherTextError
            names.add(name)
        elif found.re is _OF_USER or found[2] in table:
            raise OtherTextError
        if found.re is _OF_USER:
            if found[2]:
                table["disabled"] = True
            if found[3]:
                table["groups"] = json.loads(found[3])
        else:
            _, mechanism, salt, iterations, stored_key, server_key = found.groups()
            table[mechanism] = {
                "salt": salt,
                "iterations": int(iterations),
                "stored_key": stored_key,
                "server_key": server_key,
            }
    if quoted:
        yield name, table


def _blocks(file: Path) -> Iterator[str]:
    """Yield what is between empty lines. Raises: OtherTextError: a block is too long, or the last line has no end."""
    rest = ""
    with file.open(encoding="utf-8", newline="") as stream:
        while more := stream.read(READ_SIZE):
            *blocks, rest = (rest + more).split("\n\n")
            yield from blocks
            if len(rest) > LONGEST:
                raise OtherTextError
    if rest:
        if not rest.endswith("\n"):
            raise OtherTextError
        yield rest[:-1]


def users_in_parts(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield each user of a file in any form of TOML, with the value of its key, part by part.

    Raises: OtherTextError: a part is no TOML by itself, or a user is in two parts; what was yielded before counts for
        nothing then. OSError. UnicodeDecodeError: it is not UTF-8.
    """
    names: set[str] = set()
    for text in _parts(file):
        # A text that is cut within a value is no TOML: where both parts are, they mean what the whole does.
        try:
            tables = parsed_text(text.encode(), file)
        except ConfigError:
            raise OtherTextError from None
        if not names.isdisjoint(tables):
            raise OtherTextError
        names.update(tables)
        yield from tables.items()


def _parts(file: Path) -> Iterator[str]:
    size, part, user = 0, list[str](), ""
    with file.open(encoding="utf-8", newline="\n") as stream:
        for line in stream:
            found = _BEGIN.match(line)
            if found is not None and found[1] != user:
                user = found[1]
                if size >= PART:
                    yield "".join(part)
                    size, part = 0, []
            part.append(line)
            size += len(line)
    yield "".join(part)


def lines(
    verifiers: Mapping[str, Mapping[str, ScramKeys]], disabled: frozenset[str], groups: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """Yield the text of a file, in pieces. Args: as of `Users`."""
    yield f"{HEAD}\n"
    for user in sorted(verifiers):
        name = json.dumps(user, ensure_ascii=False)
        if user in disabled or user in groups:
            yield f"\n[{name}]\n"
        if user in disabled:
            yield "disabled = true\n"
        if user in groups:
            yield f"groups = {json.dumps(groups[user], ensure_ascii=False)}\n"
        for mechanism, entry in verifiers[user].items():
            # SASLprep leaves no control characters, so JSON's quoting is TOML's.
            yield (
                f"\n[{name}.{json.dumps(mechanism)}]\n"
                f"salt = {_base64(entry.salt)}\niterations = {entry.iterations}\n"
                f"stored_key = {_base64(entry.stored_key)}\nserver_key = {_base64(entry.server_key)}\n"
            )


def _base64(data: bytes) -> str:
    return f'"{b2a_base64(data, newline=False).decode()}"'
