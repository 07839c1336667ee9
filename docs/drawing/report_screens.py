"""Pictures of the report for the documentation: two hours of a simulated mesh, with a burst and refused messages.

`python -m docs.drawing.report_screens` writes them to docs/screens. It needs Chromium, playwright and Pillow, and takes
some minutes: it runs all jobs.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import trio
from PIL import Image
from playwright.sync_api import sync_playwright
from trio.testing import MockClock

from amqpmesh.router.config.file import TelemetryConfig
from amqpmesh.topology.simulation.mesh import Mesh
from docs.drawing.screens import LINKS, SCREENS

HOURS: Final = 2

FLOWS: Final = (  # address, seconds between two messages, octets, and the routers of the sender and the receiver
    ("orders/eu", 3.0, 900, "london", "frankfurt"),
    ("orders/uk", 6.0, 900, "frankfurt", "london"),
    ("prices", 8.0, 300, "frankfurt", "madrid"),
    ("telemetry/trucks", 2.0, 200, "oslo", "frankfurt"),
    ("invoices", 20.0, 4000, "milan", "frankfurt"),
    ("audit", 12.0, 600, "paris", "athens"),
)

BURST: Final = "orders/eu"
"""The address whose sender sends five times as much for a while in the second hour."""

SHOTS: Final = (  # name, the id of the section (empty: the beginning of the page), and the height
    ("report", "", 730),
    ("report-traffic", "job-traffic", 650),
)

WIDTH: Final = 1180

SHOWN: Final = "/srv/mesh"
"""The directory that the pictures show instead of a temporary one."""


async def send(mesh: Mesh, address: str, pause: float, size: int, at: str) -> None:
    """Send for all of the time."""
    chance = random.Random(address)  # noqa: S311 - nothing is guessed
    end = trio.current_time() + HOURS * 3600
    begin, until = end - 2400, end - 1800
    async with mesh[at].sender(address) as sender:
        while trio.current_time() < end:
            await (await sender.transfer(b"x" * size)).outcome()
            is_burst = address == BURST and begin <= trio.current_time() < until
            await trio.sleep(chance.expovariate(1 / pause) / (5 if is_burst else 1))


async def receive(mesh: Mesh, address: str, at: str) -> None:
    """Accept all messages, but for some invoices that are rejected."""
    chance = random.Random(address)  # noqa: S311
    async with mesh[at].receiver(address, credit=50) as receiver:
        async for delivery in receiver:
            if address == "invoices" and chance.random() < 0.03:
                delivery.reject("amqp:precondition-failed", "no such customer")
            else:
                delivery.accept()


async def record(directory: Path) -> None:
    """Run the mesh, whose routers record."""
    telemetry = TelemetryConfig(directory=directory, flush=5.0, counts=30.0, segment_time=1800.0)
    async with Mesh(seed=1, latency=0.004, telemetry=telemetry) as mesh:
        for name in sorted({each for one, other, _ in LINKS for each in (one, other)}):
            await mesh.router(name)
        mesh.step_clock("oslo", 0.8)
        for one, other, cost in LINKS:
            mesh.link(one, other, cost=cost)
        await mesh.settled()
        async with trio.open_nursery() as nursery:
            for address, _, _, _, target in FLOWS:
                nursery.start_soon(receive, mesh, address, target)
            async with trio.open_nursery() as senders:
                for address, pause, size, source, _ in FLOWS:
                    senders.start_soon(send, mesh, address, pause, size, source)
            nursery.cancel_scope.cancel()


def shoot(page: Path, folder: str) -> None:
    """Take the pictures of a report. Args: folder: with the records and the results."""
    page.write_text(page.read_text(encoding="utf-8").replace(folder, SHOWN), encoding="utf-8")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for name, section, height in SHOTS:
            opened = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
            opened.goto(page.as_uri() + (f"#{section}" if section else ""))
            opened.wait_for_timeout(500)
            image = Image.open(io.BytesIO(opened.screenshot())).convert("RGB")
            image.quantize(64, dither=Image.Dither.NONE).save(SCREENS / f"{name}.png", optimize=True)
        browser.close()


def main() -> None:
    """Record, run the jobs, and write all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        events, out = Path(folder, "telemetry"), Path(folder, "results")
        trio.run(record, events, clock=MockClock(autojump_threshold=0))
        command = [sys.executable, "-m", "amqpmesh", "pipeline", "run", "--events", str(events), "--out", str(out)]
        subprocess.run(command, check=True)  # noqa: S603 - this program
        shoot(out / "report.html", folder)


if __name__ == "__main__":
    main()
