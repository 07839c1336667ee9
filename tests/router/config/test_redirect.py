"""Redirects in the configuration: read, written, and refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import (
    AddressConfig,
    ListenerConfig,
    PlaceConfig,
    RedirectConfig,
    RouterConfig,
    lines,
    parse,
)

FILE = Path("/etc/amqpmesh/a.toml")
LISTENER = "[[listener]]\nurl = 'amqp://127.0.0.1:5672'\n"
HERE = "network-host = '127.0.0.1', port = 5672"


def parsed(text: str) -> RouterConfig:
    return parse(tomllib.loads(text), FILE)


def address(pattern: str, redirect: str) -> str:
    return f"[[address]]\npattern = '{pattern}'\nredirect = {{ {redirect} }}\n"


def listener(url: str, redirect: str = "") -> str:
    return f"[[listener]]\nurl = '{url}'\n" + (f"redirect = {{ {redirect} }}\n" if redirect else "")


def test_redirects_are_read() -> None:
    config = parsed(
        """
        [[listener]]
        url = "amqp://127.0.0.1:5673"
        redirect = { hostname = "c.example", port = 5673 }
        [[address]]
        pattern = "elsewhere/#"
        redirect = { hostname = "b.example", network-host = "127.0.0.1", port = 5672, address = "there" }
        """
    )
    assert config.listeners[0].redirect == PlaceConfig(hostname="c.example", port=5673)
    assert config.addresses[0].redirect == RedirectConfig(
        hostname="b.example", network_host="127.0.0.1", port=5672, address="there"
    )


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (address("a", ""), "address[0].redirect.hostname", "names a place"),
        (address("a", "hostname = ''"), "address[0].redirect.hostname", "must not be empty"),
        (address("a", "hostname = 'b c'"), "address[0].redirect.hostname", "spaces"),
        (address("a", f"network-host = '{'b' * 256}'"), "address[0].redirect.network_host", "at most 255"),
        (address("a", "port = 0"), "address[0].redirect.port", "at least 1"),
        (address("a", "port = 65536"), "address[0].redirect.port", "at most 65535"),
        (address("a", "address = ''"), "address[0].redirect.address", "must not be empty"),
        (address("a", "host = 'b'"), "address[0].redirect.host", "unknown key"),
        ("[[address]]\npattern = 'a'\nredirect = 'b'", "address[0].redirect", "must be a table"),
        (listener("amqp://127.0.0.1", "address = 'there'"), "listener[0].redirect.address", "unknown key"),
        ("[[listener]]\nurl = 'amqp://127.0.0.1'\nredirect = {}", "listener[0].redirect.hostname", "names a place"),
    ],
)
def test_a_fault_of_a_redirect_is_named(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert (refused.value.file, refused.value.key) == (str(FILE), key)
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("text", "key"),
    [
        # To this router, to the same address there.
        (LISTENER + address("a", HERE), "address[0].redirect"),
        (LISTENER + address("a", "hostname = '127.0.0.1'"), "address[0].redirect"),
        (LISTENER + address("a", "network-host = 'LocalHost', port = 5672"), "address[0].redirect"),
        (LISTENER + address("a", f"hostname = 'b.example', {HERE}"), "address[0].redirect"),
        (LISTENER + address("a", "port = 5672"), "address[0].redirect"),
        (listener("amqp://0.0.0.0", "hostname = 'x'").replace("redirect", "insecure = true\nredirect")
         + address("a", HERE.replace("'127.0.0.1'", "'127.9.9.9'")), None),
        ("[[listener]]\nurl = 'amqp://0.0.0.0'\ninsecure = true\n"
         + address("a", HERE.replace("'127.0.0.1'", "'127.9.9.9'")), "address[0].redirect"),
        # By another address, which leads back.
        (address("a/#", "address = 'a/b'"), "address[0].redirect"),
        ("[router]\nid = 'A'\n" + address("a/#", "address = 'a/b@A'"), "address[0].redirect"),
        (address("a", "address = 'b'") + address("b", "address = 'a'"), "address[0].redirect"),
        # To a listener that redirects to another one of this router, where the address is redirected again.
        (LISTENER + listener("amqp://127.0.0.1:5673", HERE)
         + address("a", "network-host = '127.0.0.1', port = 5673"), "address[0].redirect"),
        # Listeners that redirect to each other, or to themselves.
        (listener("amqp://127.0.0.1:5672", HERE), "listener[0].redirect"),
        (listener("amqp://127.0.0.1:1", "network-host = '127.0.0.1', port = 2")
         + listener("amqp://127.0.0.1:2", "network-host = '127.0.0.1', port = 1"), "listener[0].redirect"),
        # These arrive.
        (LISTENER + address("a", f"address = 'b', {HERE}"), None),
        (LISTENER + address("a", "network-host = '127.0.0.1', port = 5673"), None),
        (LISTENER + address("a", "network-host = '127.0.0.2', port = 5672"), None),
        (LISTENER + address("a", "hostname = 'b.example'"), None),
        (address("a", "address = 'b'") + address("b", "address = 'c'"), None),
        ("[router]\nid = 'A'\n" + address("a/#", "address = 'a/b@B'"), None),
        (LISTENER + listener("amqp://127.0.0.1:5673", "hostname = 'b.example'")
         + address("a", "network-host = '127.0.0.1', port = 5673"), None),
        (LISTENER + listener("amqp://127.0.0.1:5673", HERE), None),
    ],
)  # fmt: skip
def test_redirects_by_which_nobody_arrives_are_errors(text: str, key: str | None) -> None:
    if key is None:
        parsed(text)
        return
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert refused.value.key == key


hosts = st.none() | st.from_regex(r"[a-z0-9.-]{1,255}", fullmatch=True)
ports = st.none() | st.integers(1, 65535)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(hosts, hosts, ports, texts)
def test_a_written_redirect_is_read_as_an_equal_one(
    hostname: str | None, network_host: str | None, port: int | None, there: str | None
) -> None:
    # A host that is never this router keeps it from leading back.
    place = PlaceConfig(hostname=hostname or "b.example", network_host=network_host, port=port)
    redirect = RedirectConfig(hostname=hostname or "b.example", network_host=network_host, port=port, address=there)
    config = RouterConfig(
        listeners=(ListenerConfig(url="amqp://127.0.0.1:0", redirect=place),),
        addresses=(AddressConfig(pattern="a", redirect=redirect),),
    )
    assert parsed("\n".join(lines(config))) == config


@pytest.mark.parametrize(
    ("redirect", "place"),
    [
        ("hostname = 'b.example'", "amqp://b.example:5672"),
        ("network-host = '10.0.0.2', hostname = 'b.example'", "amqp://10.0.0.2:5672 as b.example"),
        ("hostname = 'b.example', port = 5671", "amqps://b.example:5671"),
        ("hostname = 'b.example', port = 5671, scheme = 'amqp'", "amqp://b.example:5671"),
        ("hostname = 'b.example', scheme = 'amqps'", "amqps://b.example:5671"),
        ("network-host = '::1', port = 5673, scheme = 'amqps'", "amqps://[::1]:5673"),
    ],
)
def test_a_redirect_that_the_router_follows_says_where_it_connects(redirect: str, place: str) -> None:
    config = parsed(address("a", f"{redirect}, follow = 'router'"))
    (found,) = config.addresses
    assert found.redirect is not None
    assert found.redirect.is_followed
    assert found.redirect.peer_address.described == place
    assert parsed("\n".join(lines(config))) == config
