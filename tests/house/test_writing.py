"""Who writes files in place, appends, makes links or locks does it through the room of files.

What that room writes is complete or absent after a kill or a power cut. New files in a step's own folders,
which are published as a whole, may be written plainly (`Path.write_text`, `np.save`, `save_file`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import CORE, PLUGINS, ROOT, python_files

DOOR = CORE / "files"
MODE = re.compile(r"[rwabtx+]{1,3}")
# Calls for which the room of files has a function.
INSTEAD = {
    "open": "replace_file",
    "os.open": "replace_file",
    "flock": "the functions of files.locks",
    "lockf": "the functions of files.locks",
    "symlink_to": "replace_link",
    "symlink": "replace_link",
    "hardlink_to": "link_or_copy",
    "os.link": "link_or_copy",
    "mktemp": "replace_file",
    "NamedTemporaryFile": "replace_file",
    "a side name": "replace_file or replace_folder",
}
# Files that write by themselves: new files in a folder that they, or their step, have just made, ...
NEW_FILES = {
    "core/emberge/data/dataset_store.py",
    "core/emberge/data/catalogue_file.py",
    "core/emberge/encoding/token_cache.py",
    "core/emberge/processes.py",  # of a random name, in a work folder
    "core/emberge/tensor_files/server_file.py",
    "plugins/emberge_data/steps/deduplicate/text_copies.py",
    # ... and in place or at the end of a file, in a folder that is locked.
    "core/emberge/merging/streaming/stream.py",
    "core/emberge/recipes/run/run_log.py",
    "core/emberge/tensor_files/write_queue.py",
}


def writes(call: ast.Call) -> bool:
    """Whether a call of `open` creates or changes a file that has no side name yet."""
    words = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    texts = [w.value for w in words if isinstance(w, ast.Constant) and isinstance(w.value, str)]
    mode = next((text for text in texts if MODE.fullmatch(text)), "")
    return bool(set(mode) & set("wax+")) and ast.unparse(call.func) not in (
        "side.open",
        "wave.open",
    )


def around_the_door(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that the room of files has a function for."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and str(node.value).endswith(".part"):
            yield node.lineno, "a side name"
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        name = function if function in INSTEAD else function.rpartition(".")[2]
        if function == "os.open":
            if re.search(r"O_(WRONLY|RDWR|CREAT|APPEND|TRUNC)", ast.unparse(node)):
                yield node.lineno, function
        elif name == "open":
            if writes(node):
                yield node.lineno, name
        elif name in INSTEAD:
            yield node.lineno, name


@pytest.mark.parametrize(
    "file",
    [file for file in python_files(CORE, PLUGINS) if DOOR not in file.parents],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_files_are_written_through_their_room(file: Path) -> None:
    found = [
        f"{file}:{line}: {name}; use {INSTEAD[name]}"
        for line, name in around_the_door(file.read_text("utf-8"))
    ]
    if str(file.relative_to(ROOT)) in NEW_FILES:
        assert found, "it no longer writes by itself; leave it out of the list"
    else:
        assert not found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("path.open('a')", "open"),
        ("open(path, mode='r+b')", "open"),
        ("open(path, 'w', encoding='utf-8')", "open"),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", "os.open"),
        ("fcntl.flock(file, 2)", "flock"),
        ("link.symlink_to(target)", "symlink_to"),
        ("os.symlink(target, link)", "symlink"),
        ("os.link(source, target)", "os.link"),
        ("path.with_name(f'.{name}.part')", "a side name"),
        ("path.open('rb')", None),
        ("place.link('step')", None),
        ("os.open(path, os.O_RDONLY)", None),
        ("side.open('wb')", None),
    ],
)
def test_the_rule_knows_writing_from_reading(source: str, found: str | None) -> None:
    assert [name for _, name in around_the_door(source)] == ([found] if found else [])
