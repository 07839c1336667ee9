"""Pictures of the page for the documentation: a mesh of cities with some traffic, in a browser.

`python -m docs.drawing.screens` writes them to docs/screens. It needs Chromium, playwright and Pillow.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import trio
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from amqpmesh import AddressConfig, ConnectorConfig, ListenerConfig, MeshConfig, Router

SCREENS: Final = Path(__file__).parents[1] / "screens"

LINKS: Final = (
    ("london", "paris", 1),
    ("london", "amsterdam", 1),
    ("paris", "frankfurt", 2),
    ("amsterdam", "frankfurt", 1),
    ("frankfurt", "milan", 3),
    ("paris", "madrid", 2),
    ("madrid", "milan", 4),
    ("frankfurt", "warsaw", 2),
    ("amsterdam", "oslo", 3),
    ("warsaw", "oslo", 4),
    ("milan", "athens", 2),
)

TRAFFIC: Final = {  # messages a second, and the routers of senders and receivers
    "orders/eu": (400, "london", "frankfurt"),
    "orders/uk": (120, "frankfurt", "london"),
    "prices": (60, "frankfurt", "madrid"),
    "telemetry/trucks": (250, "oslo", "frankfurt"),
    "invoices": (8, "milan", "frankfurt"),
    "audit": (20, "paris", "frankfurt"),
}

SHOTS: Final = (  # name, view, dark, width, height
    ("page-mesh", "mesh", False, 1180, 690),
    ("page-addresses-dark", "addresses", True, 1180, 560),
    ("page-phone", "mesh", False, 390, 780),
    ("page-trace", "trace", False, 1180, 960),
)


async def send(router: Router, address: str, rate: float) -> None:
    """Send so many messages a second."""
    async with router.sender(address) as sender:
        while True:
            await sender.transfer(b"x" * 200, settled=True)
            await trio.sleep(1 / rate)


async def receive(router: Router, address: str) -> None:
    """Accept all messages."""
    async with router.receiver(address, credit=200) as receiver:
        async for delivery in receiver:
            delivery.accept()


async def wait(router: Router, address: str) -> None:
    """Wait for a receiver that does not come."""
    async with router.sender(address):
        await trio.sleep_forever()


async def run(told: dict[str, Any], ready: threading.Event) -> None:
    """Run the mesh until it is cancelled."""
    told["scope"] = trio.CancelScope()
    told["token"] = trio.lowlevel.current_trio_token()
    names = sorted({each for one, other, _ in LINKS for each in (one, other)})
    routers: dict[str, Router] = {}
    with told["scope"]:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for name in names:
                connectors = [
                    ConnectorConfig(url=routers[one].listeners[0].url, role="mesh", name=f"to-{one}", cost=cost)
                    for one, other, cost in ((*sorted(each[:2]), each[2]) for each in LINKS)
                    if other == name
                ]
                listeners = [
                    ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", name="mesh"),
                    ListenerConfig(url="http://127.0.0.1:0", role="http", name="page", manage=True),
                ]
                addresses = [AddressConfig(pattern="prices", distribution="multicast")]
                routers[name] = await stack.enter_async_context(
                    Router(
                        id=name,
                        listeners=listeners,
                        connectors=connectors,
                        addresses=addresses,
                        mesh=MeshConfig(insecure=True),
                        drain=0.1,
                    )
                )
            for address, (rate, source, target) in TRAFFIC.items():
                nursery.start_soon(receive, routers[target], address)
                nursery.start_soon(send, routers[source], address, rate)
            nursery.start_soon(wait, routers["frankfurt"], "orders/us")
            nursery.start_soon(receive, routers["frankfurt"], "orders/test")
            told["url"] = next(each.url for each in routers["frankfurt"].listeners if each.name == "page")
            while len(routers["frankfurt"].statistics().routes) < len(names) - 1:
                await trio.sleep(0.1)
            await trio.sleep(3.0)
            await routers["warsaw"].move_clients(timeout=1.0)
            ready.set()
            await trio.sleep_forever()


def shoot(browser: Browser, url: str, name: str, view: str, *, dark: bool, size: tuple[int, int]) -> None:
    """Take a picture."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        device_scale_factor=1.5 if size[0] < 500 else 1,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(f"{url}/#{view}")
    if view == "trace":
        page.get_by_label("Address").fill("orders/uk")
        page.get_by_role("button", name="Trace").click()
        page.get_by_text("Delivered").first.wait_for()
    page.wait_for_timeout(6500)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    found = SCREENS / f"{name}.png"
    image.quantize(128, dither=Image.Dither.NONE).save(found, optimize=True)
    context.close()


def main() -> None:
    """Write all pictures."""
    told: dict[str, Any] = {}
    ready = threading.Event()
    threading.Thread(target=trio.run, args=(run, told, ready), daemon=True).start()
    ready.wait(60)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for name, view, dark, width, height in SHOTS:
            shoot(browser, told["url"], name, view, dark=dark, size=(width, height))
        browser.close()
    told["token"].run_sync_soon(told["scope"].cancel)


if __name__ == "__main__":
    main()
