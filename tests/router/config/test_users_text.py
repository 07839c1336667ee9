"""The text of files of users: what `amqpmesh user` has written is read as TOML means it, without the reader of TOML."""

from __future__ import annotations

import base64
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.sasl.mechanisms import ScramKeys
from amqpmesh.router.config import users as users_module
from amqpmesh.router.config import users_text
from amqpmesh.router.config.tables import parsed
from amqpmesh.router.config.users import Users, change_user
from amqpmesh.router.config.users_text import OtherTextError, lines, users_in_parts, written_users

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
SIZES = {"SCRAM-SHA-1": 20, "SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


@st.composite
def keys(draw: st.DrawFn) -> dict[str, ScramKeys]:
    mechanisms = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, unique=True))
    salts, counts = st.binary(min_size=1, max_size=20), st.integers(4096, 100_000)
    return {each: ScramKeys(draw(salts), draw(counts), bytes(SIZES[each]), b"k" * SIZES[each]) for each in mechanisms}


@st.composite
def some_users(draw: st.DrawFn) -> Users:
    verifiers = draw(st.dictionaries(NAMES, keys(), max_size=5))
    names = sorted(verifiers)
    disabled = frozenset(draw(st.sets(st.sampled_from(names)))) if names else frozenset[str]()
    groups = {
        each: tuple(draw(st.lists(NAMES.filter(str.isprintable), unique=True, max_size=3)))
        for each in names
        if draw(st.booleans())
    }
    return Users(verifiers, disabled, groups)


def text_of(users: Users) -> str:
    return "".join(lines(users._verifiers, users.disabled, users._groups))


def read_by(reader: Any, file: Path) -> list[tuple[str, Any]] | None:
    try:
        return list(reader(file))
    except (OtherTextError, ConfigError, UnicodeDecodeError):
        return None


def tables_of_toml(file: Path) -> list[tuple[str, Any]]:
    return list(parsed(file).items())


@given(some_users(), st.integers(1, 200))
def test_what_is_written_is_read_as_toml_means_it(users: Users, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        file = Path(folder, "users.toml")
        users.save(file)
        patched.setattr(users_text, "READ_SIZE", size)
        found = read_by(written_users, file)
        assert found is not None
        assert found == tables_of_toml(file)
        told = Users.load(file)
    assert (told.names, told.disabled) == (tuple(sorted(users.names)), users.disabled)
    for name in told.names:
        assert (told.verifiers(name), told.groups_of(name)) == (users.verifiers(name), users.groups_of(name))


@given(some_users(), st.data())
def test_other_text_is_never_read_in_another_way(users: Users, data: st.DataObject) -> None:
    text = text_of(users)
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 40)))
        there = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(["", "\n", "\\", '"', "\\u0041", "\r", "\x7f", "#", "0", "disabled = true\n"])
            | st.just(text[there : there + 60])
            | st.text(max_size=3)
        )
        text = text[:begin] + put + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "users.toml")
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        found = read_by(written_users, file)
        assert found is None or found == read_by(tables_of_toml, file), text


@given(some_users(), st.integers(1, 200), st.data())
def test_a_text_of_a_person_means_in_parts_what_it_means_as_a_whole(
    users: Users, size: int, data: st.DataObject
) -> None:
    text = text_of(users)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(
                [
                    "# [a]\n",
                    '"""',
                    "'''",
                    "\n[",
                    "\n[\n",
                    "[[a]]\n",
                    '["a"]\n',
                    "['a'.b]\n",
                    "[a]\n",
                    "a.b = 1\n",
                    "\r\n",
                    "\r",
                    "\n",
                    " ",
                    'x = ["\n[b]", [\n[1]]]\n',
                    'y = """\n[c]\n"""\n',
                ]
            )
        )
        text = text[:at] + put + text[at:]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        file = Path(folder, "users.toml")
        file.write_bytes(text.encode())
        patched.setattr(users_text, "PART", size)
        found = read_by(users_in_parts, file)
        assert found is None or found == read_by(tables_of_toml, file), text


@pytest.mark.parametrize("again", ["[a]\nx = 1\n", '["a".c]\n', "['a'.b]\n", 'x = """\n[d]\n"""\n'])
def test_a_user_in_two_parts_and_a_cut_within_a_text_are_left_to_the_reader_of_toml(
    again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f"[a.b]\n[b]\n{again}")
    monkeypatch.setattr(users_text, "PART", 1)
    with pytest.raises(OtherTextError):
        list(users_in_parts(file))


def test_a_text_of_a_person_is_never_a_document_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"SCRAM-SHA-256": ScramKeys(b"salt", 4096, bytes(32), bytes(32))}
    written = Users({f"user{number:04}": keys for number in range(20)}, frozenset({"user0003"}), {"user0003": ("g",)})
    file = tmp_path / "users.toml"
    file.write_text("# ours\n" + text_of(written).replace("salt", "  salt"))
    monkeypatch.setattr(users_text, "PART", 300)

    def refuse(_: Path) -> dict[str, Any]:
        raise AssertionError("one document of 100,000 users is freed in one go")

    monkeypatch.setattr(users_module, "parsed", refuse)
    read = Users.load(file)
    assert (read.names, read.disabled, read.groups_of("user0003")) == (written.names, {"user0003"}, ("g",))
    assert all(read.verifiers(name) == keys for name in read.names)


def test_users_that_come_through_a_pipe_are_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "users"
    os.mkfifo(pipe)
    text = '[a."SCRAM-SHA-1"]\nsalt = "AA=="\niterations = 4096\n'
    text += "".join(f'{key} = "{base64.b64encode(bytes(20)).decode()}"\n' for key in ("stored_key", "server_key"))
    writing = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writing.start()
    assert Users.load(pipe).names == ("a",)
    writing.join()


OTHER = [
    '["a"."SCRAM-SHA-1"]\nsalt = "AA=="\niterations = 4096\nstored_key = "AA=="\nserver_key = "AA=="',
    '["a"]\ndisabled = false\n',
    '["a"]\n\n["a"]\n',
    '["a"]\n\n["b"]\n\n["a"]\n',
    '["\\u0041"]\n',
    "[a]\n",
]


@pytest.mark.parametrize("text", OTHER)
def test_text_of_others_is_left_to_the_reader_of_toml(text: str, tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text)
    with pytest.raises(OtherTextError):
        list(written_users(file))


def test_a_block_without_end_is_left_to_it_before_it_fills_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'["{"a" * 2 * users_text.LONGEST}"]\n')
    with pytest.raises(OtherTextError):
        list(written_users(file))


def test_a_change_of_one_user_reads_no_toml_and_keeps_the_verifiers_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users.toml"
    verifiers = {"SCRAM-SHA-256": ScramKeys(b"salt", 4096, bytes(32), bytes(32))}
    Users({f"user{number:04}": dict(verifiers) for number in range(2_000)}).save(file)
    before = Users.load(file)

    def refuse(_: Path) -> dict[str, Any]:
        raise AssertionError("the reader of TOML takes 0.15 ms for each user")

    monkeypatch.setattr(users_module, "parsed", refuse)

    def change(users: Users) -> Users:
        return users.add("user0007", "secret", 4096).switch("user0008", disabled=True)

    after = change_user([file], "user0007", change, is_new=False, most=2_000, before=before)
    read = Users.load(file, before=after)
    for name in before.names:
        is_kept = after.verifiers(name) is before.verifiers(name)
        assert is_kept == (name != "user0007"), "what is made anew has to be freed in one go"
        assert read.verifiers(name) is after.verifiers(name)
    assert read.disabled == {"user0008"}
