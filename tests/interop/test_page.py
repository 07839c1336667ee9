"""The page in a browser: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh import ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.config.users import Users
from tests.support.processes.router_thread import Served

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    from amqpmesh.router.statistics.router_statistics import Statistics

pytestmark = pytest.mark.interop

HTTP = ListenerConfig(url="http://127.0.0.1:0", role="http", manage=True, name="page")
READING = ListenerConfig(url="http://127.0.0.1:0", role="http", name="reading")
MESH = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", name="mesh")
HOSTILE = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\u202efdp.exe",
    "a\u2066b",
)

Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Yield `opened(url, **settings)`: it opens a page of its own, which may have no error and load nothing else."""
    faults: list[str] = []
    expected: list[str] = []
    contexts = []

    def start(url: str, *, stops: bool = False, fault: str = "", **settings: Any) -> Page:
        """Args: stops: its clock stands still, and the test moves it. fault: a part of one that is meant."""
        expected.extend([fault] if fault else [])
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda each: None if each.url.startswith(url.rstrip("/")) else faults.append(each.url))
        if stops:
            page.clock.install()
        page.goto(f"{url}/")
        return page

    yield start
    for each in contexts:
        each.close()
    assert [each for each in faults if not any(part in each for part in expected)] == []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Return a router with a neighbour's listener, and two listeners for pages."""
    router = Served(listeners=["amqp://127.0.0.1:0", HTTP, READING, MESH], mesh=MeshConfig(insecure=True))
    yield router
    router.end()


def url_of(router: Served, name: str) -> str:
    return next(each.url for each in router.router.listeners if each.name == name)


def statistics(router: Served) -> Statistics:
    """Return the state of a router, read in its thread."""

    async def read() -> Statistics:
        return router.router.statistics()

    return router.do(read)


def cells(page: Page, caption: str) -> list[list[str]]:
    """Return the rows of a table."""
    rows = page.locator(f"section[aria-label='{caption}'] tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def table(page: Page, caption: str, enough: int = 1) -> list[list[str]]:
    """Return the rows of a table, once it has so many."""
    page.locator(f"section[aria-label='{caption}'] tbody tr").nth(enough - 1).wait_for()
    return cells(page, caption)


def test_what_is_shown_equals_statistics(served: Served, opened: Open) -> None:
    served.receive("orders")
    served.send("orders", *range(7))
    served.send("nobody", "waits")
    served.until(lambda: any(each.deliveries_out == 7 for each in served.router.statistics().addresses))
    page = opened(url_of(served, "page"))
    page.get_by_role("link", name="Addresses").click()
    shown = {row[0]: row for row in table(page, "Addresses in use here", 2)}
    told = {each.name: each for each in statistics(served).addresses}
    assert set(shown) == set(told)
    for name, row in shown.items():
        each = told[name]
        assert row[1:4] == [str(each.distribution), str(each.producers), str(each.consumers)]
        assert row[6:8] == [str(each.waiting), f"{each.demand:,}"]
        assert row[9] == (str(each.reason) if each.reason else "")
    page.get_by_role("button", name="orders").click()
    panel = page.get_by_label("Attributes")
    assert (
        panel.locator("div", has=page.locator("dt", has_text="deliveries in")).locator("dd").first.inner_text() == "7"
    )
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "orders"
    page.get_by_role("link", name="Connections").click()
    links = table(page, "Links of clients", 2)
    assert sorted(row[1] for row in links) == sorted(each.name for each in statistics(served).links)


def test_a_cost_is_changed_by_its_button(served: Served, opened: Open) -> None:
    other = Served(
        id="B",
        listeners=[],
        connectors=[ConnectorConfig(url=url_of(served, "mesh"), role="mesh")],
        mesh=MeshConfig(insecure=True),
    )
    try:
        page = opened(url_of(served, "page"), fault="403")
        page.get_by_role("button", name="B", exact=True).click()
        own = page.locator("dl div", has_text="A to B")
        own.get_by_label("Cost from A to B").fill("42")
        own.get_by_role("button", name="Set the cost").click()
        page.locator("section[aria-label='Links'] tbody", has_text="42").wait_for()
        assert [each.cost for each in statistics(served).neighbours] == [42]
        there = page.locator("dl div", has_text="B to A")
        there.get_by_label("Cost from B to A").fill("43")
        there.get_by_role("button", name="Set the cost").click()
        page.get_by_role("status").filter(
            has_text="refuses"
        ).wait_for()  # routers without certificates vouch for nobody
        assert [each.remote_cost for each in statistics(served).neighbours] != [43]
        page.get_by_role("link", name="Changes").click()
        page.get_by_role("row", name="cost changed").first.wait_for()
    finally:
        other.end()
    page.get_by_role("link", name="Mesh").click()
    page.locator("section[aria-label='Links'] [data-alert]", has_text="cut").first.wait_for()
    assert "1 link cut" in page.locator("p.count").first.inner_text()


def test_without_the_right_no_button_changes_anything(served: Served, opened: Open) -> None:
    page = opened(url_of(served, "reading"), fault="403")
    page.get_by_role("button", name="A", exact=True).click()
    assert page.get_by_label("Router", exact=True).get_by_role("button").all_inner_texts() == ["Close"]
    served.receive("readable")
    page.get_by_role("link", name="Connections").click()
    page.locator("section[aria-label='Connections'] tbody button").first.click()
    page.get_by_label("Attributes").get_by_role("button", name="Close").wait_for()
    assert page.get_by_label("Attributes").get_by_role("button").all_inner_texts() == ["Close"]
    status = page.evaluate(
        "fetch('/view/drain', {method: 'POST', body: '{}', headers: "
        "{'X-Amqpmesh-Change': '1', 'Content-Type': 'application/json'}}).then((each) => each.status)"
    )
    assert status == 403


def test_a_drain_is_begun_by_its_button(start_router: Any, opened: Open) -> None:
    router = start_router("""
        [router]
        id = "D"
        [[listener]]
        url = "http://127.0.0.1:0"
        role = "http"
        manage = true
    """)
    page = opened(router.url, fault="ERR_CONNECTION")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="D", exact=True).click()
    page.get_by_role("button", name="Drain the router").click()
    router.process.wait(15)
    page.locator("body[data-lost]").wait_for()


