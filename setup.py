"""The one extension: the kernel, compiled where there is a C compiler. Everything else is in pyproject.toml."""

import runpy
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

        ext.define_macros.append(("AMQPMESH_KERNEL_SOURCE", f'"{mark()}"'))
        (translated,) = cythonize(
            Extension(ext.name, ext.sources), build_dir=self.build_temp, compiler_directives=DIRECTIVES, force=True
        )
        ext.sources = translated.sources
        super().build_extension(ext)


def mark() -> str:
    """What tells the source that is compiled from any other."""
    found: bytes = runpy.run_path(f"{KERNEL}/binding.py")["mark"]()
    return found.decode()


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
