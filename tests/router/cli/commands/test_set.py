"""`amqpmesh set`, `close` and `config`: changes of a router that runs, and its configuration."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from amqpmesh import ConnectionClosedError, connect
from amqpmesh.router.cli.commands.set import _value
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, load
from amqpmesh.router.config.users import Users, add_user
from tests.support.processes.router_thread import Command, Serve, Served


@pytest.fixture
def managed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Start a router that clients may change, whose URL the commands find in the environment."""
    listener = ListenerConfig(url="amqp://127.0.0.1:0", name="own", manage=True)
    served = serve(listeners=[listener], addresses=(AddressConfig(pattern="news/#", max_credit=7),))
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    return served


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("true", True),
        ("multicast", "multicast"),
        ("'5'", "5"),
        ('["a", "b"]', ["a", "b"]),
        ("{ a = 1 }", {"a": 1}),
        ("amqp://127.0.0.1:5672", "amqp://127.0.0.1:5672"),
        ("", None),
        ("2026-05-01", "2026-05-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 2000, "[" * 2000),
    ],
)
def test_a_value_is_as_in_the_file_or_a_text(text: str, value: object) -> None:
    assert _value(text) == value


def test_tables_are_created_changed_and_deleted(managed: Served, command: Command) -> None:
    said = command("set", "address", "q/#", "max_credit=5", "distribution=multicast", "--create")
    assert (said.status, said.out) == (
        0,
        'address[q/#] to { pattern = "q/#", distribution = "multicast", max_credit = 5 } (at once)\n',
    )
    said = command("set", "address", "q/#", "max_credit=", "attempts=9")
    assert (said.status, said.out) == (
        0,
        "address[q/#].max_credit from 5 to 500 (at once)\naddress[q/#].attempts from 3 to 9 (at once)\n",
    )
    assert command("set", "address", "q/#", "attempts=9").out == "nothing differs\n"
    assert command("set", "router", "drain=1", "--json").status == 0
    assert managed.router.config.drain == 1.0
    said = command("set", "address", "q/#", "--delete", "--json")
    assert json.loads(said.out) == {"changed": True}
    assert [each.pattern for each in managed.router.config.addresses] == ["news/#"]


def test_users_are_changed_and_passwords_are_no_arguments(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "eve", "secret", 4096)
    own = ListenerConfig(url="amqp://127.0.0.1:0", name="own", manage=True)
    door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", sasl=("SCRAM-SHA-256",), users=users)
    monkeypatch.setenv("AMQPMESH_URL", serve(listeners=[own, door]).url)
    (tmp_path / "password").write_text("correct horse\n")
    new = f"password-file={tmp_path / 'password'}"
    assert command("set", "user", "ada", new, "groups=readers", "--create").out == "user ada is enabled, in readers\n"
    assert Users.load(users).verify_plain("ada", "correct horse")
    assert command("set", "user", "ada", "disabled=true", "groups=").out == "user ada is disabled, in no group\n"
    assert command("set", "user", "ada", "listener=door", "--delete").out == "user ada deleted\n"
    assert list(Users.load(users)) == ["eve"]
    said = command("set", "user", "eve", "password=secret2")
    assert (said.status, "a password is no argument" in said.err, "secret2" in said.err) == (2, True, False)
    assert command("set", "user", "nobody", "--delete").out == "not changed: there is no user nobody\n"


def test_a_refusal_is_said_and_is_the_exit_status(managed: Served, command: Command) -> None:
    for arguments, reason in (
        (("address", "q", "attempts=9"), "the configuration has no address 'q'"),
        (("address", "news/#", "attempts=many"), "attempts: must be a whole number"),
        (("address", "news/#", "--create"), "there is one named 'news/#'"),
        (
            ("router", "id=B"),
            "router.id needs a restart: its peers know the router by it",
        ),
        (("telemetry", "sample=0.5"), "the configuration has no telemetry"),
        (("neighbour", "B", "cost=2"), "there is no such entity"),
    ):
        said = command("set", *arguments)
        assert (said.status, said.out.startswith(f"not changed: {reason}")) == (5, True), said
    assert json.loads(command("set", "address", "q", "attempts=9", "--json").out)["changed"] is False
    for wrong in (["address", "q"], ["address", "q", "a"], ["address", "q", "a=1", "a=2"]):
        assert command("set", *wrong).status == 2
    assert command("set", "address", "q", "a=1", "--delete").status == 2
    assert command("set", "connection", "1", "a=2").status == 2


