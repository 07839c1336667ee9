"""Files of password users, and their verifiers."""

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import pbkdf2_hmac
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient, ScramException, ScramMechanism

from amqpmesh.router.amqp.errors import CommandError, ConfigError
from amqpmesh.router.amqp.sasl.mechanisms import SALT_SIZE, SCRAM_ITERATIONS
from amqpmesh.router.config.file import load
from amqpmesh.router.config.users import Users, add_user, group_user, remove_user, switch_user

PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)


def file_of(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "users.toml"
    file.write_text(text)
    return file


def entry(key_size: int = 32, **changes: str) -> str:
    key = base64.b64encode(bytes(key_size)).decode()
    fields = {"salt": f"'{key}'", "iterations": "4096", "stored_key": f"'{key}'", "server_key": f"'{key}'", **changes}
    return "".join(f"{name} = {value}\n" for name, value in fields.items() if value)


def test_an_added_user_is_found_after_the_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret")
    add_user(file, "bob", "other")
    users = Users.load(file)
    assert users.verify_plain("alice", "secret")
    assert users.verify_plain("bob", "other")
    assert not users.verify_plain("alice", "other")
    assert not users.verify_plain("alice", "")
    assert not users.verify_plain("carol", "secret")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_client_with_the_password_is_believed_and_no_other(mechanism: str) -> None:
    users = Users({}).add("alice", "secret")

    def exchange(password: str) -> None:
        keys = users.scram_keys("alice", mechanism)
        assert keys is not None
        stored = (keys.salt, keys.stored_key, keys.server_key, keys.iterations)
        server = ScramMechanism(mechanism).make_server(lambda _user: stored)
        client = ScramClient([mechanism], "alice", password)
        server.set_client_first(client.get_client_first())
        client.set_server_first(server.get_server_first())
        server.set_client_final(client.get_client_final())
        client.set_server_final(server.get_server_final())

    exchange("secret")
    with pytest.raises(ScramException):
        exchange("Secret")


def test_verifiers_have_the_salt_and_iterations_that_an_unknown_user_is_shown() -> None:
    users = Users({}).add("alice", "secret")
    assert users.iterations == Users({}).iterations == (SCRAM_ITERATIONS,) == (65_536,)
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        keys = users.scram_keys("alice", mechanism)
        assert keys is not None
        assert (len(keys.salt), keys.iterations) == (SALT_SIZE, SCRAM_ITERATIONS)


def test_users_of_before_keep_their_iterations_until_they_are_added_again(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret", 4096)
    add_user(file, "bob", "secret", 5000)
    assert Users.load(file).iterations == (4096, 5000)
    assert Users.load(file).verify_plain("bob", "secret")
    add_user(file, "alice", "secret")
    assert Users.load(file).iterations == (5000, SCRAM_ITERATIONS)


def test_a_removed_user_is_gone_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    for name in ("bob", "IX", "alice"):
        add_user(file, name, "secret", 4096)
    remove_user(file, "\u2168")  # one name has one spelling
    assert list(Users.load(file)) == ["alice", "bob"]
    assert Users.load(file).verify_plain("bob", "secret")
    before = file.read_bytes()
    with pytest.raises(CommandError, match="there is no user IX"):
        remove_user(file, "IX")
    assert file.read_bytes() == before


def test_two_users_with_one_password_have_nothing_in_common() -> None:
    users = Users({}).add("alice", "secret").add("bob", "secret")
    alice, bob = users.scram_keys("alice", "SCRAM-SHA-256"), users.scram_keys("bob", "SCRAM-SHA-256")
    assert alice is not None
    assert bob is not None
    assert alice.salt != bob.salt
    assert alice.stored_key != bob.stored_key


def test_neither_the_file_nor_what_is_printed_holds_the_password_or_a_key(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "correct horse")
    keys = Users.load(file).scram_keys("alice", "SCRAM-SHA-256")
    assert keys is not None
    assert "correct horse" not in file.read_text()
    assert repr(keys.stored_key) not in repr(keys)


def test_adding_a_user_again_changes_the_password(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "old")
    add_user(file, "alice", "new")
    assert Users.load(file).verify_plain("alice", "new")
    assert not Users.load(file).verify_plain("alice", "old")


def test_one_name_has_one_spelling() -> None:
    # U+2168 is the Roman numeral nine, U+00AD a soft hyphen: SASLprep's own examples (RFC 4013, 3).
    users = Users({}).add("\u2168", "pass\u00adword")
    assert users.verify_plain("IX", "password")


def test_the_file_is_for_its_owner_only_even_where_the_umask_is_wide(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text("")
    file.chmod(0o666)
    before = os.umask(0)
    try:
        add_user(file, "alice", "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["users.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can write a file of another user's")
def test_the_file_keeps_its_owner_if_root_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret", 4096)
    os.chown(file, 65532, 65533)
    add_user(file, "bob", "secret", 4096)
    told = file.stat()
    assert (told.st_uid, told.st_gid, stat.S_IMODE(told.st_mode)) == (65532, 65533, 0o600)


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "users.toml"
    link.symlink_to(real)
    add_user(link, "alice", "secret")
    assert link.is_symlink()
    assert Users.load(real).verify_plain("alice", "secret")


def test_callers_that_add_users_at_the_same_time_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    names = [f"user{n}" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_user(file, name, "secret", 4096), names))
    users = Users.load(file)
    assert [name for name in names if name not in users] == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.toml"
    add_user(file, "alice", "secret")

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        add_user(file, "bob", "secret")
    assert [path.name for path in tmp_path.iterdir()] == ["users.toml"]
    assert "bob" not in Users.load(file)


def test_a_bad_file_is_not_written_over(tmp_path: Path) -> None:
    file = file_of(tmp_path, "alice = 'secret'")
    with pytest.raises(ConfigError):
        add_user(file, "bob", "secret")
    assert file.read_text() == "alice = 'secret'"


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("x", ""), ("a\x00b", "x"), ("x", "a\nb"), ("\u00ad", "x")])
def test_names_and_passwords_that_saslprep_refuses_are_our_callers_error(user: str, password: str) -> None:
    with pytest.raises(CommandError) as refused:
        Users({}).add(user, password)
    assert password not in str(refused.value) or len(password) < 2


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[alice", "file", ""),
        ("a = " + "[" * 3_000, "file", "nested too deeply"),
        ("alice = 'secret'", "alice", "must be a table"),
        ("[alice]", "alice", "must be a table"),
        ("[alice.PLAIN]\n" + entry(), "alice.PLAIN", "unknown mechanism"),
        ("[alice]\npassword = 'secret'", "alice.password", "unknown mechanism"),
        ("[alice.SCRAM-SHA-256]\n" + entry(salt=""), "alice.SCRAM-SHA-256", "exactly"),
        ("[alice.SCRAM-SHA-256]\n" + entry(password="'x'"), "alice.SCRAM-SHA-256", "exactly"),
        ("[alice.SCRAM-SHA-256]\n" + entry(salt="'%'"), "alice.SCRAM-SHA-256.salt", "base64"),
        ("[alice.SCRAM-SHA-256]\n" + entry(salt="''"), "alice.SCRAM-SHA-256.salt", "empty"),
        ("[alice.SCRAM-SHA-256]\n" + entry(salt="3"), "alice.SCRAM-SHA-256.salt", "base64"),
        ("[alice.SCRAM-SHA-256]\n" + entry(20), "alice.SCRAM-SHA-256.stored_key", "32 octets"),
        ("[alice.SCRAM-SHA-1]\n" + entry(20, server_key="'AA=='"), "alice.SCRAM-SHA-1.server_key", "20 octets"),
        ("[alice.SCRAM-SHA-1]\n" + entry(20, iterations="4095"), "alice.SCRAM-SHA-1.iterations", "4096"),
        ("[alice.SCRAM-SHA-1]\n" + entry(20, iterations="10_000_000"), "alice.SCRAM-SHA-1.iterations", "1000000"),
        ("[alice.SCRAM-SHA-1]\n" + entry(20, iterations="'4096'"), "alice.SCRAM-SHA-1.iterations", "4096"),
    ],
)
def test_a_bad_entry_is_named_by_user_and_mechanism(tmp_path: Path, text: str, key: str, reason: str) -> None:
    file = file_of(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        Users.load(file)
    assert (refused.value.file, refused.value.key) == (str(file), key)
    assert reason in refused.value.reason


def test_a_user_may_have_one_mechanism_only(tmp_path: Path) -> None:
    users = Users.load(file_of(tmp_path, "['o hara'.SCRAM-SHA-1]\n" + entry(20)))
    assert users.scram_keys("o hara", "SCRAM-SHA-1") is not None
    assert users.scram_keys("o hara", "SCRAM-SHA-256") is None
    assert not users.verify_plain("o hara", "")


@given(user=PRINTABLE, password=PRINTABLE, other=PRINTABLE)
@settings(max_examples=15)
def test_any_name_and_password_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, user: str, password: str, other: str
) -> None:
    file = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(file, user, password, 4096)
    assert Users.load(file).verify_plain(user, password)
    assert Users.load(file).verify_plain(user, other) is (other == password)


