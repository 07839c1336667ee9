"""Checks of the house that ruff does not know: sizes, names of files, the form of docstrings, retired words.

`python .ci/house.py [ROOT]` prints a line for each fault and exits with 1 if there is any. `house.toml` holds the
figures and the words of the rules.
"""

import os
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PACKAGES = ("pipeline", "policies", "router", "topology")
CODE = (*PACKAGES, "benchmarks", "docs", "examples")
DOORS = ("__init__.py", "__main__.py")
SKIPPED = {"amqpmesh", "build", "dist", "node_modules", "__pycache__"}  # the face links to the rooms
READ = {".md", ".pxd", ".py", ".toml"}
# The changelog quotes former names, and the rules and their tests quote the retired words.
QUOTING = {"CHANGELOG.md", ".ci/house.py", ".ci/house.toml", "tests/ci/test_house.py"}
QUESTION = re.compile(
    r'^[ \t]*[rR]?"""'
    r"(What|Whatever|Who|Whom|Whose|Whoever|Whether|Where|Wherever|Which|When|Whenever|Why|How|However)\b",
    re.MULTILINE,
)
WORD = re.compile(r"[A-Za-z_]\w+")


class Fault(NamedTuple):
    """A rule, what breaks it (a path, a name of files, or a word), and an explanation."""

    rule: str
    subject: str
    text: str


def files(root: Path) -> dict[str, str]:
    """Read the code and the pages of the tree, by path."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each not in SKIPPED and (each[0] != "." or each == ".ci"))
        for name in names:
            path = Path(folder, name)
            if (path.suffix in READ or name == "Makefile") and not path.is_symlink():
                found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return found


def sizes(texts: dict[str, str], rules: dict) -> Iterator[Fault]:
    """Find files that are too long, and files that are too short to stand alone."""
    allowed = rules["small"]
    if len(allowed) > rules["most_small"]:
        yield Fault("small", "house.toml", f"it lists {len(allowed)} small files, more than {rules['most_small']}")
    for path, text in texts.items():
        room, lines = path.split("/")[0], text.count("\n")
        if not path.endswith(".py") or room not in (*CODE, "tests"):
            continue
        longest = rules["longest_test"] if room == "tests" else rules["longest"]
        if lines > longest:
            yield Fault("large", path, f"{lines} lines, more than {longest}")
        door = path.endswith(DOORS) or path.startswith("router/kernel/")
        if room in PACKAGES and lines < rules["shortest"] and not door and path not in allowed:
            yield Fault("small", path, f"{lines} lines: merge it, or give a reason in house.toml")


def names(texts: dict[str, str], rules: dict) -> Iterator[Fault]:
    """Find names that several files have, and files that lie flat in the router."""
    paths = defaultdict(list)
    for path in texts:
        if path.endswith(".py") and path.split("/")[0] in PACKAGES and not path.endswith(DOORS):
            paths[PurePosixPath(path).stem].append(path)
    for name, same in paths.items():
        if len(same) > rules["most_of_a_name"]:
            yield Fault("name", name, f"stands for {len(same)} things: {', '.join(sorted(same))}")
    flat = [path for stem in paths.values() for path in stem if PurePosixPath(path).parent.as_posix() == "router"]
    if len(flat) > rules["most_flat"]:
        yield Fault("flat", "router", f"{len(flat)} files lie flat, more than {rules['most_flat']}")


def docstrings(texts: dict[str, str]) -> Iterator[Fault]:
    """Find docstrings that begin with a question word, in place of a noun phrase or a verb phrase."""
    for path, text in texts.items():
        if path.endswith(".py"):
            for match in QUESTION.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield Fault("docstring", path, f"line {line} begins with {match[1]!r}")


def words(texts: dict[str, str], retired: dict[str, str], phrases: dict[str, str]) -> Iterator[Fault]:
    """Find retired names, which are to be renamed everywhere at once, and retired phrases."""
    patterns = {old: re.compile(r"\b" + r"\s+".join(map(re.escape, old.split())) + r"\b", re.I) for old in phrases}
    for path, text in texts.items():
        if path in QUOTING:
            continue
        for old in sorted(retired.keys() & set(WORD.findall(text))):
            yield Fault("word", old, f"{path}: say {retired[old]}")
        lower = text.lower()
        for old, pattern in patterns.items():
            if old.split()[0] in lower and (match := pattern.search(text)):
                line = text.count("\n", 0, match.start()) + 1
                yield Fault("phrase", path, f"line {line}: not {old!r} but {phrases[old]!r}")


def check(root: Path) -> int:
    """Print the faults, and return the exit status."""
    rules = tomllib.loads((root / ".ci/house.toml").read_text(encoding="utf-8"))
    texts = files(root)
    faults = [
        *sizes(texts, rules["sizes"]),
        *names(texts, rules["names"]),
        *docstrings(texts),
        *words(texts, rules["words"], rules["phrases"]),
    ]
    for fault in faults:
        print(f"{fault.rule}: {fault.subject}: {fault.text}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
