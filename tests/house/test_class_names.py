"""A class has one name in the whole project: who reads it, or looks for it, finds one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.support.sources import CORE, PLUGINS, ROOT, python_files


def classes(file: Path) -> list[str]:
    """The classes at a module's top."""
    body = ast.parse(file.read_text("utf-8")).body
    return [node.name for node in body if isinstance(node, ast.ClassDef)]


def test_no_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in python_files(CORE, PLUGINS):
        for name in classes(file):
            homes[name].append(str(file.relative_to(ROOT)))
    assert len(homes) > 500
    assert not {name: files for name, files in homes.items() if len(files) > 1}
