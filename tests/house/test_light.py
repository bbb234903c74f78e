"""Importing emberge and finding every plugin loads no heavy library, so that `--help` is fast."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import environment, python

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
    "scipy",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
)
LOADED = f"import sys, json; print(json.dumps(sorted(set(sys.modules) & set({HEAVY}))))"
# What the help of a verb may import, all told: Python's own start-up is about 60 of them. A count stands for
# CPU time, because a count is the same on every machine. `emberge --help` shows the verbs of plugins, too.
HELP_MODULES = {"status": 220, "": 260}


def test_importing_emberge_loads_no_heavy_library() -> None:
    assert json.loads(python("-c", f"import emberge; {LOADED}").stdout) == []


def test_importing_every_room_that_plugins_are_found_by_loads_no_heavy_library() -> None:
    code = (
        "import emberge, emberge.plugins, emberge.hookspecs, emberge.recipes.parse.parse,"
        " emberge.recipes.json_schema, emberge.options.component_pages,"
        " emberge.recipes.preflight, emberge.cli.main;"
    )
    assert json.loads(python("-c", code + LOADED).stdout) == []


def test_loading_all_plugins_loads_no_heavy_library() -> None:
    every = "found = load_plugins().components; assert found and all(one.type for one in found)"
    found = python("-c", f"from emberge import load_plugins; {every}; {LOADED}")
    assert json.loads(found.stdout) == []


def test_finding_a_step_imports_no_other_step() -> None:
    loaded = modules("from emberge import load_plugins; load_plugins().find('merge', 'step').type")
    assert "emberge_merge.steps.merge" in loaded
    assert "emberge_merge.steps.extract_lora" not in loaded
    assert not {"emberge_data.steps", "emberge_train.train_step", "pydantic"} & loaded


def test_a_public_contract_loads_no_torch() -> None:
    loaded = modules("import emberge; emberge.MergeStrategy")
    assert "emberge.contracts.stage" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("verb", HELP_MODULES)
def test_help_imports_few_modules(verb: str) -> None:
    loaded = modules(
        "from contextlib import suppress; from emberge.cli.main import main\n"
        f"with suppress(SystemExit): main(['{verb}', '--help'][not '{verb}':])"
    )
    assert "emberge.cli.main" in loaded
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)
    assert len(loaded) <= HELP_MODULES[verb]


def modules(code: str) -> set[str]:
    """Return the names of all modules that a process has loaded after running the code."""
    done = python(
        "-c", f"{code}\nimport json, sys; print(); print(json.dumps(sorted(sys.modules)))"
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_with_every_plugin_blocked_the_list_is_empty() -> None:
    blocked = environment(EMBERGE_BLOCK="*")
    assert python("-m", "emberge", "list", env=blocked).stdout == ""
