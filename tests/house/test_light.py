"""Importing emberge and finding every plugin loads no heavy library, so that `--help` is fast."""

from __future__ import annotations

import json

from tests.house.commands import environment, python

HEAVY = (
    "accelerate",
    "datasets",
    "matplotlib",
    "mergekit",
    "mteb",
    "numpy",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
)
LOADED = f"import sys, json; print(json.dumps(sorted(set(sys.modules) & set({HEAVY}))))"
# What `emberge --help` may import, all told: Python's own start-up is about 60 of them. A count stands for
# CPU time, because a count is the same on every machine.
HELP_MODULES = 220


def test_importing_emberge_loads_no_heavy_library() -> None:
    assert json.loads(python("-c", f"import emberge; {LOADED}").stdout) == []


def test_importing_every_room_that_plugins_are_found_by_loads_no_heavy_library() -> None:
    code = (
        "import emberge, emberge.plugins, emberge.hookspecs, emberge.recipes.parse.parse,"
        " emberge.recipes.docs.json_schema, emberge.recipes.docs.describe,"
        " emberge.recipes.checks.preflight, emberge.cli.main;"
    )
    assert json.loads(python("-c", code + LOADED).stdout) == []


def test_loading_all_plugins_loads_no_heavy_library() -> None:
    found = python(
        "-c", f"from emberge import load_plugins; assert load_plugins().components; {LOADED}"
    )
    assert json.loads(found.stdout) == []


def test_a_trace_of_importing_emberge_shows_no_torch() -> None:
    trace = python("-X", "importtime", "-c", "import emberge").stderr
    assert "emberge.contracts.stage" in trace
    assert "torch" not in trace


def test_help_imports_few_modules() -> None:
    trace = python("-X", "importtime", "-m", "emberge", "--help").stderr
    imported = [line.rpartition("|")[2].strip() for line in trace.splitlines() if "|" in line]
    assert "emberge.cli.main" in " ".join(imported)
    assert not {name.split(".")[0] for name in imported} & set(HEAVY)
    assert len(imported) <= HELP_MODULES


def test_with_every_plugin_blocked_the_list_is_empty() -> None:
    blocked = environment(EMBERGE_BLOCK="*")
    assert json.loads(python("-m", "emberge", "list", "--json", env=blocked).stdout) == []
    rows = json.loads(python("-m", "emberge", "list", "--json").stdout)
    assert rows
    table = python("-m", "emberge", "list", env=blocked).stdout.split()
    assert not {row["name"] for row in rows} & set(table)
