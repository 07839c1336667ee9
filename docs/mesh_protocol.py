"""Tables of `internals/mesh-protocol.md`, made from the declarations of bodies and settings.

`python -m docs.mesh_protocol` writes each table into the page, between `<!-- NAME -->` and `<!-- end -->`. A test
checks that they are up to date and complete.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path

from amqpmesh.topology.messages import TYPES
from amqpmesh.topology.records import BODIES
from amqpmesh.topology.schema import Body
from amqpmesh.topology.settings import Settings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "mesh-protocol.md"
SETTINGS = ROOT / "topology" / "settings.py"


def tables() -> Mapping[str, str]:
    """Return the tables by name: the titles of the bodies, and `Settings`."""
    made = {form.TITLE: _schema(form) for form in (*TYPES.values(), *BODIES.values())}
    return {**made, "Settings": _settings()}


def filled(page: str) -> str:
    """Return the page with its tables filled in.

    Raises: KeyError: the page has a place for an unknown table.
    """
    made = tables()
    return re.sub(
        r"<!-- (\w+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end -->",
        page,
        flags=re.DOTALL,
    )


def _schema(form: type[Body]) -> str:
    rows = [
        f"| `{key}` | {name.replace('_', ' ')} | {kind.describe()} | {words} | {_default(default)} |"
        for name, key, kind, words, default in form.ITEMS
    ]
    sentence = form.WORDS[0].upper() + form.WORDS[1:]
    return "\n".join([f"{sentence}.", "", "| key | item | form | meaning | default |", "|---|---|---|---|---|", *rows])


def _default(value: object) -> str:
    if value is MISSING:
        return "required"
    shown = {None: "nil", True: "true", False: "false", "": "empty", (): "none"}
    return shown[value] if isinstance(value, bool) or value in (None, "", ()) else str(value)


def _settings() -> str:
    words: dict[str, str] = {}
    (declared,) = (node for node in ast.parse(SETTINGS.read_text()).body if isinstance(node, ast.ClassDef))
    name = ""
    for node in declared.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words[name] = " ".join(str(node.value.value).split())
    defaults = Settings()
    rows = [f"| `{name}` | {_number(getattr(defaults, name))} | {words[name]} |" for name in Settings.__slots__]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def _number(value: object) -> str:
    if value == "":
        return "empty"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
