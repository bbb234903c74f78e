"""Build the compiled kernels: `python core/emberge/numerics/native/build.py` in a checkout.

It needs a C compiler (`CC`, or else cc, gcc or clang), and nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "row_kernels.c"
LIBRARY = FOLDER / "row_kernels.so"

# Without contraction each product and each sum is rounded; flags of traps and errno change no number.
_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-fPIC", "-Wall", "-Wextra"]
_FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# Instruction sets to compile for, by the processor's architecture, with the compiler's flags.
_LEVELS: dict[str, dict[str, list[str]]] = {
    "x86_64": {"v3": ["-march=x86-64-v3"], "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"]},
    "arm64": {"arm64": []},
}
_NAMES = {"amd64": "x86_64", "x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


class BuildError(Exception):
    """Kernels that cannot be built here, with the reason."""


def hash_source() -> str:
    """Return the hash of all that the library is built from."""
    content = SOURCE.read_bytes() + Path(__file__).read_bytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def build() -> Path:
    """Compile the kernels beside their source, and return the library.

    Raises:
        BuildError: if there is no compiler, if it fails, or if the folder cannot be written.
    """
    levels = _LEVELS.get(_NAMES.get(platform.machine().lower(), ""))
    if sys.platform == "win32" or levels is None:
        raise BuildError(f"there are no kernels for {sys.platform} on {platform.machine()}")
    try:
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".build-") as work:
            library = _build_library(_find_compiler(), levels, Path(work))
            # In one step, as another process may have the old library open.
            os.replace(library, LIBRARY)
    except OSError as error:
        raise BuildError(f"{error.filename}: {error.strerror}") from None
    return LIBRARY


def _build_library(compiler: list[str], levels: dict[str, list[str]], work: Path) -> Path:
    """Compile the source once for each level, and once for the choice of a level, and link all."""
    objects = [_compile(compiler, [f'-DSOURCE="{hash_source()}"'], work / "choice.o")]
    for level, flags in levels.items():
        objects.append(_compile(compiler, [f"-DLEVEL={level}", *flags], work / f"{level}.o"))
    library = work / LIBRARY.name
    _call([*compiler, "-shared", "-o", str(library), *map(str, objects)])
    return library


def _find_compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", ""))
    for name in words[:1] or ["cc", "gcc", "clang"]:
        if shutil.which(name):
            return words or [name]
    raise BuildError(f"there is no C compiler ({words[0] if words else 'cc, gcc or clang'})")


def _compile(compiler: list[str], flags: list[str], into: Path) -> Path:
    _call([*compiler, *_FLAGS, *flags, "-c", str(SOURCE), "-o", str(into)])
    return into


def _call(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{words[0]} cannot be started: {error}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(words)} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        sys.exit(f"no kernels were built: {error}")
