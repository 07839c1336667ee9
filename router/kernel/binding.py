"""Which kernel runs: `relay.py` compiled, or as it is. Decided once, when the first module of the kernel is imported.

The environment variable `AMQPMESH_KERNEL` says `compiled` or `pure`. Without it the compiled one is taken where there
is one of the very source that lies beside it. Machine code hides the source that it was made of, so one of another
source is never loaded: whoever edits `relay.py` runs what he reads.
"""

from __future__ import annotations

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
MODULE: Final = f"{PACKAGE}.relay"

_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
SOURCE: Final = os.path.join(_FOLDER, "relay.py")
_TYPES: Final = os.path.join(_FOLDER, "relay.pxd")


class Bound(NamedTuple):
    """The kernel that runs."""

    kernel: Literal["compiled", "pure"]
    #: Why it is not the compiled one; None: it is.
    reason: str | None = None


def bind() -> Bound:
    """Load the kernel as `amqpmesh.router.kernel.relay`.

    Raises: ImportError, of that name: the variable wants one that is not there, or says neither.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "pure":
        _bind(SOURCE)
        return Bound("pure", f"{VARIABLE} says so")
    if wanted not in ("", "compiled"):
        raise ImportError(f"{VARIABLE} is {wanted!r}: `compiled` or `pure` is wanted", name=MODULE)
    compiled = compiled_file()
    if compiled is None:
        reason = "it is not compiled"
    elif not is_of_source(compiled):
        reason = "what is compiled is another source"
        if not wanted:
            warnings.warn(f"{compiled}: {reason} than {SOURCE}, which runs as it is", RuntimeWarning, stacklevel=2)
    else:
        try:
            _bind(compiled)
        except ImportError as error:  # made for another system
            reason = f"what is compiled cannot be loaded: {error}"
        else:
            return Bound("compiled")
    if wanted:
        raise ImportError(f"{VARIABLE} is 'compiled': {reason}", name=MODULE)
    _bind(SOURCE)
    return Bound("pure", reason)


def compiled_file() -> str | None:
    """The file of the compiled kernel; None: there is none."""
    files = (os.path.join(_FOLDER, f"relay{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next((file for file in files if os.path.exists(file)), None)


def is_of_source(compiled: str) -> bool:
    """Whether that file was made of the source that lies here."""
    with open(compiled, "rb") as file:
        return mark() in file.read()


def mark() -> bytes:
    """What a kernel that is compiled of the source here contains."""
    digest = sha256()
    for file in (SOURCE, _TYPES):
        with open(file, "rb") as source:
            digest.update(sha256(source.read()).digest())
    return f"amqpmesh-kernel-of-{digest.hexdigest()}".encode()


def load(file: str, name: str) -> ModuleType:
    """The module of that name, of that file. Raises: ImportError: the system does not take it."""
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


def _bind(file: str) -> None:
    vars(sys.modules[PACKAGE])["relay"] = load(file, MODULE)
