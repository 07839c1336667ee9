"""AMQP through WebSockets: rhea in Node and in a browser, Azure's pure-Python stack, and our client, with others over
TCP.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from amqpmesh import Message, connect

pytestmark = pytest.mark.interop

TEXT = {"sections": [[0x77, ["string", "hello"]]]}


@pytest.fixture(scope="module")
def router(start_shared_router):
    """Start a router with a listener for WebSockets, and one for TCP."""
    return start_shared_router("""
        [router]
        id = "A"
        drain = 0.2
        [[listener]]
        url = "ws://127.0.0.1:0"
        [[listener]]
        url = "amqp://127.0.0.1:0"
        [[listener]]
        url = "http://127.0.0.1:0"
        role = "http"
        amqp = true
    """)


@pytest.fixture(scope="module")
def secured(start_secured_router):
    """Start a router that demands a password or a certificate in TLS, and return its URL."""
    return start_secured_router("wss://127.0.0.1:0/amqp", "PLAIN", "EXTERNAL", keys='hosts = ["localhost"]')


@pytest.mark.parametrize("sending", ["rhea", "proton"])
def test_rhea_speaks_through_a_websocket_with_proton_and_itself(sending, router, client):
    through, over, _ = router.urls
    receiver = client("rhea_receive", through, "--address", sending, "--count", "20")
    receiver.expect("attached")
    sender = client(
        f"{sending}_send", through if sending == "rhea" else over, "--address", sending, messages=[TEXT] * 20
    )
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 20


RHEA = Path(__file__).parent / "node_modules" / "rhea" / "dist" / "rhea-umd.js"

IN_THE_BROWSER = """
    ([url, address, count]) => new Promise((done, failed) => {
        const container = rheaUmd.create_container({id: "browser"});
        const came = [], outcomes = [];
        const look = () => came.length === count && outcomes.length === count && done({came, outcomes});
        container.on("message", ({message}) => { came.push(message.body); look(); });
        container.on("accepted", () => { outcomes.push("accepted"); look(); });
        container.on("disconnected", ({error}) => failed(error ?? new Error("disconnected")));
        container.on("connection_error", ({connection}) => failed(connection.error));
        container.once("sendable", ({sender}) => {
            for (let number = 0; number < count; number += 1) sender.send({body: `message ${number}`});
        });
        const connection = container.connect({
            connection_details: container.websocket_connect(WebSocket)(url, ["amqp"]), reconnect: false,
        });
        connection.open_receiver({source: address, credit_window: count});
        connection.open_sender(address);
    })
"""


@pytest.fixture
def shop():
    """Serve a page with rhea in it, on this host as a browser wants it, and return its origin."""
    files = {"/": b"<!doctype html><script src=rhea.js></script>", "/rhea.js": RHEA.read_bytes()}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in files else 404)
            self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
            self.end_headers()
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_rhea_in_a_browser_sends_and_receives(browser, shop, start_router):
    router = start_router(f"""
        [router]
        id = "A"
        drain = 0.2
        [[listener]]
        url = "ws://127.0.0.1:0"
        origins = ["{shop}"]
    """)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{shop}/")
    told = page.evaluate(IN_THE_BROWSER, [router.url, "orders", 20])
    assert told == {"came": [f"message {number}" for number in range(20)], "outcomes": ["accepted"] * 20}
    # A page of another origin does not get that far.
    page.goto(f"{shop.replace('127.0.0.1', 'localhost')}/")
    opened = page.evaluate(
        "(url) => new Promise((done) => { const it = new WebSocket(url, ['amqp']);"
        "it.onopen = () => done(true); it.onerror = () => done(false); })",
        router.url,
    )
    assert opened is False
    context.close()
    assert any("may open no WebSocket" in line for line in router.log.seen)


def test_rhea_speaks_at_the_port_of_the_pages(router, client):
    _, over, pages = router.urls
    url = f"{pages.replace('http', 'ws', 1)}/amqp"
    receiver = client("rhea_receive", url, "--address", "pages", "--count", "5")
    receiver.expect("attached")
    sender = client("proton_send", over, "--address", "pages", messages=[TEXT] * 5)
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"] * 5


def test_a_large_message_of_rhea_is_whole(router, client):
    through, over, _ = router.urls
    large = {"sections": [[0x75, ["binary", "ab" * 500_000]]]}
    receiver = client("proton_receive", over, "--address", "large", "--count", "1")
    receiver.expect("attached")
    sender = client("rhea_send", through, "--address", "large", messages=[large])
    sender.finish()
    receiver.finish()
    assert sender.of("sent")[0]["sha256"] == receiver.of("message")[0]["sha256"]


def test_rhea_logs_in_through_wss(secured, client, credentials):
    known = (
        "--trust",
        str(credentials.trust),
        "--mechanism",
        "PLAIN",
        "--user",
        "alice",
        "--password",
        "correct horse",
    )
    receiver = client("rhea_receive", secured, "--address", "secret", *known)
    sender = client("rhea_send", secured, "--address", "secret", *known, messages=[TEXT])
    sender.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


def test_azure_speaks_through_a_websocket(router, client):
    through, over, _ = router.urls
    receiver = client("azure_receive", through, "--address", "hub", "--count", "2")
    receiver.expect("attached")
    sender = client("azure_send", through, "--address", "hub", messages=[{"value": "hello"}])
    sender.finish()
    other = client("proton_send", over, "--address", "hub", messages=[TEXT])
    other.finish()
    receiver.finish()
    assert sender.of("outcome")[0]["outcome"] == "accepted"


async def test_our_client_speaks_through_wss_with_proton_over_tcp(router, client, secured, credentials):
    through, over, _ = router.urls
    receiver = client("proton_receive", over, "--address", "ours", "--count", "1")
    receiver.expect("attached")
    async with connect(through) as connection, connection.sender("ours") as sender:
        await sender.send(Message(body="hello"))
    receiver.finish()
    alice = {"certificate": credentials.client_certificate, "key": credentials.client_key}
    async with connect(secured, trust=credentials.trust, **alice) as connection, connection.sender("nobody"):
        assert connection.is_connected