def test_names_that_peers_choose_stay_text(served: Served, opened: Open) -> None:
    for name in HOSTILE:
        served.receive(name)
    page = opened(url_of(served, "page"), fault="TrustedHTML")
    page.get_by_role("link", name="Addresses").click()
    page.get_by_label("Filter").fill("script")
    page.locator("section tbody", has_text="owned").wait_for()
    page.get_by_label("Filter").fill("")
    page.locator("section tbody", has_text="fdp.exe").wait_for()
    names = [row[0] for row in cells(page, "Addresses in use here")]
    assert {*HOSTILE[:2], "\\u202efdp.exe", "a\\u2066b"} <= set(names)
    page.get_by_role("button", name="<script>").click()
    page.get_by_label("Attributes").wait_for()
    assert page.title() == "A – amqpmesh"
    assert page.locator("main script, main img").count() == 0
    # Even a fault in the page could make no markup of a text.
    assert (
        page.evaluate("(() => { try { document.body.innerHTML = '<p>'; } catch { return 'refused'; } })()") == "refused"
    )


def test_a_long_name_is_whole_in_the_attributes_alone(served: Served, opened: Open) -> None:
    long = f"begin/{'x' * 1500}/end"
    served.receive(long)
    page = opened(url_of(served, "page"))
    page.get_by_role("link", name="Addresses").click()
    page.get_by_label("Filter").fill("begin/")
    page.get_by_role("button", name="begin/").click()
    assert len(page.get_by_role("button", name="begin/").inner_text()) == 160
    panel = page.get_by_label("Attributes")
    panel.wait_for()
    told = dict(zip(panel.locator("dt").all_inner_texts(), panel.locator("dd").all_inner_texts(), strict=True))
    assert told["name"] == long
    assert [each.split(":")[0] for each in told["latency"].split(", ")] == [
        "0.001",
        "0.005",
        "0.025",
        "0.1",
        "0.5",
        "1",
        "10",
        "inf",
    ]