def test_an_unknown_user_takes_as_long_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def hashed(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        counts.append(iterations)
        return pbkdf2_hmac(name, password, salt, iterations)

    monkeypatch.setattr("amqpmesh.router.config.users.pbkdf2_hmac", hashed)
    users = Users({}).add("alice", "secret")
    assert [users.verify_plain(name, "wrong") for name in ("alice", "nobody")] == [False, False]
    assert counts == [SCRAM_ITERATIONS] * 2


def test_a_listener_has_the_users_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "amqp.toml").write_text(
        '[[listener]]\nurl = "amqp://127.0.0.1:0"\nsasl = ["SCRAM-SHA-256"]\nusers = ["staff.toml", "services.toml"]\n'
    )
    add_user(tmp_path / "staff.toml", "alice", "secret")
    add_user(tmp_path / "services.toml", "svc", "other")
    (listener,) = load(tmp_path / "amqp.toml").listeners
    users = Users.load(*listener.users_files)
    assert list(users) == ["alice", "svc"]
    assert users.verify_plain("svc", "other")
    add_user(tmp_path / "services.toml", "alice", "third")
    with pytest.raises(ConfigError, match=r"listener\[0\]\.users.*services\.toml.*alice.*staff\.toml, too"):
        load(tmp_path / "amqp.toml")


