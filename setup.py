"""The one extension: the kernel, compiled where there is a C compiler. Everything else is in pyproject.toml."""

import runpy
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = "amqpmesh/router/kernel"

# annotation_typing: `int` is Python's in the source, and C's where relay.pxd says so. nonecheck: without it, the octets
# of a None are whatever lies there in memory. Bounds are checked, as they always are unless somebody says otherwise.
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "nonecheck": True, "auto_pickle": False}


class BuildKernel(build_ext):
    """Translates with Cython once there is something to compile: source distributions hold no C."""

    def build_extension(self, ext: Any) -> None:
        """Translate, then compile. Raises: what `optional` forgives: there is no compiler."""
        from Cython.Build import cythonize

        (translated,) = cythonize(
            Extension(ext.name, ext.sources), build_dir=self.build_temp, compiler_directives=DIRECTIVES, force=True
        )
        # At import it is compared with the source that lies beside it.
        mark = Path(self.build_temp, "mark.c")
        of_source: bytes = runpy.run_path(f"{KERNEL}/binding.py")["mark"]()
        mark.write_text(f'const char amqpmesh_kernel_mark[] = "{of_source.decode()}";\n', encoding="ascii")
        ext.sources = [*translated.sources, str(mark)]
        super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "amqpmesh.router.kernel.relay",
            [f"{KERNEL}/relay.py"],
            depends=[f"{KERNEL}/relay.pxd"],
            extra_compile_args=["-g0"],  # most of the file would be names for a debugger
            optional=True,  # no compiler: the source runs as it is
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