def test_the_views_at_the_top_hide_nothing_that_gets_the_focus(served: Served, opened: Open) -> None:
    page = opened(url_of(served, "page"), viewport={"width": 360, "height": 640})
    page.get_by_role("button", name="A", exact=True).click()
    heading, views = page.get_by_role("heading", name="Router A"), page.get_by_role("navigation", name="Views")
    heading.wait_for()
    box, above = heading.bounding_box(), views.bounding_box()
    assert box is not None
    assert above is not None
    assert box["y"] >= above["y"] + above["height"]
    assert above["height"] < 50, "all views are in one line"


def test_all_is_reached_by_the_keyboard(served: Served, opened: Open) -> None:
    page = opened(url_of(served, "page"))
    page.locator("section[aria-label='Routers'] tbody tr").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    for _ in range(10):
        if page.evaluate("document.activeElement.textContent") == "A":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Router"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "A"
    snapshot = page.locator("body").aria_snapshot()
    for mark in ("banner", "navigation", "main", "status", "heading", "table"):
        assert mark in snapshot, mark


def test_a_message_is_followed_and_shown_as_text(served: Served, opened: Open) -> None:
    served.receive("traced/<b>")
    page = opened(f"{url_of(served, 'page')}")
    page.get_by_role("link", name="Trace").click()
    page.get_by_label("Address").fill("traced/<b>")
    page.get_by_role("button", name="Trace").click()
    page.get_by_text("Delivered: accepted").first.wait_for()
    assert "sends to traced/<b>" in page.locator(".trace").inner_text()


def test_a_password_is_asked_for_by_the_browser_and_a_token_by_the_page(tmp_path: Path, opened: Open) -> None:
    users = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).save(users)
    listener = ListenerConfig(
        url="http://127.0.0.1:0", role="http", sasl=("PLAIN",), users=users, insecure=True, name="page"
    )
    router = Served(listeners=[listener])
    try:
        page = opened(url_of(router, "page"), fault="401", http_credentials={"username": "ada", "password": "right"})
        page.get_by_role("link", name="Log in with name and password").click()
        page.get_by_text("as ada").wait_for()
        page.close()
    finally:
        router.end()


def test_a_router_that_believes_this_one_is_changed_from_here(
    start_router: Any, authority: Path, users: Path, tmp_path: Path, opened: Open
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[group]]\nname = "all"\nusers = ["alice"]\nmay = ["dynamic", "container"]\nmanage = ["write"]\n'
    )

    def start(router: str, more: str) -> Any:
        return start_router(f"""
            [router]
            id = "{router}"
            drain = 0.2
            [mesh]
            certificate = "{authority / router}.pem"
            key = "{authority / router}.key"
            trust = "{authority / "mesh-ca.pem"}"
            [policy]
            file = "{policy}"
            vouch = ["A"]
            {more}
        """)

    far = start("B", '[[listener]]\nurl = "amqps://127.0.0.1:0"\nrole = "mesh"')
    near = start(
        "A",
        f"""
            [[listener]]
            url = "http://127.0.0.1:0"
            role = "http"
            sasl = ["PLAIN"]
            users = "{users}"
            insecure = true
            [[connector]]
            url = "{far.url}"
        """,
    )
    page = opened(near.url, fault="401", http_credentials={"username": "alice", "password": "correct horse"})
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("link", name="Log in with name and password").click()
    page.get_by_role("button", name="B", exact=True).click()
    there = page.locator("dl div", has_text="B to A")
    there.get_by_label("Cost from B to A").fill("43")
    there.get_by_role("button", name="Set the cost").click()
    page.locator("section[aria-label='Links'] tbody", has_text="43").wait_for()
    page.get_by_role("button", name="Drain the router").click()
    far.process.wait(20)


COUNT_TOUCHED = """() => {
    window.touched = new Set()
    new MutationObserver((changes) => changes.forEach((each) => window.touched.add(each.target))).observe(
        document.body, {subtree: true, childList: true, attributes: true, characterData: true})
}"""
"""Counts the nodes of the page that change from now on."""


