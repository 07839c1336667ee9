"""`amqpmesh send` beside a router: messages, output, and exit statuses."""

import getpass
import io
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme

from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.config.file import ListenerConfig, PlaceConfig, TlsConfig
from amqpmesh.router.config.users import add_user
from tests.support.processes.router_thread import PATIENCE, Command, Serve, Served

EXPLANATION = 'waiting for credit on "hello": no receiver anywhere'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bodies(came: list) -> list:
    return [message.body for message in came]


def standard_input(monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes) -> None:
    (folder / "stdin").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", (folder / "stdin").open())


# --------------------------------------------------------------------------------------------------------- what is sent


def test_one_message_is_accepted_by_a_receiver(served: Served, command: Command) -> None:
    came = served.receive("hello")
    said = command("send", "hello", "--body", "hi")
    assert (said.status, said.out) == (0, "")
    assert re.fullmatch(r"accepted by receiver in \d+\.\d ms\n", said.err)
    assert bodies(came) == ["hi"]


def test_each_line_of_standard_input_is_a_message(
    served: Served, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = served.receive("hello")
    standard_input(monkeypatch, tmp_path, b"one\n\n two \r\nb\xffd\n" + b"x" * 200_000 + b"\nlast")
    said = command("send", "hello")
    assert said.status == 0
    assert bodies(came) == ["one", "", " two ", b"b\xffd", "x" * 200_000, "last"]
    assert said.lines[-1].startswith("sent 6 in ")


def test_lines_are_sent_as_they_come(served: Served, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))

    def decide(delivery: Delivery) -> None:
        delivery.accept()
        if delivery.message.body == "first":
            os.write(writing, b"second\n")
        else:
            os.close(writing)

    came = served.receive("hello", decide)
    os.write(writing, b"first\n")
    assert command("send", "hello").status == 0
    assert bodies(came) == ["first", "second"]


def test_no_line_is_no_message(
    served: Served, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, tmp_path, b"")
    said = command("send", "hello")
    assert (said.status, said.lines) == (0, ["sent 0"])


def test_a_count_alone_sends_numbers(served: Served, command: Command) -> None:
    came = served.receive("hello")
    assert command("send", "hello", "--count", "3").status == 0
    assert bodies(came) == ["1", "2", "3"]


def test_a_size_sends_binary_so_many_times(served: Served, command: Command) -> None:
    came = served.receive("hello")
    assert command("send", "hello", "--count", "2", "--size", "100000").status == 0
    assert bodies(came) == [bytes(100_000)] * 2


