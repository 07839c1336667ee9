"""`amqpmesh ca`: files of an authority and of its routers, which routers accept as they are."""

import getpass
import io
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from amqpmesh.router.cli.main import main
from amqpmesh.topology.certificates import CertificateError, RouterCertificate, certificates_in, read_router
from amqpmesh.topology.signing import UntrustedError
from amqpmesh.topology.trust import Identity, Trust

DAY = 86_400


class Ended(NamedTuple):
    status: int
    out: str
    err: str


Ca = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def ca(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ca:
    """`ca("issue", "A")`: the command in that folder."""

    def run(*words: str) -> Ended:
        capsys.readouterr()
        status = main(["ca", *words, "--directory", str(folder)])
        return Ended(status, *capsys.readouterr())

    return run


@pytest.fixture
def made(ca: Ca) -> Ca:
    """Make an authority. Returns: a function that runs `amqpmesh ca` in its folder."""
    assert ca("init", "--mesh", "m1").status == 0
    return ca


def trust(folder: Path) -> Trust:
    return Trust.load((folder / "mesh-ca.pem").read_bytes(), time.time)


def identity(folder: Path, router: str) -> Identity:
    """As a router reads its files, which it was given with what is trusted now."""
    return Identity.load(
        (folder / f"{router}.pem").read_bytes(), (folder / f"{router}.key").read_bytes(), trust(folder)
    )


def certificate(folder: Path, router: str) -> RouterCertificate:
    return read_router(certificates_in((folder / f"{router}.pem").read_bytes())[0])


def states(ended: Ended) -> list[tuple[str, str]]:
    """Router and state of each line that `show` printed."""
    return [(line.split()[0], line.split()[3]) for line in ended.out.splitlines()[2:]]


# ------------------------------------------------------------------------------------------------------- init and issue


def test_a_router_takes_what_was_issued_as_it_is(made: Ca, folder: Path) -> None:
    ended = made("issue", "A")
    assert (ended.status, ended.out) == (0, "")
    assert re.fullmatch(r"router A: \S+/A.pem, \S+/A.key, until \d{4}-\d\d-\d\dT\d\d:\d\dZ\n", ended.err)
    who = identity(folder, "A")
    assert (who.router, who.mesh) == ("A", "m1")
    key_id, signature = who.sign(1, b"body")
    other = trust(folder)
    other.learn(who.certificate.der)
    other.verify("A", 1, key_id, b"body", signature)
    assert who.expires_at == pytest.approx(time.time() + 30 * DAY, abs=60)


def test_the_mesh_is_called_mesh_and_the_folder_is_here_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ca", "init"]) == 0
    assert main(["ca", "issue", "A"]) == 0
    assert identity(tmp_path, "A").mesh == "mesh"
    assert {each.name for each in tmp_path.iterdir()} == {
        *("mesh-ca.pem", "mesh-ca.key", "mesh-ca.issued.pem", "A.pem", "A.key")
    }


def test_keys_are_for_their_owners_eyes_from_the_start(
    ca: Ca, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes: dict[str, int] = {}
    replace = os.replace

    def watched(source: str, target: Path) -> None:
        modes[target.name] = stat.S_IMODE(os.stat(source).st_mode)
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    umask = os.umask(0)
    try:
        assert ca("init").status == 0
        assert ca("issue", "A").status == 0
    finally:
        os.umask(umask)
    keys = {"mesh-ca.key": 0o600, "A.key": 0o600}
    assert modes == {"mesh-ca.pem": 0o644, "mesh-ca.issued.pem": 0o644, "A.pem": 0o644, **keys}
    assert {name: stat.S_IMODE((folder / name).stat().st_mode) for name in modes} == modes


@pytest.mark.parametrize("words", [["init"], ["issue", "A"]])
def test_nothing_is_overwritten_without_force(made: Ca, folder: Path, words: list[str]) -> None:
    assert made("issue", "A").status == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    ended = made(*words)
    assert ended.status == 1
    assert re.fullmatch(r"amqpmesh: \S+ exists already; --force replaces it\n", ended.err)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert made(*words, "--force").status == 0
    own = "A" if words[0] == "issue" else "mesh-ca"
    for name in (f"{own}.pem", f"{own}.key"):
        assert (folder / name).read_bytes() != before[name]


@pytest.mark.parametrize("missing", ["A.pem", "A.key"])
def test_one_of_the_two_files_is_enough_to_refuse(made: Ca, folder: Path, missing: str) -> None:
    assert made("issue", "A").status == 0
    (folder / missing).unlink()
    assert made("issue", "A").status == 1
    assert not (folder / missing).exists()


def test_a_new_authority_has_issued_nothing(made: Ca, folder: Path) -> None:
    assert made("issue", "A").status == 0
    assert made("init", "--force").status == 0
    assert states(made("show")) == []
    with pytest.raises(CertificateError, match="another mesh"):
        identity(folder, "A")


def test_how_long_a_certificate_is_good_can_be_said(ca: Ca, folder: Path) -> None:
    assert ca("init", "--days", "10").status == 0
    assert ca("issue", "A", "--days", "0.5").status == 0
    assert certificate(folder, "A").not_after == pytest.approx(time.time() + DAY / 2, abs=60)
    ended = ca("issue", "B")
    assert certificate(folder, "B").not_after == pytest.approx(time.time() + 10 * DAY, abs=60)
    assert "ca renew --authority" in ended.err


def test_a_worker_is_no_router_of_its_own(made: Ca, folder: Path) -> None:
    assert made("issue", "A").status == 0
    ended = made("issue", "A.1")
    assert (ended.status, ended.err) == (2, "amqpmesh: A.1 is a worker of A, whose certificate is valid for both\n")
    assert not (folder / "A.1.key").exists()
    assert made("issue", "B.1").status == 0
    assert made("issue", "B").status == 2
    assert made("issue", "B.example").status == 0


def test_nor_is_it_one_that_is_renewed(made: Ca, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("issue", "A", "--days", "0.5").status == 0
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * DAY)
    assert made("issue", "A.1").status == 0, "the one of A has ended"
    ended = made("renew", "A")
    assert (ended.status, ended.err) == (2, "amqpmesh: A.1 is a worker of A, whose certificate is valid for both\n")


@pytest.mark.parametrize("router", ["a b", "a/b", "../a", "a@b", "", "x" * 256, "mesh-ca", "mesh-ca.issued", "\u00e9"])
def test_an_invalid_router_id_is_told(made: Ca, folder: Path, router: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("issue", "renew", "revoke"):
        with pytest.raises(SystemExit) as ended:
            made(action, router)
        assert ended.value.code == 2
        assert "argument ROUTER: must" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["init", "--mesh", "Upper"],
        ["init", "--mesh", ""],
        ["issue", "A", "--days", "0"],
        ["issue", "A", "--days", "soon"],
        ["issue", "A", "--days", "36501"],
        ["issue"],
        ["renew"],
        ["renew", "A", "--authority"],
        ["revoke", "A", "--serial", "x"],
        [],
    ],
)
def test_arguments_that_make_no_sense_end_with_2(ca: Ca, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ca(*words)
    assert ended.value.code == 2


def test_several_at_a_time_lose_nothing(made: Ca, folder: Path) -> None:
    command = [sys.executable, "-m", "amqpmesh", "ca", "issue", "--directory", str(folder)]
    running = [subprocess.Popen([*command, f"R{number}"], stderr=subprocess.DEVNULL) for number in range(5)]
    assert [each.wait(60) for each in running] == [0] * 5
    assert {router for router, _ in states(made("show"))} == {f"R{number}" for number in range(5)}


# ------------------------------------------------------------------------------------------------------- the passphrase


@pytest.fixture
def secret(tmp_path: Path, ca: Ca) -> list[str]:
    """Make an authority whose key has a passphrase. Returns: the arguments with the passphrase."""
    (tmp_path / "passphrase").write_text("very secret\n")
    arguments = ["--passphrase-file", str(tmp_path / "passphrase")]
    assert ca("init", *arguments).status == 0
    return arguments


def test_the_key_of_the_authority_may_have_a_passphrase(ca: Ca, folder: Path, secret: list[str]) -> None:
    assert b"ENCRYPTED" in (folder / "mesh-ca.key").read_bytes()
    for words in (["issue", "A"], ["renew", "A"], ["renew", "--authority"], ["revoke", "A"], ["show"]):
        assert ca(*words, *(secret if words[0] != "show" else ())).status == 0
    assert b"ENCRYPTED" not in (folder / "A.key").read_bytes()  # a router starts without anybody there


def test_without_the_passphrase_nothing_is_issued(ca: Ca, folder: Path, secret: list[str], tmp_path: Path) -> None:
    ended = ca("issue", "A")
    assert (ended.status, ended.err) == (2, f"amqpmesh: {folder}/mesh-ca.key: file: the key has a passphrase\n")
    (tmp_path / "passphrase").write_text("guess\n")
    ended = ca("issue", "A", *secret)
    assert (ended.status, "wrong passphrase" in ended.err) == (2, True)
    (tmp_path / "passphrase").write_text("\n")
    assert ca("issue", "A", *secret).status == 2
    (tmp_path / "passphrase").unlink()
    ended = ca("issue", "A", *secret)
    assert (ended.status, "No such file" in ended.err) == (2, True)
    assert not (folder / "A.key").exists()


def test_a_person_is_asked_for_the_passphrase(
    ca: Ca, folder: Path, secret: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "very secret"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", answer)
    assert ca("issue", "A").status == 0
    assert asked == [f"passphrase of {folder}/mesh-ca.key: "]


def test_a_passphrase_that_no_key_has_is_told(made: Ca, tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_text("secret\n")
    ended = made("issue", "A", "--passphrase-file", str(tmp_path / "passphrase"))
    assert (ended.status, "the key has no passphrase" in ended.err) == (2, True)


# ----------------------------------------------------------------------------------------------------- renew and revoke


def test_a_renewed_certificate_follows_the_one_before_without_a_gap(made: Ca, folder: Path) -> None:
    assert made("issue", "A", "--days", "2").status == 0
    before, key = identity(folder, "A"), (folder / "A.key").read_bytes()
    ended = made("renew", "A")
    assert (ended.status, "A.key" in ended.err) == (0, False)
    assert (folder / "A.key").read_bytes() == key
    after = identity(folder, "A")
    assert after.expires_at > before.expires_at + 27 * DAY
    believes = trust(folder)
    for each in (before, after):
        believes.learn(each.certificate.der)
        believes.verify("A", 1, each.certificate.key_id, b"", each.sign(1, b"")[1])
    assert states(made("show")) == [("A", "good"), ("A", "good")]


def test_renewing_needs_no_file_of_the_router(made: Ca, folder: Path) -> None:
    assert made("issue", "A").status == 0
    key = (folder / "A.key").read_bytes()
    for name in ("A.pem", "A.key"):
        (folder / name).unlink()
    assert made("renew", "A").status == 0
    assert not (folder / "A.key").exists()
    (folder / "A.key").write_bytes(key)
    assert identity(folder, "A").router == "A"


def test_a_certificate_that_has_ended_can_be_renewed(made: Ca, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("issue", "A", "--days", "2").status == 0
    assert made("renew", "A", "--days", "1").status == 0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 5 * DAY)
    assert states(made("show")) == [("A", "ended"), ("A", "ended")]
    assert made("issue", "B").status == 0
    # Of what has ended only the last of each router is kept, and its key with it.
    assert states(made("show")) == [("A", "ended"), ("B", "good")]
    assert made("renew", "A").status == 0
    assert states(made("show")) == [("A", "good"), ("B", "good")]
    assert identity(folder, "A").router == "A"


def test_a_router_without_a_certificate_cannot_renew_or_lose_one(made: Ca) -> None:
    for action in ("renew", "revoke"):
        ended = made(action, "A")
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("amqpmesh: A has no ")


def test_a_renewed_authority_is_trusted_by_and_trusts_those_before(made: Ca, folder: Path) -> None:
    assert made("issue", "A").status == 0
    assert made("issue", "C").status == 0
    assert made("revoke", "C").status == 0
    before = trust(folder)
    assert made("renew", "--authority", "--days", "4000").status == 0
    assert made("issue", "B").status == 0
    for each in (before, trust(folder)):
        assert {each.router_of(certificate(folder, router).der) for router in ("A", "B")} == {"A", "B"}
        with pytest.raises(UntrustedError, match="revoked"):
            each.router_of(certificate(folder, "C").der)


def test_every_certificate_of_a_revoked_router_is_refused(made: Ca, folder: Path) -> None:
    for words in (["issue", "A"], ["issue", "B"]):
        assert made(*words).status == 0
    first = certificate(folder, "A")
    assert made("renew", "A").status == 0
    ended = made("revoke", "A")
    assert (ended.status, ended.err) == (0, f"revoked 2 of A: list 1 is in {folder}/mesh-ca.pem\n")
    believes = trust(folder)
    for each in (first, certificate(folder, "A")):
        with pytest.raises(UntrustedError, match="revoked"):
            believes.router_of(each.der)
    assert believes.router_of(certificate(folder, "B").der) == "B"
    assert states(made("show")) == [("A", "revoked"), ("A", "revoked"), ("B", "good")]
    assert made("revoke", "A").status == 2
    assert "--force" in made("renew", "A").err
    assert made("issue", "A", "--force").status == 0
    assert trust(folder).router_of(certificate(folder, "A").der) == "A"


def test_one_certificate_can_be_revoked_by_its_serial(made: Ca, folder: Path) -> None:
    assert made("issue", "A").status == 0
    first = certificate(folder, "A")
    assert made("issue", "A", "--force").status == 0
    assert made("issue", "B").status == 0
    other = f"{certificate(folder, 'B').serial:x}"
    assert made("revoke", "A", "--serial", other).status == 2
    assert made("revoke", "A", "--serial", f"{first.serial:x}", "--serial", other).status == 2
    shown = made("show").out
    assert f"{first.serial:x}" in shown
    assert made("revoke", "A", "--serial", f"{first.serial:x}").status == 0
    assert trust(folder).router_of(certificate(folder, "A").der) == "A"
    with pytest.raises(UntrustedError, match="revoked"):
        trust(folder).router_of(first.der)
    assert made("renew", "A").status == 0  # its key is another


def test_lists_are_numbered_and_hold_what_has_not_ended(
    made: Ca, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for router, days in (("A", "1"), ("B", "30"), ("C", "30")):
        assert made("issue", router, "--days", days).status == 0
    assert made("revoke", "A").status == 0
    assert made("revoke", "B").status == 0
    [latest] = trust(folder).revocations()
    assert (latest.number, len(latest.serials)) == (2, 2)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    assert made("issue", "D").status == 0
    assert made("revoke", "C").status == 0
    [latest] = trust(folder).revocations()
    assert latest.number == 3
    assert latest.serials == {certificate(folder, router).serial for router in ("B", "C")}


# ------------------------------------------------------------------------------------------------------- show and files


def test_show_tells_the_mesh_and_what_was_issued_and_needs_no_key(made: Ca, folder: Path) -> None:
    assert made("show").out == f"{made('show').out.splitlines()[0]}\n"
    assert made("issue", "A").status == 0
    (folder / "mesh-ca.key").unlink()
    ended = made("show")
    assert (ended.status, ended.err) == (0, "")
    first, headings, line = ended.out.splitlines()
    assert re.fullmatch(r"mesh m1, authority until \d{4}-\d\d-\d\dT\d\d:\d\dZ, nothing revoked", first)
    assert headings.split() == ["ROUTER", "FROM", "UNTIL", "STATE", "SERIAL"]
    assert line.split()[0] == "A"
    assert line.split()[3:] == ["good", f"{certificate(folder, 'A').serial:x}"]


def test_show_tells_that_the_authority_has_ended(made: Ca, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4000 * DAY)
    assert made("show").out == "mesh m1, authority ended, nothing revoked\n"
    assert made("issue", "A").err == "amqpmesh: the authority's certificate has expired\n"


@pytest.mark.parametrize("words", [["issue", "A"], ["renew", "A"], ["revoke", "A"], ["show"]])
@pytest.mark.parametrize(
    ("damage", "content"),
    [
        *(("mesh-ca.pem", content) for content in (None, b"", b"garbage")),
        *(("mesh-ca.issued.pem", content) for content in (b"", b"garbage")),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    made: Ca, folder: Path, words: list[str], damage: str, content: bytes | None
) -> None:
    assert made("issue", "B").status == 0
    if content is None:
        (folder / damage).unlink()
    else:
        (folder / damage).write_bytes(content)
    ended = made(*words)
    assert ended.status == 2
    assert ended.err.startswith(f"amqpmesh: {folder}/{damage}: file: ")
    assert ended.err.count("\n") == 1
    assert not (folder / "A.key").exists()


def test_the_key_of_another_authority_is_told(made: Ca, folder: Path) -> None:
    kept = (folder / "mesh-ca.key").read_bytes()
    assert made("init", "--force").status == 0
    (folder / "mesh-ca.key").write_bytes(kept)
    ended = made("issue", "A")
    assert (ended.status, "another certificate" in ended.err) == (2, True)


@pytest.mark.parametrize("words", [["init"], ["show"], ["issue", "A"]])
def test_a_folder_that_is_not_there_is_told(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ca", *words, "--directory", str(tmp_path / "no")]) in (1, 2)
    assert "No such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(
    made: Ca, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = made("issue", "A")
    assert (ended.status, "No space left" in ended.err) == (1, True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
