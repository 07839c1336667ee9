"""The build of the pages: no warnings, and every public name in the reference."""

import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import amqpmesh

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages as `make docs` does."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", f"{folder}/doctrees"]
    done = subprocess.run([*command, "docs", f"{folder}/html"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built(built: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(built).with_suffix("") for page in built.rglob("*.html")}


def test_every_public_name_is_in_the_reference(built: Path) -> None:
    lines = zlib.decompress((built / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    documented = {line.split()[0] for line in lines if " py:" in line}
    assert {f"amqpmesh.{name}" for name in amqpmesh.__all__ if not name.startswith("__")} <= documented


def test_the_pages_load_nothing_from_elsewhere(built: Path) -> None:
    for page in built.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="([^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded, page
        assert not [url for url in loaded if "//" in url], page


def test_no_page_is_longer_than_400_lines() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    assert not [page.name for page in pages if len(page.read_text(encoding="utf-8").splitlines()) > 400]
