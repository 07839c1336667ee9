"""The configuration of tokens: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.file import ListenerConfig, lines, load
from tests.support.data.tokens import key, key_set

ISSUER = '[[token_issuer]]\nissuer = "https://i.example/"\naudience = ["mesh"]\njwks = "keys.json"\n'
KEY = '[[token_key]]\nname = "k"\nkeys = [{ file = "secret" }]\naudience = ["amqps://m"]\n'
LISTENER = '[[listener]]\nurl = "amqp://127.0.0.1:0"\n'
REMOTE = '[[listener]]\nurl = "amqp://0.0.0.0:0"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys.json").write_bytes(key_set(key("one")))
    (tmp_path / "secret").write_text("c2VjcmV0")
    (tmp_path / "policy.toml").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (ISSUER.replace('"mesh"', ""), "token_issuer[0].audience"),
        (ISSUER.replace("https://i.example/", ""), "token_issuer[0].issuer"),
        (ISSUER.replace('jwks = "keys.json"', ""), "token_issuer[0].jwks"),
        (ISSUER.replace('"keys.json"', '"none.json"'), "token_issuer[0].jwks"),
        (ISSUER + 'jwks_url = "https://i.example/keys"', "token_issuer[0].jwks_url"),
        (ISSUER + 'trust = "keys.json"', "token_issuer[0].trust"),
        *(
            (ISSUER.replace('jwks = "keys.json"', f'jwks_url = "{url}"'), "token_issuer[0].jwks_url")
            for url in (
                "http://i.example/",
                "https://",
                "https://u:p@h/",
                "https://h/#x",
                "https://h:x/",
                "file:///etc",
            )
        ),
        (ISSUER + 'algorithms = ["none"]', "token_issuer[0].algorithms"),
        (ISSUER + 'algorithms = ["HS256"]', "token_issuer[0].algorithms"),
        (ISSUER + "algorithms = []", "token_issuer[0].algorithms"),
        (ISSUER + "refresh = 1", "token_issuer[0].refresh"),
        (ISSUER + 'scopes = "scope"', "token_issuer[0].scopes"),
        (ISSUER + 'groups = "groups"', "token_issuer[0].groups"),
        (ISSUER + 'tenants = ["a"]', "token_issuer[0].tenants"),
        (ISSUER + 'scope_aliases = { a = "b" }', "token_issuer[0].scope_aliases"),
        (ISSUER + ISSUER, "token_issuer"),
        (KEY + KEY, "token_key"),
        (KEY.replace('{ file = "secret" }', ""), "token_key[0].keys"),
        (KEY.replace('"secret"', '"none"'), "token_key[0].keys[0].file"),
        (KEY + 'tenant = "a"', "token_key[0].tenant"),
        (KEY + 'tenant = "a/b"', "token_key[0].tenant"),
        ("[tokens]\nsize = 100000", "tokens.size"),
        (LISTENER + 'sasl = ["XOAUTH2"]', "listener[0].sasl"),
        (KEY + LISTENER + 'sasl = ["OAUTHBEARER"]', "listener[0].sasl"),
        (LISTENER + "cbs = true", "listener[0].cbs"),
        (ISSUER + LISTENER + 'sasl = ["MSSBCBS"]', "listener[0].cbs"),
        (ISSUER + REMOTE + 'sasl = ["XOAUTH2"]', "listener[0].sasl"),
        (ISSUER + REMOTE + 'sasl = ["PLAIN"]\ninsecure = true\ncbs = true', "listener[0].users"),
        (ISSUER + REMOTE + "cbs = true", "listener[0].cbs"),
        (ISSUER + LISTENER + 'cbs = true\nrole = "mesh"', "listener[0].cbs"),
    ],
)
def test_a_fault_names_the_key(folder: Path, text: str, where: str) -> None:
    file = folder / "router.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert error.value.file == str(file)
    assert error.value.key == where


def test_a_configuration_is_written_as_it_is_read_and_shows_no_secret(folder: Path) -> None:
    file = folder / "router.toml"
    more = (
        'groups = "realm.roles"\nscopes = "scope"\nscope_aliases = { "A.b" = ["read:*/*", "tag:x"], c = "write:a/b" }\n'
    )
    file.write_text(
        f'[policy]\nfile = "policy.toml"\n[tokens]\nsize = 4096\n{ISSUER}{more}{KEY}'
        f'{LISTENER}cbs = true\nsasl = ["MSSBCBS", "XOAUTH2"]\n'
    )
    found = load(file)
    assert found.token_issuers[0].scope_aliases == {"A.b": ("read:*/*", "tag:x"), "c": ("write:a/b",)}
    written = "\n".join(lines(found))
    assert "c2VjcmV0" not in written
    again = folder / "again.toml"
    again.write_text(written)
    assert load(again) == found
    assert hash(load(again)) == hash(found)


def test_check_reads_the_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "router.toml"
    file.write_text(ISSUER + KEY)
    assert main(["check", str(file)]) == 0
    (folder / "keys.json").write_text("{}")
    assert main(["check", str(file)]) == 2
    assert "no list of keys" in capsys.readouterr().err
    (folder / "keys.json").write_bytes(key_set(key("one")))
    (folder / "secret").write_text("")
    assert main(["check", str(file)]) == 2
    assert "token_key[0].keys[0].file" in capsys.readouterr().err


@pytest.mark.parametrize("secured", [True, False])
def test_mechanisms_with_tokens_are_offered_under_tls_or_on_loopback(secured: bool) -> None:
    here = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("OAUTHBEARER", "XOAUTH2", "MSSBCBS"), cbs=True)
    assert here.mechanisms(secured=secured) == here.sasl
    assert here.authenticates
    there = ListenerConfig(url="amqp://0.0.0.0:0", sasl=here.sasl, cbs=True, insecure=True)
    assert there.mechanisms(secured=secured) == here.sasl
