"""`amqpmesh user`: password users of a file."""

import getpass
import io
import sys
from pathlib import Path

import pytest

from amqpmesh.router.cli.main import main
from amqpmesh.router.config.users import Users


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.mark.parametrize("content", [b"secret", b"secret\n", b"secret\r\n", b"secret\nmore\n"])
def test_the_password_is_the_first_line_of_standard_input(
    file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, content)
    assert main(["user", "add", "alice", "--file", str(file)]) == 0
    assert Users.load(file).verify_plain("alice", "secret")
    output = capsys.readouterr()
    assert output.out == ""
    assert "alice" in output.err
    assert "secret" not in output.err


def test_spaces_belong_to_the_password(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b" se cret \n")
    assert main(["user", "add", "alice", "--file", str(file)]) == 0
    assert Users.load(file).verify_plain("alice", " se cret ")


def test_the_password_may_come_from_a_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    assert main(["user", "add", "alice", "--file", str(file), "--password-file", str(tmp_path / "password")]) == 0
    assert Users.load(file).verify_plain("alice", "secret")


def test_a_password_file_that_cannot_be_read_ends_with_2(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "password"
    assert main(["user", "add", "alice", "--file", str(file), "--password-file", str(missing)]) == 2
    assert capsys.readouterr().err == f"amqpmesh: {missing}: No such file or directory\n"
    assert not file.exists()


def test_on_a_terminal_the_password_is_asked_for_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["secret", "secret", "secret", "other"])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: next(answers))
    assert main(["user", "add", "alice", "--file", str(file)]) == 0
    assert Users.load(file).verify_plain("alice", "secret")
    assert main(["user", "add", "bob", "--file", str(file)]) == 2
    assert "bob" not in Users.load(file)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\n", b"a\x00b\n"])
def test_no_password_is_an_error_and_changes_nothing(
    file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, content)
    assert main(["user", "add", "alice", "--file", str(file)]) == 2
    assert capsys.readouterr().err.startswith("amqpmesh: ")
    assert not file.exists()


def test_a_folder_that_is_not_there_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"secret\n")
    assert main(["user", "add", "alice", "--file", str(tmp_path / "no" / "users.toml")]) == 1


def test_the_file_is_users_toml_here_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stdin(monkeypatch, b"secret\n")
    assert main(["user", "add", "alice"]) == 0
    assert "alice" in Users.load(tmp_path / "users.toml")


def test_users_are_listed_and_removed(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "password").write_text("secret\n")
    given = ["--file", str(file), "--password-file", str(tmp_path / "password")]
    assert main(["user", "add", "bob", *given]) == 0
    assert main(["user", "add", "alice", *given, "--iterations", "4096"]) == 0
    assert main(["user", "disable", "bob", "--file", str(file)]) == 0
    capsys.readouterr()
    assert main(["user", "list", "--file", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "USER   STATE     ITERATIONS  MECHANISMS",
        "alice  enabled        4,096  SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1",
        "bob    disabled      65,536  SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1",
    ]
    assert main(["user", "groups", "alice", "readers", "ops", "--file", str(file)]) == 0
    capsys.readouterr()
    assert main(["user", "list", "--file", str(file)]) == 0
    assert [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()] == [
        "GROUPS",
        "readers, ops",
        "-",
    ]
    assert main(["user", "groups", "nobody", "ops", "--file", str(file)]) == 2
    assert main(["user", "remove", "bob", "--file", str(file)]) == 0
    assert list(Users.load(file)) == ["alice"]
    capsys.readouterr()
    assert main(["user", "remove", "bob", "--file", str(file)]) == 2
    assert capsys.readouterr().err == "amqpmesh: there is no user bob\n"
    assert main(["user", "remove", "alice", "--file", str(file)]) == 0
    assert main(["user", "list", "--file", str(file)]) == 0
    assert capsys.readouterr().out == ""


def test_a_disabled_user_keeps_its_password_and_may_come_back(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, b"secret\n")
    assert main(["user", "add", "alice", "--file", str(file)]) == 0
    assert main(["user", "disable", "alice", "--file", str(file)]) == 0
    users = Users.load(file)
    assert not users.verify_plain("alice", "secret")
    assert users.scram_keys("alice", "SCRAM-SHA-256") is None
    stdin(monkeypatch, b"changed\n")
    assert main(["user", "add", "alice", "--file", str(file)]) == 0
    assert not Users.load(file).verify_plain("alice", "changed"), "a new password does not enable a user"
    assert main(["user", "enable", "alice", "--file", str(file)]) == 0
    assert Users.load(file).verify_plain("alice", "changed")
    assert main(["user", "enable", "bob", "--file", str(file)]) == 2
    assert "there is no user bob" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["list"], ["remove", "alice"], ["disable", "alice"]])
def test_a_file_that_is_not_there_is_named(file: Path, action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", *action, "--file", str(file)]) == 2
    assert capsys.readouterr().err == f"amqpmesh: {file}: file: No such file or directory\n"


@pytest.mark.parametrize("count", ["4095", "1000001", "many"])
def test_iterations_are_neither_too_few_nor_too_many(
    file: Path, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["user", "add", "alice", "--file", str(file), "--iterations", count])
    assert ended.value.code == 2
    assert "--iterations: must be a whole number from 4096 to 1000000" in capsys.readouterr().err
