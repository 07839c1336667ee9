"""The choice of the kernel of this process: compiled, or pure Python.

`kernel/__init__.py` calls `bind` once, at its first import. The environment variable `AMQPMESH_KERNEL` is `compiled` or
`pure`. Without it, the compiled kernel runs if it was compiled from the source beside it. A kernel of other source is
never loaded: after an edit, the edited source runs.

The parts of the kernel are ordinary modules, each of which imports only parts before it in `ORDER`. For the compiler
they are joined to one file (`put_together`): so classes may refer to each other, and calls between parts are C calls.

`setup.py` runs this file alone, so it imports nothing of the project.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

VARIABLE: Final = "AMQPMESH_KERNEL"
PACKAGE: Final = "amqpmesh.router.kernel"
COMPILED: Final = f"{PACKAGE}._compiled"

#: The parts, in the order in which they may import each other.
ORDER: Final = (
    "serial",
    "violations",
    "small_sets",
    "credit_sinks",
    "credit_sources",
    "weighted_credit",
    "going_ahead",
    "credit_parts",
    "credit_lines",
    "credit_sums",
    "credit_pool",
    "encoded_values",
    "field_lists",
    "encoded_states",
    "outcome_steps",
    "frame_fields",
    "frame_reading",
    "frame_writing",
    "head_sections",
    "user_ids",
    "message_ids",
    "trace_contexts",
    "section_walk",
    "ledger",
    "delivery_keys",
    "tree_history",
    "hop_recorder",
    "budget",
    "kept_messages",
    "seen_messages",
    "rate_meter",
    "router_state",
    "connection_endpoint",
    "session_endpoint",
    "link_endpoint",
    "flow_control",
    "relays",
    "fast_route",
    "transit_routes",
    "anonymous_routes",
    "credit_counting",
    "backpressure",
    "fast_shares",
    "fast_multicast",
    "fast_deliveries",
    "transfer_accounting",
    "fast_redelivery",
    "fast_duplicates",
    "multicast_path",
    "held_back",
    "credit_dealing",
    "fast_settlement",
    "multicast_settlement",
    "dispositions",
    "parked_links",
    "link_sweep",
    "away",
    "client_batch",
    "multi_frame",
    "fast_path",
    "frame_buffer",
)

_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
#: The C types of all parts.
TYPES: Final = os.path.join(_FOLDER, "types.pxd")


class Bound(NamedTuple):
    """The kernel that runs."""

    kernel: Literal["compiled", "pure"]
    #: The reason why the compiled kernel does not run; None: it runs.
    reason: str | None = None


def bind() -> Bound:
    """Choose the kernel. If it is the compiled one, let it stand in for each part.

    Raises: ImportError, named `COMPILED`: the variable asks for a compiled kernel and none can run, or it has another
        value than those two.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "pure":
        return Bound("pure", f"{VARIABLE} says so")
    if wanted not in ("", "compiled"):
        raise ImportError(f"{VARIABLE} is {wanted!r}: it must be `compiled` or `pure`", name=COMPILED)
    compiled = compiled_file()
    if compiled is None:
        reason = "there is no compiled kernel"
    elif not is_of_source(compiled):
        reason = "the compiled kernel is of another source"
        if not wanted:
            warnings.warn(f"{compiled}: {reason} than {_FOLDER}, which runs uncompiled", RuntimeWarning, stacklevel=2)
    else:
        try:
            kernel = load(compiled, COMPILED)
        except ImportError as error:  # compiled for another system
            reason = f"the compiled kernel cannot be loaded: {error}"
        else:
            _stand_in(kernel)
            return Bound("compiled")
    if wanted:
        raise ImportError(f"{VARIABLE} is 'compiled': {reason}", name=COMPILED)
    return Bound("pure", reason)


def compiled_file() -> str | None:
    """Return the file of the compiled kernel; None: there is none."""
    files = (os.path.join(_FOLDER, f"_compiled{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next((file for file in files if os.path.exists(file)), None)


def is_of_source(compiled: str) -> bool:
    """Return whether a kernel was compiled from the source here."""
    with open(compiled, "rb") as file:
        return mark() in file.read()


def mark() -> bytes:
    """Return the octets that a kernel contains if it was compiled from the source here."""
    digest = sha256()
    for file in (*map(part_file, ORDER), TYPES):
        with open(file, "rb") as source:
            digest.update(os.path.basename(file).encode() + sha256(source.read()).digest())
    return f"amqpmesh-kernel-of-{digest.hexdigest()}".encode()


def part_file(part: str) -> str:
    """Return the file of a part."""
    return os.path.join(_FOLDER, f"{part}.py")


def put_together() -> str:
    """Return the source of all parts as one module, without their docstrings and their imports of each other.

    Each part begins with a line such as `# ---- ledger.py`, in place of its first line, and keeps all its lines: the
    number of a line in the part is its distance from that line, plus 1.
    """
    imports: set[str] = set()
    text: list[str] = []
    for part in ORDER:
        with open(part_file(part), encoding="utf-8") as file:
            source = file.read()
        lines = source.splitlines()
        for statement in ast.parse(source).body:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            of_types = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
            if is_import or of_types or isinstance(statement, ast.Expr):  # the expression is the docstring
                last = statement.end_lineno or statement.lineno
                lines[statement.lineno - 1 : last] = [""] * (last - statement.lineno + 1)
            if is_import and PACKAGE not in (imported := ast.unparse(statement)) and "__future__" not in imported:
                imports.add(imported)
        text += [f"# ---- {part}.py", *lines[1:]]
    return "\n".join(
        [
            "from __future__ import annotations",
            *sorted(imports),
            "try:",
            "    import cython",
            "except ImportError:  # only the compiler needs it",
            f"    from {PACKAGE} import uncompiled as cython",
            "if not cython.compiled:",
            f"    from {PACKAGE}.uncompiled import copy, grow, set_field",
            *text,
            "",
        ]
    )


def load(file: str, name: str) -> ModuleType:
    """Load a file as the module of that name. Raises: ImportError: the system cannot load it."""
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _stand_in(kernel: ModuleType) -> None:
    """Let the compiled kernel stand in for each part, so that each class exists only once."""
    package = vars(sys.modules[PACKAGE])
    package["_compiled"] = kernel
    for part in ORDER:
        sys.modules[f"{PACKAGE}.{part}"] = package[part] = kernel
