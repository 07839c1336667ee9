"""URLs of listeners and connectors."""

import pytest

from amqpmesh.router.config.urls import CONNECTING_PORTS, UNIX, Endpoint, Service, endpoint, place


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("amqp://127.0.0.1", Endpoint("amqp", "127.0.0.1", 5672)),
        ("amqps://broker.example/", Endpoint("amqps", "broker.example", 5671)),
        ("amqp://[::1]:1234", Endpoint("amqp", "::1", 1234)),
        ("amqp://[2001:db8::1]", Endpoint("amqp", "2001:db8::1", 5672)),
        ("amqp://localhost:0", Endpoint("amqp", "localhost", 0)),
        ("AMQP://HOST", Endpoint("amqp", "host", 5672)),
    ],
)
def test_a_url_says_scheme_host_and_port(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "must begin with amqp:// or amqps://"),
        ("127.0.0.1:5672", "must begin with"),
        ("", "must begin with"),
        ("amqp://", "names no host"),
        ("amqp://:5672", "names no host"),
        ("amqp://h:65536", "not a URL"),
        ("amqp://h:-1", "not a URL"),
        ("amqp://h:x", "not a URL"),
        ("amqp://[::1", "not a URL"),
        ("amqp://user@h", "takes no user"),
        ("amqp://user:secret@h", "takes no user"),
        ("amqp://h/queue", "nothing more"),
        ("amqp://h?x=1", "nothing more"),
        ("amqp://h#x", "nothing more"),
        ("amqp://h x", "spaces"),
        ("amqp://h\x00", "spaces or control"),
    ],
)
def test_a_url_that_is_no_endpoint_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        Endpoint.parse(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("ws://h", Endpoint("ws", "h", 80)),
        ("wss://h/", Endpoint("wss", "h", 443)),
        ("wss://[::1]:1/$servicebus/websocket", Endpoint("wss", "::1", 1, "/$servicebus/websocket")),
        ("ws://h/a%20b", Endpoint("ws", "h", 80, "/a%20b")),
    ],
)
def test_the_url_of_a_websocket_may_have_a_path(url: str, found: Endpoint) -> None:
    assert Endpoint.parse(url, CONNECTING_PORTS) == found == endpoint(str(found))
    assert found.is_websocket
    assert found.secure is url.startswith("wss")
    assert not found.is_http


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ws://h/\xe4", "percent-encoded"),
        ("ws://h/a b", "spaces"),
        ("ws://h/?x=1", "nothing more"),
        ("http://h/x", "more"),
    ],
)
def test_a_path_that_cannot_be_asked_for_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        endpoint(url)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert Endpoint.parse(f"amqp://{host}").loopback is loopback


def test_amqps_is_secure_and_amqp_is_not() -> None:
    assert Endpoint.parse("amqps://h").secure
    assert not Endpoint.parse("amqp://h").secure


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("amqp://h:1", Endpoint("amqp", "h", 1)),
        ("amqps+srv://example.org", Service("amqps", "example.org")),
        ("amqp+srv://example.org/", Service("amqp", "example.org")),
    ],
)
def test_a_place_to_connect_to_is_an_endpoint_or_a_domain(url: str, found: Endpoint | Service) -> None:
    assert place(url) == found
    assert place(str(found)) == found


def test_a_domain_is_asked_for_by_the_name_of_its_service() -> None:
    assert Service("amqps", "example.org").name == "_amqps._tcp.example.org"
    assert Service("amqp", "example.org").name == "_amqp._tcp.example.org"
    assert Service("amqps", "example.org").secure
    assert not Service("amqp", "example.org").secure


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "must begin with amqp:// or amqps:// or ws:// or wss:// or amqp"),
        ("amqp+srv://h:5672", "DNS knows the ports"),
        ("amqp+srv://h/x", "takes a domain"),
        ("amqp+srv://user@h", "takes no user"),
        ("amqp+srv://", "names no host"),
        ("amqp://h/x", "nothing more"),
    ],
)
def test_a_place_that_is_none_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        place(url)


def test_nobody_can_listen_at_a_domain() -> None:
    with pytest.raises(ValueError, match="must begin with amqp:// or amqps://$"):
        Endpoint.parse("amqp+srv://example.org")


def test_a_unix_socket_is_a_place_to_listen_and_to_connect_to_and_no_clients_url() -> None:
    there = Endpoint(UNIX, "/run/a b/1", 0)
    assert endpoint(str(there)) == place(str(there)) == there
    assert there.is_unix
    assert there.loopback
    assert not there.secure
    with pytest.raises(ValueError, match="must begin with amqp:// or amqps://"):
        Endpoint.parse(str(there))


@pytest.mark.parametrize("url", ["amqp+unix://", "amqp+unix:/run/1", "amqp+unix://run/1"])
def test_a_unix_socket_needs_a_path(url: str) -> None:
    for read in (endpoint, place):
        with pytest.raises(ValueError, match="must begin with"):
            read(url)