def test_a_client_without_the_right_changes_nothing(served: Served, command: Command) -> None:
    said = command("set", "address", "q", "attempts=9", "--create")
    assert (said.status, said.out) == (5, "not changed: not permitted\n")
    said = command("config", "show")
    assert (said.status, said.out) == (5, "not shown: not permitted\n")


def test_a_connection_and_a_link_are_closed(managed: Served, command: Command) -> None:
    async def receive(task_status: trio.TaskStatus[None]) -> None:
        async with connect(managed.url) as client, client.receiver("hello"):
            task_status.started()
            with suppress(ConnectionClosedError):
                await trio.sleep_forever()

    managed.begin(receive)
    (link,) = (each for each in managed.router.statistics().links if each.address == "hello")
    assert command("close", str(link.number), "--link").out == f"link {link.number} closed\n"
    assert json.loads(command("close", str(link.connection), "--json").out) == {"closed": True}
    said = command("close", str(link.connection))
    assert (said.status, said.out) == (5, "not closed: there is no such entity\n")
    assert command("close", "own").status == 2


def test_the_configuration_in_force_is_shown_compared_and_saved(
    managed: Served, command: Command, tmp_path: Path
) -> None:
    command("set", "address", "q", "attempts=9", "--create")
    assert "\nchanged by management: address[q]\n" in command("status").out
    shown = command("config", "show")
    assert shown.out.startswith('# changed by management: "address[q]"\n[router]\nid = "A"\n')
    told = tomllib.loads(shown.out)
    assert told["address"] == [{"pattern": "news/#", "max_credit": 7}, {"pattern": "q", "attempts": 9}]
    assert json.loads(command("config", "show", "--json").out) == told
    file = tmp_path / "a.toml"
    said = command("config", "save", str(file))
    assert (said.status, said.out) == (0, f"saved to {file}\n")
    assert load(file) == managed.router.config
    assert "changed by management" not in file.read_text()
    said = command("config", "diff", str(file))
    assert (said.status, said.out) == (0, "nothing differs\n")
    # A file that is there is replaced if that is wanted, and its comments are not lost in silence.
    file.write_text(f"# mine\n{file.read_text()}[[address]]\npattern = 'r' # too\n")
    file.chmod(0o600)
    (tmp_path / "link.toml").symlink_to(file)
    assert command("config", "save", str(file)).status == 2
    said = command("config", "diff", str(file))
    assert (said.status, said.out) == (5, 'address[r] to { pattern = "r" } (at once)\n')
    (difference,) = json.loads(command("config", "diff", str(file), "--json").out)["differences"]
    assert difference["key"] == "address[r]"
    said = command("config", "save", str(tmp_path / "link.toml"), "--replace", "--json")
    comments = "comment not saved: # mine\ncomment not saved: # too\n"
    assert (json.loads(said.out), said.err) == ({"saved": str(tmp_path / "link.toml")}, comments)
    assert load(file) == managed.router.config
    assert (file.stat().st_mode & 0o777, file.is_symlink()) == (0o600, False)


def test_a_large_configuration_comes_in_parts(serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", manage=True)
    many = tuple(AddressConfig(pattern=f"{number}/#", attempts=9) for number in range(3000))
    monkeypatch.setenv("AMQPMESH_URL", serve(listeners=[listener], addresses=many).url)
    assert len(tomllib.loads(command("config", "show").out)["address"]) == 3000
