"""The files and functions of emberge that one `emberge merge A B --base C --strategy ties` enters.

`python -m tests.support.entered` prints both numbers, and with `--list` every function by its file.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# Bodies of classes and modules are not "optimized"; these are, and are no functions to read either.
_NO_FUNCTIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def models(root: Path) -> list[str]:
    """Write two tiny models and their base, and return their folders."""
    from tests.support import tiny

    base = tiny.checkpoint(root / "base", "bert")
    for seed, name in enumerate("ab", 1):
        tiny.checkpoint(root / name, "bert", seed=seed, like=base)
    return [str(root / name) for name in ("a", "b", "base")]


def entered(words: list[str]) -> set[CodeType]:
    """Return the code of every function of emberge and its plugins that a command enters."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from emberge.cli.main import main

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert code == 0, f"it ended with {code}"
    root = Path(__file__).parents[2]
    ours = tuple(str(root / top) for top in ("core", "plugins"))
    return {
        one
        for one in seen
        if one.co_filename.startswith(ours)
        and one.co_flags & inspect.CO_OPTIMIZED
        and one.co_name not in _NO_FUNCTIONS
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        a, b, base = models(Path(place))
        found = entered(
            ["merge", a, b, "--base", base, "--strategy", "ties", "--out", f"{place}/out"]
        )
    by_file: dict[str, set[str]] = {}
    for one in found:
        by_file.setdefault(one.co_filename, set()).add(f"{one.co_firstlineno} {one.co_qualname}")
    if "--list" in sys.argv:
        for file in sorted(by_file):
            print(file, len(by_file[file]), *sorted(by_file[file]), sep="\n    ")
    print(f"{len(by_file)} files, {len(found)} functions")
