"""The directive `public-names`: the public names of `amqpmesh`, grouped by their rooms.

So the reference follows `amqpmesh.__all__`, and no name is listed twice. In this project `Args:`, `Returns:` and
`Raises:` stand in the text of a docstring; here each becomes a separate paragraph.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec

import amqpmesh
from amqpmesh.router.config.tables import Table

_ARGUMENT = re.compile(r"^ *(?=[a-z_]+(?:, [a-z_]+)*: )", re.MULTILINE)
_LABEL = re.compile(r"(?:^|(?<=\. ))(Args|Attributes|Raises|Returns|Source|Yields):(?= |$)", re.MULTILINE)


def home(name: str) -> str:
    """Return the module that defines a public name; empty for a name that is not a definition."""
    return str(getattr(getattr(amqpmesh, name), "__module__", ""))


def room(name: str) -> str:
    """Return the room of a public name, without `amqpmesh.`; empty for a name of `amqpmesh` itself."""
    return home(name).removeprefix("amqpmesh").removeprefix(".")


def is_error(name: str) -> bool:
    """Tell whether a public name is an exception."""
    value = getattr(amqpmesh, name)
    return inspect.isclass(value) and issubclass(value, BaseException)


def definition(name: str) -> Iterator[str]:
    """Yield the lines of the autodoc directive for a public name."""
    value = getattr(amqpmesh, name)
    if inspect.isclass(value):
        kind = "autoexception" if is_error(name) else "autoclass"
    else:
        kind = "autofunction" if inspect.isroutine(value) else "autodata"
    yield f".. {kind}:: amqpmesh.{name}"
    if kind == "autoclass" and not issubclass(value, Table):  # a table's keys are explained in the configuration
        yield "   :members:"
        yield "   :inherited-members: int, str, tuple, Enum, Exception, Generic"
        if is_dataclass(value):
            yield "   :undoc-members:"
    yield ""


class PublicNames(SphinxDirective):
    """The directive: `:rooms: a b` lists names of rooms, except errors; `:errors:` the errors; `:rest:` all others."""

    option_spec: ClassVar[OptionSpec] = {
        "rooms": directives.unchanged_required,
        "errors": directives.flag,
        "rest": directives.flag,
    }
    taken: ClassVar[set[str]] = set()

    def run(self) -> list[nodes.Node]:
        """Return the definitions, in alphabetical order."""
        self.env.note_dependency(str(amqpmesh.__file__))
        names = [name for name in sorted(amqpmesh.__all__, key=str.lower) if not name.startswith("__")]
        if "rest" in self.options:
            names = [name for name in names if name not in self.taken]
        elif "errors" in self.options:
            names = [name for name in names if is_error(name)]
        else:
            rooms = self.options["rooms"].split()
            below = [name for name in names if any(f"{room(name)}.".startswith(f"{each}.") for each in rooms)]
            names = [name for name in below if not is_error(name)]
        self.taken.update(names)
        return self.parse_text_to_nodes_as_rst([line for name in names for line in definition(name)])

    def parse_text_to_nodes_as_rst(self, lines: Sequence[str]) -> list[nodes.Node]:
        """Parse reStructuredText, which autodoc writes, inside a Markdown page."""
        text = StringList(["```{eval-rst}", *lines, "```"], self.get_source_info()[0])
        container = nodes.Element()
        self.state.nested_parse(text, self.content_offset, container)
        return list(container.children)


def paragraphs(_app: Sphinx, _kind: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Put each label of a docstring into a separate paragraph."""
    parts = _LABEL.split("\n".join(lines))  # prose, then label and what follows it in turn
    text = [parts[0]]
    for label, rest in zip(parts[1::2], parts[2::2], strict=True):
        items = [" ".join(item.split()) for item in _ARGUMENT.split(rest) if item.strip()]
        text += ["", f"**{label}:** {items[0]}"] if len(items) == 1 else ["", f"**{label}:**", ""]
        text += [f"* {item}" for item in items if len(items) > 1]
    lines[:] = "\n".join([*text, ""]).split("\n")


def signature(
    _app: Sphinx, _kind: str, _name: str, _value: object, _options: object, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a default that a factory makes as `...`, because the dataclass' own text is not Python."""
    return arguments and arguments.replace("<factory>", "..."), returns


def unlinked(_app: Sphinx, _env: BuildEnvironment, reference: pending_xref, text: nodes.Node) -> nodes.Node | None:
    """Show types without a page as plain text: types of other libraries, and types of the rooms that are not public."""
    target = str(reference["reftarget"])
    public = {f"amqpmesh.{name}" for name in amqpmesh.__all__} | {f"{home(name)}.{name}" for name in amqpmesh.__all__}
    if reference.get("refdomain") != "py" or target in public:
        return None  # an error, which Sphinx reports
    return text


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the hooks. Sphinx calls this function."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", paragraphs)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", unlinked)
    return {"parallel_read_safe": False}
