"""The folders that stages of the Makefile collect, and what they leave out."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variable", "marked"),
    [
        ("WITH_OTHERS", r"^(pytestmark = |@)pytest\.mark\.interop"),
        ("ON_SPARK", r"^@pytest\.mark\.spark|^def \w+\([^)]*\bspark: "),
    ],
)
def test_a_stage_collects_the_folders_of_all_its_tests(variable: str, marked: str) -> None:
    found = re.search(rf"^{variable} := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    folders = [ROOT / each for each in found[1].split()]
    files = [each for each in (ROOT / "tests").rglob("test_*.py") if re.search(marked, each.read_text(), re.MULTILINE)]
    assert len(files) > len(folders)
    outside = [each for each in files if not any(each.is_relative_to(folder) for folder in folders)]
    assert [each for each in outside if "pytest.mark.slow" not in each.read_text()] == []  # `make slow` collects all
    assert [folder for folder in folders if not any(each.is_relative_to(folder) for each in files)] == []


def test_what_a_stage_leaves_out_is_there() -> None:
    asked = subprocess.run(["make", "-n", "uncompiled"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left_out = re.findall(r'--ignore(?:-glob)?="?([^\s"]+)', asked)
    assert len(left_out) > 30
    assert [each for each in left_out if not list(ROOT.glob(each))] == []