def test_groups_of_users_survive_the_file_and_other_changes(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    for name in ("alice", 'b"o]b'):
        add_user(file, name, "secret", 4096)
        group_user(file, name, ["readers", 'w"r', "readers"])
        switch_user(file, name, disabled=True)
        add_user(file, name, "other", 4096)
    users = Users.load(file)
    assert users.groups_of("alice") == users.groups_of('b"o]b') == ("readers", 'w"r')
    assert users.disabled == {"alice", 'b"o]b'}
    assert users.groups_of("nobody") == ()
    group_user(file, "alice", [])
    assert Users.load(file).groups_of("alice") == ()
    remove_user(file, 'b"o]b')
    assert Users.load(file).groups_of('b"o]b') == ()
    for names in ([""], ["a\nb"]):
        with pytest.raises(CommandError):
            group_user(file, "alice", names)


@pytest.mark.parametrize("groups", ['"readers"', "[1]", '[""]', '["a\\u0000"]'])
def test_groups_that_are_no_names_are_refused(tmp_path: Path, groups: str) -> None:
    file = file_of(tmp_path, f"[alice]\ngroups = {groups}\n[alice.SCRAM-SHA-1]\n" + entry(20))
    with pytest.raises(ConfigError) as refused:
        Users.load(file)
    assert refused.value.key == "alice.groups"
