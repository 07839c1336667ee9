"""The one extension: the kernel, compiled where there is a C compiler. Everything else is in pyproject.toml."""

import os
import runpy
import shutil
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNEL = Path("amqpmesh/router/kernel")
BINDING = runpy.run_path(str(KERNEL / "binding.py"))
PARTS = [str(KERNEL / f"{part}.py") for part in BINDING["ORDER"]]
TYPES = str(KERNEL / "types.pxd")

# annotation_typing: `int` is Python's in the source, and C's where types.pxd says so. nonecheck: without it, the octets
# of a None are whatever lies there in memory. Bounds are checked, as they always are unless a directive says otherwise.
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "nonecheck": True, "auto_pickle": False}
# Cython's variable: the folder in which it keeps what it has translated, for who builds the same source several times.
# It finds it again by the names of the files, and the folder of an editable installation has another name each time.
KEPT = "CYTHON_CACHE_DIR" in os.environ


class BuildKernel(build_ext):
    """Translates with Cython once there is something to compile: source distributions hold no C."""

    def build_extension(self, ext: Any) -> None:
        """Put the parts together, translate, then compile. Raises: what `optional` forgives: there is no compiler."""
        from Cython.Build import cythonize

        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise CompileError(f"there is no {compiler}")  # before the translation, which takes half a minute

        # In folders of their own like those of the packages: Cython finds the types by the module's full name.
        folder = Path("build" if KEPT else self.build_temp, "kernel", *ext.name.split(".")[:-1])
        folder.mkdir(parents=True, exist_ok=True)
        for package in (folder, folder.parent, folder.parents[1]):
            (package / "__init__.py").touch()
        source = folder / "_compiled.py"
        source.write_text(BINDING["put_together"](), encoding="utf-8")
        shutil.copy(TYPES, source.with_suffix(".pxd"))
        whole = Extension(ext.name, [str(source)])
        (translated,) = cythonize(whole, compiler_directives=DIRECTIVES, force=not KEPT, cache=KEPT)
        # At import it is compared with the source that lies beside it.
        mark = folder / "mark.c"
        of_source: bytes = BINDING["mark"]()
        mark.write_text(f'const char amqpmesh_kernel_mark[] = "{of_source.decode()}";\n', encoding="ascii")
        ext.sources = [*translated.sources, str(mark)]
        super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "amqpmesh.router.kernel._compiled",
            PARTS,
            depends=[TYPES],
            extra_compile_args=["-g0"],  # most of the file would be names for a debugger
            optional=True,  # no compiler: the source runs as it is
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