def mesh_of(routers: int) -> dict[str, Any]:
    ids = [f"router-{each:03}" for each in range(routers)]
    links = [[ids[each], ids[(each * 7 + step) % routers], 1, 1] for each in range(routers) for step in (1, 3)]
    links = [[*sorted(each[:2]), 1, 1] for each in links if each[0] != each[1]]
    return {
        "router": ids[0],
        "now": 1.0,
        "version": 1,
        "neighbours": [],
        "routers": [{"id": each, "distance": n % 9, "transit": True, "overload": n == 5} for n, each in enumerate(ids)],
        "links": [list(each) for each in sorted({tuple(each) for each in links})],
        "left_out": 0,
    }


def test_200_routers_and_10_000_addresses_make_a_page_of_the_same_size(served: Served, opened: Open) -> None:
    asked: list[str] = []
    mesh = mesh_of(200)

    def graph(route: Route) -> None:
        asked.append(route.request.url)
        told = mesh if "known=1" not in route.request.url else {**mesh, "routers": None, "links": None}
        route.fulfill(json={name: value for name, value in told.items() if value is not None})

    def addresses(route: Route) -> None:
        asked.append(route.request.url)
        row = {"tenant": "", "distribution": "balanced", "producers": 1, "consumers": 1, "rate": 1.0, "reason": None}
        counts = dict.fromkeys(("deliveries_in", "deliveries_out", "waiting", "demand"), 1)
        results = [
            {**row, **counts, "name": f"a/{n}", "identity": f"address/a/{n}", "oldest_unsettled": None}
            for n in range(50)
        ]
        route.fulfill(
            json={"total": 10_000, "matching": 10_000, "offset": 0, "age": 9.0, "now": 1.0, "results": results}
        )

    page = opened(url_of(served, "page"))
    page.route("**/view/mesh*", graph)
    far = {"links": [[*mesh["links"][7][:2], 2048.0, 0.0]]}
    page.route("**/view/rates*", lambda route: route.fulfill(json=far))
    page.route("**/api/address*", addresses)
    page.get_by_role("link", name="Addresses").click()
    table(page, "Addresses in use here", 50)
    assert "1 to 50 of 10,000; order of 9 s ago" in page.locator("p.count").first.inner_text()
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    page.get_by_role("link", name="Mesh").click()
    page.locator("svg.mesh circle").nth(199).wait_for(state="attached")
    assert page.locator("section[aria-label='Routers'] tbody tr").count() == 50
    page.get_by_role("cell", name=re.compile("^2.*B.s$")).first.wait_for()
    assert page.evaluate("document.querySelectorAll('*').length") < 4000
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause").click()
    page.wait_for_function("() => performance.getEntriesByName('never').length === 0")
    with page.expect_request(lambda each: "known=1" in each.url):
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Pause").click()
    attributes = [each for each in asked if "/api/address" in each]
    assert all("count=50" in each for each in attributes)
    # What is drawn again is drawn in place: the router does not jump.
    places = (
        "[...document.querySelectorAll('svg.mesh .routers g')].map((each) => each.getAttribute('transform')).join()"
    )
    before = page.evaluate(places)
    page.evaluate(COUNT_TOUCHED)
    for _ in range(3):
        with page.expect_response("**/view/mesh*"):
            pass
    assert page.evaluate(places) == before
    # An update touches what differs: the page has 3,300 elements.
    assert page.evaluate("window.touched.size") < 100
    assert json.loads(page.evaluate("JSON.stringify(performance.getEntriesByType('navigation').length)")) == 1


def test_a_hidden_tab_asks_for_nothing(served: Served, opened: Open) -> None:
    asked: list[str] = []
    page = opened(url_of(served, "reading"), stops=True)
    page.on("request", lambda each: asked.append(each.url))
    page.get_by_role("link", name="Changes").click()
    page.get_by_role("heading", name="Changes of the last hour").wait_for()
    for _ in range(3):
        with page.expect_response("**/view/changes"):
            page.clock.run_for(2500)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true}),"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_response("**/view/changes"):
        page.evaluate("delete document.hidden, document.dispatchEvent(new Event('visibilitychange'))")


@pytest.mark.parametrize("width", [360, 1200])
def test_no_page_is_wider_than_its_screen(served: Served, opened: Open, width: int) -> None:
    page = opened(url_of(served, "page"), viewport={"width": width, "height": 740})
    for name in ("Mesh", "Addresses", "Connections", "Trace", "Changes"):
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", level=1).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
