"""`amqpmesh check`: valid and invalid configurations."""

import tomllib
from pathlib import Path

import pytest
import trustme

from amqpmesh.router.cli.main import main
from amqpmesh.router.config.file import parse


def write(folder: Path, text: str) -> Path:
    file = folder / "a.toml"
    file.write_text(text)
    return file


def with_certificates(folder: Path, key_of_another: bool = False) -> Path:
    authority = trustme.CA()
    ours, another = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    ours.cert_chain_pems[0].write_to_path(str(folder / "a.pem"))
    (another if key_of_another else ours).private_key_pem.write_to_path(str(folder / "a.key"))
    return write(folder, "[[listener]]\nurl = 'amqps://127.0.0.1:0'\ntls = { certificate = 'a.pem', key = 'a.key' }\n")


def test_a_right_configuration_ends_with_0_and_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(with_certificates(tmp_path))]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_wrong_one_ends_with_2_and_names_file_key_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "[[listener]]\nurl = 'amqp://127.0.0.1'\nport = 1\n")
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"amqpmesh: {file}: listener[0].port: unknown key")


def test_the_key_of_another_certificate_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = with_certificates(tmp_path, key_of_another=True)
    assert main(["check", str(file)]) == 2
    assert f"{file}: listener[0].tls: the key is another certificate's\n" in capsys.readouterr().err


def test_a_file_that_holds_no_certificate_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = with_certificates(tmp_path)
    (tmp_path / "a.pem").write_text("nothing of the kind")
    assert main(["check", str(file)]) == 2
    assert f"{file}: listener[0].tls: the certificate or its key is no PEM, " in capsys.readouterr().err


def test_print_shows_the_configuration_with_all_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = with_certificates(tmp_path)
    assert main(["check", "--print", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "channel_max = 63" in printed
    assert parse(tomllib.loads(printed), file) == parse(tomllib.loads(file.read_text()), file)


def test_print_shows_where_a_router_listens_that_is_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--print", str(write(tmp_path, ""))]) == 0
    assert 'url = "amqp://127.0.0.1:5672"' in capsys.readouterr().out


def test_print_shows_what_run_with_the_same_arguments_would_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "[router]\nid = 'A'\n")
    assert (
        main(["check", "--print", str(file), "--id", "B", "--listen", "amqp://127.0.0.1:6000", "--trace-frames"]) == 0
    )
    printed = parse(tomllib.loads(capsys.readouterr().out), file)
    assert printed.id == "B"
    assert [(listener.url, listener.trace_frames) for listener in printed.listeners] == [
        ("amqp://127.0.0.1:6000", True)
    ]


def test_an_option_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(write(tmp_path, "")), "--listen", "mqtt://127.0.0.1"]) == 2
    assert "--listen: must begin with amqp://" in capsys.readouterr().err


def test_a_telemetry_directory_that_cannot_be_used_is_told_and_keeps_no_router_from_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    file = write(tmp_path, "[telemetry]\ndirectory = 'file/events'\n")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == (
        f"amqpmesh: {file}: telemetry.directory: {tmp_path}/file: Not a directory: "
        "the router runs, but records nothing until this is repaired\n"
    )
    assert main(["check", str(write(tmp_path, "[telemetry]\ndirectory = 'a/b/events'\n"))]) == 0
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "a").exists()


