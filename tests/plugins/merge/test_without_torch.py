"""A merge by compiled kernels loads no torch, unless a link, a dtype or a weight needs tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.commands import environment, python
from tests.support.compiled import require_kernels

require_kernels()

BASED = {
    "breadcrumbs": {"gamma": 0.1, "density": 0.5},
    "dare_ties": {"density": 0.5},
    "della": {"density": 0.5},
    "model_stock": {},
    "sce": {"select_topk": 0.5},
    "task_arithmetic": {},
    "ties": {"density": 0.5},
}
PLAIN = ("karcher", "linear", "multi_slerp", "slerp", "nuslerp", "sequential_slerp")
# Runs a recipe as the command line does, and prints whether torch is loaded.
RUN = """
import json, sys
from emberge.cli.main import main

assert main(["run", sys.argv[1], "--out", sys.argv[2], "--quiet"]) == 0
print(json.dumps("torch" in sys.modules))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and two siblings of it, in bfloat16."""
    folder = tmp_path_factory.mktemp("models")
    base = tiny.checkpoint(folder / "base", dtype="bfloat16")
    made = [
        tiny.checkpoint(folder / f"m{seed}", seed=seed, like=base, dtype="bfloat16")
        for seed in (1, 2)
    ]
    return [base, *made]


def loads_torch(folder: Path, steps: Sequence[dict[str, Any]], kernels: str = "kernels") -> bool:
    """Run merges as steps of one recipe in another process; return whether it loaded torch."""
    recipe = {"steps": {f"s{n}": {"merge": step} for n, step in enumerate(steps)}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    arguments = "-c", RUN, str(folder / "recipe.yaml"), str(folder / kernels)
    done = python(*arguments, env=environment(EMBERGE_KERNELS=kernels))
    return bool(json.loads(done.stdout.splitlines()[-1]))


def all_steps(models: Sequence[Path]) -> list[dict[str, Any]]:
    base, *others = map(str, models)
    based: list[dict[str, Any]] = [
        {"models": others, "base": base, "strategy": {name: options}}
        for name, options in BASED.items()
    ]
    kinds = ("float32", "float16", "bfloat16")
    dtypes = [{"models": others, "strategy": "linear", "out_dtype": kind} for kind in kinds]
    links = [{"drop": {"density": 0.5}}, {"trim": {"density": 0.5}}, "sign_consensus"]
    based.append({"models": others, "base": base, "strategy": links})
    return [*based, *({"models": others, "strategy": name} for name in PLAIN), *dtypes]


def test_merges_by_kernels_load_no_torch(models: Sequence[Path], tmp_path: Path) -> None:
    assert not loads_torch(tmp_path, all_steps(models))


LINKS = [
    {"drop": {"density": 0.5}},
    {"rescale": {"rescale_mode": "inverse_density"}},
    "task_arithmetic",
]
NEEDS: list[dict[str, Any]] = [
    {"strategy": LINKS},
    {"strategy": "task_arithmetic", "dtype": "float64"},
    {"strategy": "task_arithmetic", "keep": 0.5},
]


@pytest.mark.parametrize(
    "needs", [NEEDS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in NEEDS[1:])]
)
def test_merges_that_need_tensors_load_torch(
    needs: dict[str, Any], models: Sequence[Path], tmp_path: Path
) -> None:
    base, *others = map(str, models)
    assert loads_torch(tmp_path, [{"models": others, "base": base, **needs}])