@pytest.mark.parametrize("what", [["--body", "hi"], ["--count", "2"], ["--count", "2", "--size", "3"], []])
def test_each_message_has_the_given_to_and_user_id(
    what: list[str], served: Served, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = served.receive("hello")
    lines = b"one\ntwo\nb\xffd\n"
    standard_input(monkeypatch, tmp_path, lines)
    assert command("send", "hello", *what).status == 0
    plain = [*came]
    came.clear()
    standard_input(monkeypatch, tmp_path, lines)
    assert command("send", "hello", "--to", "café/7@A", "--user-id", "zoë", *what).status == 0
    assert came == [replace(message, to="café/7@A", user_id="zoë".encode()) for message in plain]
    assert {(message.to, message.user_id) for message in plain} == {(None, None)}


@pytest.mark.parametrize("size", [0, 3, 300_000])
def test_a_file_is_one_message_of_binary(size: int, served: Served, command: Command, tmp_path: Path) -> None:
    came = served.receive("hello")
    body = bytes(range(256)) * 1200
    (tmp_path / "film").write_bytes(body[:size])
    said = command("send", "hello", "--file", str(tmp_path / "film"), "--to", "x", "--user-id", "alice")
    assert said.status == 0
    assert re.fullmatch(r"accepted by receiver in \d+\.\d ms\n", said.err)
    assert [(message.body, message.to, message.user_id) for message in came] == [(body[:size], "x", b"alice")]


def test_standard_input_may_be_one_message(served: Served, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
    begun = threading.Event()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(b"first\n")
            pipe.flush()
            begun.wait(PATIENCE)
            pipe.write(b"last")

    parts = served.stream("hello", begun.set)
    thread = threading.Thread(target=write)
    thread.start()
    assert command("send", "hello", "--file", "-", "--settled").status == 0
    thread.join()
    served.until(lambda: b"".join(parts) == b"first\nlast")


@pytest.mark.parametrize("wrong", [["--count", "2"], ["--rate", "1"]])
def test_a_file_is_sent_once(wrong: list[str], command: Command) -> None:
    said = command("send", "hello", "--file", __file__, *wrong)
    assert (said.status, said.lines) == (2, ["amqpmesh: --file sends one message: it cannot have --count or --rate"])


def test_a_file_that_cannot_be_read_is_named(command: Command, tmp_path: Path) -> None:
    for file, reason in ((tmp_path / "no", "No such file or directory"), (tmp_path, "Is a directory")):
        said = command("send", "hello", "--file", str(file))
        assert (said.status, said.lines) == (2, [f"amqpmesh: {file}: {reason}"])


def test_a_file_that_is_rejected_is_told_as_others_are(served: Served, command: Command) -> None:
    served.receive("hello", lambda delivery: delivery.reject("amqp:not-allowed", "spam"))
    said = command("send", "hello", "--file", __file__)
    assert said.status == 1
    assert "spam" in said.lines[0]
    assert re.fullmatch(r"sent 1 in .*: rejected 1; .*", said.lines[1])


def test_ten_thousand_are_pipelined(served: Served, command: Command) -> None:
    came = served.receive("hello")
    said = command("send", "hello", "--count", "10000")
    assert said.status == 0
    assert bodies(came) == [str(number) for number in range(1, 10_001)]
    assert re.fullmatch(
        r"sent 10,000 in [\d.]+ s \([\d,]+/s\): accepted 10,000; latency p50 [\d.]+ m?s, p99 [\d.]+ m?s", said.lines[-1]
    )


def test_no_more_wait_for_their_outcomes_than_find_room(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpmesh.router.cli.commands.send.IN_FLIGHT", 3)
    held: list[Delivery] = []

    def decide(delivery: Delivery) -> None:
        held.append(delivery)
        assert len(held) <= 3
        if len(held) == 3 or delivery.message.body == "8":
            while held:
                held.pop().accept()

    served.receive("hello", decide)
    assert command("send", "hello", "--count", "8").status == 0


def test_a_settled_message_has_no_outcome(served: Served, command: Command) -> None:
    settled: list[bool] = []
    served.receive("hello", lambda delivery: settled.append(delivery.is_settled) or delivery.accept())
    said = command("send", "hello", "--settled", "--count", "20")
    assert said.status == 0
    assert said.lines[-1].endswith("/s): settled 20")
    served.until(lambda: len(settled) == 20)  # nobody told the command whether they had come
    assert settled == [True] * 20


def test_a_rate_is_kept_on_the_average(served: Served, command: Command) -> None:
    """A late turn does not move the turns after it: they would end half a second late."""
    at: list[float] = []

    def decide(delivery: Delivery) -> None:
        at.append(time.monotonic())
        if len(at) == 5:
            time.sleep(0.5)  # the router stands still, and so does the receiver
        delivery.accept()

    served.receive("hello", decide, credit=1)
    assert command("send", "hello", "--count", "21", "--rate", "20").status == 0
    assert 0.9 < at[-1] - at[0] < 1.4


# ------------------------------------------------------------------------------------------------------------ summaries


def test_a_message_that_is_not_accepted_ends_the_command_with_1_and_the_first_reason(
    served: Served, command: Command
) -> None:
    decisions = iter(
        [Delivery.accept, lambda d: d.reject("amqp:not-allowed", "spam"), Delivery.release, Delivery.modify]
    )
    served.receive("hello", lambda delivery: next(decisions)(delivery), credit=1)
    said = command("send", "hello", "--count", "4")
    assert (said.status, said.out) == (1, "")
    assert said.lines[-2] == "first message not accepted: rejected: amqp:not-allowed: spam"
    assert "/s): accepted 1, rejected 1, released 1, modified 1; latency p50 " in said.lines[-1]


def test_a_reason_cannot_control_the_terminal(served: Served, command: Command) -> None:
    served.receive("hello", lambda delivery: delivery.reject("amqp:not-allowed", "\x1b]0;title\x07\nforged"))
    said = command("send", "hello", "--body", "hi")
    assert said.lines[0].endswith(r"rejected: amqp:not-allowed: \u001b]0;title\u0007\u000aforged")


def test_the_summary_may_be_json(served: Served, command: Command) -> None:
    served.receive("hello")
    said = command("send", "hello", "--count", "5", "--json")
    assert (said.status, said.out) == (0, "")
    (line,) = said.lines
    summary = json.loads(line)
    assert {key: summary[key] for key in ("sent", "accepted", "rejected", "first_failure")} == {
        "sent": 5,
        "accepted": 5,
        "rejected": 0,
        "first_failure": None,
    }
    assert 0 < summary["latency"]["p50"] <= summary["latency"]["p99"] <= summary["seconds"] * 1.01


# ------------------------------------------------------------------------------------------------------- the other ends


def test_a_message_that_is_too_large_for_the_peer_ends_with_2_and_does_not_count(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(max_message_size=1000)
    served.receive("hello")
    standard_input(monkeypatch, tmp_path, b"one\n" + b"x" * 1000 + b"\nthree")
    said = command("send", "hello", "--url", served.url)
    assert said.status == 2
    assert said.lines[0].startswith("sent 1 in ")
    assert re.fullmatch(r"amqpmesh: a message of 10\d\d octets: the peer takes 1000", said.lines[1])


def test_a_sender_that_waits_is_told_why_and_ends_with_4(served: Served, command: Command) -> None:
    said = command("send", "hello", "--body", "hi", "--timeout", "2")
    assert (said.status, said.out) == (4, "")
    assert said.lines == [EXPLANATION, "amqpmesh: timed out: waited 2 s for credit"]


def test_where_a_receiver_is_attached_its_own_reason_is_told(served: Served, command: Command) -> None:
    served.receive("hello", credit=0)
    said = command("send", "hello", "--file", __file__, "--timeout", "2")
    assert said.lines == [
        'waiting for credit on "hello": receivers give no credit',
        "amqpmesh: timed out: waited 2 s for credit",
    ]


def test_it_is_said_once_and_the_sender_goes_on_when_there_is_credit(served: Served, command: Command) -> None:
    receiving = threading.Timer(1.5, lambda: served.receive("hello"))
    receiving.start()
    said = command("send", "hello", "--body", "hi", "--timeout", "20")
    assert said.status == 0
    assert [said.lines[0], len(said.lines)] == [EXPLANATION, 2]
    receiving.join()


def test_an_outcome_that_does_not_come_ends_with_4_and_is_in_doubt(served: Served, command: Command) -> None:
    held: list[Delivery] = []
    served.receive("hello", held.append)
    said = command("send", "hello", "--count", "2", "--timeout", "0.3")
    assert said.status == 4
    assert said.lines[-1] == "amqpmesh: timed out: waited 0.3 s for an outcome"
    assert "in doubt 2" in said.lines[-2]


def test_the_time_begins_anew_with_each_outcome(served: Served, command: Command) -> None:
    def decide(delivery: Delivery) -> None:
        time.sleep(0.3)
        delivery.accept()

    served.receive("hello", decide, credit=1)
    assert command("send", "hello", "--count", "5", "--timeout", "1.2").status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_1_and_a_summary(served: Served, command: Command, number: signal.Signals) -> None:
    count = 0

    def decide(delivery: Delivery) -> None:
        nonlocal count
        count += 1
        if count <= 3:
            delivery.accept()
        elif count == 20:  # the command has sent others meanwhile, so it has heard these outcomes
            os.kill(os.getpid(), number)

    served.receive("hello", decide)
    said = command("send", "hello", "--count", "1000", "--rate", "100")
    assert said.status == 1
    assert said.lines[-1] == "amqpmesh: stopped"
    assert "accepted 3, in doubt " in said.lines[-2]


def test_a_port_where_nobody_listens_ends_with_3(command: Command) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"amqp://127.0.0.1:{unused.getsockname()[1]}"
        said = command("send", "hello", "--body", "hi", "--url", url)
    assert (said.status, said.err) == (3, f"amqpmesh: {url}: Connection refused\n")


def test_a_peer_that_does_not_speak_ends_with_4(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        said = command("send", "hello", "--body", "hi", "--url", url, "--timeout", "0.3")
    assert (said.status, said.err) == (4, "amqpmesh: timed out: waited 0.3 s for the connection\n")


def test_a_link_that_is_refused_ends_with_3(served: Served, command: Command) -> None:
    said = command("send", "hello@elsewhere", "--body", "hi")
    assert said.status == 3
    assert "amqp:not-found" in said.lines[-1]


def test_a_router_that_ends_while_we_wait_ends_it_with_3(served: Served, command: Command) -> None:
    async def end_it(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while not served.router.statistics().links:
            await trio.sleep(0.01)
        served.stop()

    served.begin(end_it)
    said = command("send", "hello", "--body", "hi")
    assert (said.status, len(said.lines)) == (3, 1)
    assert "amqp:connection:forced" in said.err


# ----------------------------------------------------------------------------------------------------------- who we are


@pytest.fixture
def guarded(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Start a router that asks for a password."""
    add_user(tmp_path / "users.toml", "alice", "correct horse")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users=tmp_path / "users.toml")
    served = serve(listeners=[listener])
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    return served


def test_a_password_from_a_file_lets_us_in_and_a_wrong_one_ends_with_3(
    guarded: Served, command: Command, tmp_path: Path
) -> None:
    guarded.receive("hello")
    (tmp_path / "password").write_text("correct horse\n")
    arguments = ("send", "hello", "--body", "hi", "--user", "alice", "--password-file", str(tmp_path / "password"))
    assert command(*arguments).status == 0
    (tmp_path / "password").write_text("wrong\n")
    said = command(*arguments)
    assert (said.status, said.out) == (3, "")
    assert said.err.startswith("amqpmesh: not let in")
    assert "wrong" not in said.err


def test_nobody_in_particular_is_not_let_in_and_told_how(guarded: Served, command: Command) -> None:
    said = command("send", "hello", "--body", "hi")
    assert said.status == 3
    assert said.err.endswith("ANONYMOUS is offered; log in with --user, or with --certificate over TLS\n")


def test_a_peer_that_a_redirect_names_does_not_get_the_password_and_no_useless_option_is_advised(
    serve: Serve, command: Command, tmp_path: Path
) -> None:
    """`127.1` is this machine, but nobody can tell by the look of it."""
    users = tmp_path / "users.toml"
    add_user(users, "alice", "correct horse")
    (tmp_path / "password").write_text("correct horse")
    there = serve(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users=users, insecure=True)])
    place = PlaceConfig(port=int(there.url.rpartition(":")[2]))
    strong = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users=users, redirect=place)
    url = serve(listeners=[strong]).url.replace("127.0.0.1", "127.1")
    who = ("--user", "alice", "--password-file", str(tmp_path / "password"))
    for also in ((), ("--insecure",)):
        said = command("send", "hello", "--body", "hi", "--url", url, *who, *also)
        assert said.status == 3
        assert said.err.endswith("where a redirect leads, PLAIN is used only under TLS with a verified certificate\n")


def test_others_are_not_shown_the_password_unless_that_is_said(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`127.1` is this machine, but nobody can tell by the look of it."""
    users = tmp_path / "users.toml"
    add_user(users, "alice", "correct horse")
    served = serve(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users=users, insecure=True)])
    served.receive("hello")
    (tmp_path / "password").write_text("correct horse")
    who = ("--user", "alice", "--password-file", str(tmp_path / "password"))
    there = ("send", "hello", "--body", "hi", "--url", served.url.replace("127.0.0.1", "127.1"), *who)
    said = command(*there)
    assert said.status == 3
    assert said.err.endswith("; without TLS others could read the password, so PLAIN needs --insecure\n")
    assert command(*there, "--insecure").status == 0


def test_a_password_is_asked_for_on_a_terminal(
    guarded: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.receive("hello")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: "correct horse")
    assert command("send", "hello", "--body", "hi", "--user", "alice").status == 0


def test_a_certificate_says_who_we_are(
    serve: Serve, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, certificate in (
        ("server", authority.issue_cert("localhost")),
        ("alice", authority.issue_cert("alice.org")),
    ):
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
    tls = TlsConfig(
        certificate=tmp_path / "server.pem", key=tmp_path / "server.key", trust=tmp_path / "ca.pem", client="required"
    )
    served = serve(listeners=[ListenerConfig(url="amqps://localhost:0", sasl=("EXTERNAL",), tls=tls)])
    users: list[str | None] = []
    served.receive(
        "hello", lambda d: (d.accept(), users.extend(c.user for c in served.router.statistics().connections))
    )
    monkeypatch.chdir(tmp_path)
    arguments = ("send", "hello", "--body", "hi", "--url", served.url, "--trust", "ca.pem")
    assert command(*arguments, "--certificate", "alice.pem", "--key", "alice.key").status == 0
    assert "alice.org" in users
    assert command(*arguments).status == 3
    said = command(*arguments, "--certificate", "alice.pem", "--key", "server.key")
    assert said.status == 2
    assert "alice.pem" in said.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--url", "http://127.0.0.1"], "--url http://127.0.0.1: must begin with amqp:// or amqps://"),
        (["--url", "amqp://alice:secret@127.0.0.1"], "takes no user and no password"),
        (["--password-file", "f"], "--password-file needs --user"),
        (["--user", "alice"], "--user needs --password-file, because there is no terminal to ask"),
        (["--user", "alice", "--password-file", "/nowhere"], "/nowhere: No such file or directory"),
        (["--trust", "a.pem"], "--trust does nothing without TLS"),
        (["--url", "amqps://127.0.0.1", "--trust", "/nowhere.pem"], "/nowhere.pem: No such file or directory"),
        (["--url", "amqps://127.0.0.1", "--key", "a.key"], "a key its certificate"),
    ],
)
def test_options_that_make_no_sense_end_with_2(
    arguments: list[str], reason: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, tmp_path, b"")
    said = command("send", "hello", "--body", "hi", *arguments)
    assert (said.status, said.out) == (2, "")
    assert reason in said.err
    assert len(said.lines) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--count", "0"], "argument --count: must be a whole number from 1 to 1000000000000, not '0'"),
        (["--count", "1.5"], "argument --count: must be a whole number from 1 to 1000000000000, not '1.5'"),
        (["--size", "-1"], "argument --size: must be a whole number from 0 to 268435456, not '-1'"),
        (["--size", "99999999999999"], "must be a whole number from 0 to 268435456, not '99999999999999'"),
        (["--rate", "0"], "argument --rate: must be a number, more than 0, not '0'"),
        (["--rate", "inf"], "argument --rate: must be a number, more than 0, not 'inf'"),
        (["--timeout", "0"], "argument --timeout: must be a number of seconds, more than 0, not '0'"),
        (["--timeout", "nan"], "argument --timeout: must be a number of seconds, more than 0, not 'nan'"),
        (["--body", "a", "--size", "1"], "argument --size: not allowed with argument --body"),
        (["--user", ""], "argument --user: must not be empty"),
        (["--to", ""], "argument --to: must not be empty"),
        (["--to", os.fsdecode(b"caf\xe9")], "argument --to: must be UTF-8"),
        (["--user-id", ""], "argument --user-id: must not be empty"),
    ],
)
def test_arguments_that_make_no_sense_end_with_2_and_what_is_valid(
    arguments: list[str], reason: str, command: Command
) -> None:
    said = command("send", "hello", *arguments)
    assert (said.status, said.out) == (2, "")
    assert said.lines[-1].endswith(reason)


@pytest.mark.parametrize("name", ["send", "receive"])
@pytest.mark.parametrize(("address", "reason"), [("", "must not be empty"), (os.fsdecode(b"caf\xe9"), "must be UTF-8")])
def test_an_address_is_some_utf_8(name: str, address: str, reason: str, command: Command) -> None:
    said = command(name, address, "--count", "1")
    assert (said.status, said.out) == (2, "")
    assert said.lines[-1] == f"amqpmesh {name}: error: argument ADDRESS: {reason}"