def refused_alike(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of `check`, after a check that `run` ends with the same error and status."""
    told = []
    for command in ("check", "run"):
        assert main([command, *arguments]) == 2
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    return told[0]


def test_the_certificate_of_another_router_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["init", "--mesh", "m"], ["issue", "A"]):
        assert main(["ca", *arguments, "--directory", str(tmp_path)]) == 0
    mesh = "[mesh]\ncertificate = 'A.pem'\nkey = 'A.key'\ntrust = 'mesh-ca.pem'\n"
    file = write(tmp_path, f"[router]\nid = 'A'\n{mesh}")
    assert main(["check", str(file), "--workers", "2"]) == 0
    capsys.readouterr()
    said = refused_alike([str(file), "--id", "B"], capsys)
    assert said == f"amqpmesh: {file}: mesh.certificate: is the certificate of 'A', and this is 'B'\n"
    (tmp_path / "mesh-ca.pem").write_text("no authority")
    assert refused_alike([str(file)], capsys).startswith(f"amqpmesh: {file}: mesh.trust: ")


def test_what_cannot_be_several_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, f"[router]\nid = '{'A' * 255}'\n")
    assert main(["check", str(file)]) == 0
    assert "must be at most 255 characters" in refused_alike([str(file), "--workers", "2"], capsys)
    file = write(tmp_path, "[[listener]]\nurl = 'amqp://127.0.0.1:0'\nname = 'workers'\n")
    said = refused_alike([str(file), "--workers", "2"], capsys)
    assert said == f"amqpmesh: {file}: listener: two listeners are named 'workers'\n"


MESH = "[mesh]\ncertificate = 'a.pem'\nkey = 'b.key'\ntrust = 'a.pem'\n"
BROKER = "[[connector]]\nrole = 'container'\nurl = 'amqps://b.example'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{MESH}[[connector]]\nurl = 'amqps://b.example'", "mesh.certificate: "),
        (f"{MESH}[[listener]]\nrole = 'mesh'\nurl = 'amqps://127.0.0.1:0'", "mesh.certificate: "),
        (f"{BROKER}tls = {{ certificate = 'a.pem', key = 'b.key' }}", "connector[0].tls: "),
        (f"{BROKER}user = 'a'\npassword = {{ env = 'NO_SUCH' }}", "connector[0].password.env: NO_SUCH is not set"),
        (f"{BROKER}user = 'a'\npassword = {{ file = 'empty' }}", "connector[0].password.file: its first line is empty"),
        (f"{BROKER}user = 'a'\npassword = {{ file = 'control' }}", "connector[0].password: "),
    ],
)
def test_settings_that_connectors_cannot_use_are_found(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_certificates(tmp_path)
    other = trustme.CA().issue_cert("other.example")
    other.private_key_pem.write_to_path(str(tmp_path / "b.key"))
    (tmp_path / "empty").write_text("\nsecret\n")
    (tmp_path / "control").write_text("secret\x07\n")
    file = write(tmp_path, text)
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"amqpmesh: {file}: {said}")
    assert "secret" not in told


def test_lines_of_the_policy_without_effect_are_told_and_the_configuration_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[[group]]\nname = 'all'\nsend = ['orders/#', 'orders/a']\n")
    file = write(tmp_path, "[policy]\nfile = 'policy.toml'\n")
    assert main(["check", str(file)]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f'amqpmesh: {policy}: group[0].send[1] adds nothing: group[0].send[0] of "all" covers it\n',
    )
    policy.write_text("[[group]]\nname = 'all'\nsend = ['orders/#']\n")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("table", "workers", "warns"),
    [
        ('[[address]]\npattern = "q"\nresumption = "required"', "2", True),
        ("[resumption]\ntimeout = 30.0", "2", True),
        ("[resumption]\ntimeout = 0.0", "2", False),
        ("[resumption]\ntimeout = 30.0", "1", False),
        ("", "2", False),
    ],
)
def test_resumption_within_one_worker_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, workers: str, warns: bool
) -> None:
    file = write(tmp_path, f"[[listener]]\nurl = 'amqp://127.0.0.1:0'\n{table}\n")
    assert main(["check", "--workers", workers, str(file)]) == 0
    assert ("resumption: works within one worker: " in capsys.readouterr().err) is warns


def test_lanes_come_back_to_their_worker_so_nothing_is_said_of_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = "[[listener]]\nurl = 'amqp://127.0.0.1:0'\nrole = 'mesh'\n"
    file = write(tmp_path, f"[mesh]\ninsecure = true\nresume = 10\n{listener}")
    assert main(["check", "--workers", "2", str(file)]) == 0
    assert capsys.readouterr().err == ""
