"""Hosts and origins: what a page of another site can have a browser send, and what it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh import ConfigError, ListenerConfig
from amqpmesh.router.http.checks import Site
from amqpmesh.router.http.requests import HttpError, Request

LOOPBACK = ListenerConfig(url="http://127.0.0.1:8080", role="http", origins=("https://console.example",))
ANYWHERE = ListenerConfig(url="http://0.0.0.0:80", role="http", hosts=("router.example",), insecure=True)
CHANGE = {"x-amqpmesh-change": "1"}


def asked(host: str | None, method: str = "GET", **headers: str) -> Request:
    named = {} if host is None else {"host": host}
    return Request(method, "/api", {}, {**named, **headers})


def refusal(config: ListenerConfig, request: Request) -> int | None:
    try:
        Site(config).check(request)
    except HttpError as error:
        return error.status
    return None


@pytest.mark.parametrize(
    ("config", "host", "status"),
    [
        (LOOPBACK, "127.0.0.1:8080", None),
        (LOOPBACK, "127.0.0.1:9", None),  # a forwarded port
        (LOOPBACK, "LOCALHOST", None),
        (LOOPBACK, "[::1]:8080", None),
        (LOOPBACK, "evil.example", 421),
        (LOOPBACK, "evil.example:8080", 421),
        (LOOPBACK, "127.0.0.1.evil.example", 421),
        (LOOPBACK, "localhost.evil.example", 421),
        (LOOPBACK, "10.0.0.1", 421),
        (LOOPBACK, None, 400),
        (LOOPBACK, "", 400),
        (LOOPBACK, "localhost:99999", 400),
        (LOOPBACK, "evil.example@localhost", 400),
        (LOOPBACK, "localhost/evil", 400),
        (LOOPBACK, "localhost:80:80", 400),
        (ANYWHERE, "router.example", None),
        (ANYWHERE, "10.0.0.1:80", None),
        (ANYWHERE, "[2001:db8::1]", None),
        (ANYWHERE, "localhost", None),
        (ANYWHERE, "evil.example", 421),
        (ANYWHERE, "1.2.3", 421),
    ],
)
def test_the_host_asked_for_is_the_listeners_own(config: ListenerConfig, host: str | None, status: int | None) -> None:
    assert refusal(config, asked(host)) == status
    assert refusal(config, asked(host, "DELETE", **CHANGE)) == status


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (CHANGE, None),  # no page: a program
        ({}, 403),
        ({"x-amqpmesh-change": ""}, 403),
        ({**CHANGE, "origin": "http://localhost:8080"}, None),
        ({**CHANGE, "origin": "https://console.example"}, None),
        ({"origin": "https://console.example"}, 403),
        ({**CHANGE, "origin": "http://evil.example"}, 403),
        ({**CHANGE, "origin": "https://localhost:8080"}, 403),  # another scheme
        ({**CHANGE, "origin": "http://localhost:9090"}, 403),  # another port: another program
        ({**CHANGE, "origin": "http://127.0.0.1:8080"}, 403),  # not the host that is asked
        ({**CHANGE, "origin": "null"}, 403),
        ({**CHANGE, "origin": ""}, 403),
        ({**CHANGE, "origin": "https://console.example.evil.example"}, 403),
    ],
)
def test_a_change_needs_the_header_and_no_other_page(method: str, headers: dict[str, str], status: int | None) -> None:
    assert refusal(LOOPBACK, asked("localhost:8080", method, **headers)) == status


def test_the_default_port_is_left_out_of_an_origin() -> None:
    for host in ("router.example", "router.example:80"):
        assert refusal(ANYWHERE, asked(host, "PATCH", **CHANGE, origin="http://router.example")) is None


def test_a_browser_that_asks_first_is_answered_for_configured_origins_alone() -> None:
    site = Site(LOOPBACK)
    answer = site.preflight(asked("localhost", "OPTIONS", origin="https://console.example"))
    headers = dict(answer.headers)
    assert answer.status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://console.example"
    assert "x-amqpmesh-change" in headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in headers
    for request in (
        asked("localhost", "OPTIONS", origin="http://evil.example"),
        asked("localhost", "OPTIONS"),
        asked("evil.example", "OPTIONS", origin="https://console.example"),
    ):
        with pytest.raises(HttpError):
            site.preflight(request)
    assert site.permits(asked("localhost", origin="http://evil.example")) == ()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": "http://127.0.0.1"}, "role"),
        ({"url": "amqp://127.0.0.1", "role": "http"}, "role"),
        ({"url": "http://0.0.0.0", "role": "http"}, "sasl"),
        ({"url": "http://127.0.0.1", "role": "http", "sasl": ("SCRAM-SHA-256",), "users": "users.toml"}, "sasl"),
        ({"url": "http://127.0.0.1", "role": "http", "sasl": ("PLAIN",), "users": "users.toml"}, "sasl"),
        ({"url": "https://127.0.0.1", "role": "http"}, "tls"),
        ({"url": "http://127.0.0.1", "role": "http", "cbs": True}, "cbs"),
        ({"url": "amqp://127.0.0.1", "origins": ("http://a",)}, "origins"),
        ({"url": "amqp://127.0.0.1", "hosts": ("a",)}, "hosts"),
        *(
            ({"url": "http://127.0.0.1", "role": "http", "origins": (each,)}, "origins")
            for each in (
                "*",
                "null",
                "a.example",
                "http://a/",
                "http://a/b",
                "http://u@a",
                "HTTP://a",
                "ftp://a",
                "http://a:0",
            )
        ),
        *(
            ({"url": "http://127.0.0.1", "role": "http", "hosts": (each,)}, "hosts")
            for each in ("*", "a:80", "A", "a b", "", "-a")
        ),
    ],
)
def test_a_listener_that_cannot_be_meant_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ListenerConfig(**settings)
    assert refused.value.key == key
