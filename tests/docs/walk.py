"""Walk through pages as a reader does, in one process: check recipes, run commands and Python.

Standard input has `[[folder, [block, …]], …]`, and standard output gets
`[[folder, line, what, code, output], …]`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emberge.cli.main import main

Found = tuple[int, str, int, str]


def walk(folder: Path, page: list[dict[str, Any]]) -> Iterator[Found]:
    """Write the page's files, then do its blocks."""
    os.chdir(folder)
    for block in page:
        if block["title"]:
            Path(block["title"]).parent.mkdir(parents=True, exist_ok=True)
            Path(block["title"]).write_text(block["code"], "utf-8")
    for block in page:
        yield from _do(block)


def _do(block: dict[str, Any]) -> Iterator[Found]:
    line = block["line"]
    if block["recipe"]:
        file = block["title"] or f"line-{line}.yaml"
        Path(file).write_text(block["code"], "utf-8")
        yield (line, f"check {file}", *_call(["check", file, "--offline"]))
    for words in block["commands"]:
        if words[0] == "emberge":
            yield (line, " ".join(words), *_call(words[1:]))
    if block["script"]:
        yield (line, "python", *_python(block["code"], line))


def _call(words: list[str]) -> tuple[int, str]:
    with _said() as said:
        code = main(words)
    return code, said.getvalue()


def _python(code: str, line: int) -> tuple[int, str]:
    with _said() as said:
        try:
            # As a reader's file, without this module's future statements.
            page = compile("\n" * line + code, "page", "exec", dont_inherit=True)
            exec(page, {"__name__": "page"})
        except Exception:
            traceback.print_exc()
            return 1, said.getvalue()
    return 0, said.getvalue()


@contextlib.contextmanager
def _said() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


if __name__ == "__main__":
    result = [
        (folder, *found)
        for folder, page in json.load(sys.stdin)
        for found in walk(Path(folder), page)
    ]
    print(json.dumps(result))
