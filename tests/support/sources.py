"""The project's own Python files."""

from __future__ import annotations

from pathlib import Path

from tests.support.places import ROOT

CORE = ROOT / "core" / "emberge"
PLUGINS = ROOT / "plugins"
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests"


def python_files(*roots: Path) -> list[Path]:
    """Return all Python files under the roots, without caches."""
    return sorted(f for root in roots for f in root.rglob("*.py") if "__pycache__" not in f.parts)
