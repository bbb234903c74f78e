"""Trainings for bits beside Matryoshka and rotations.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.served OUT

Models trained on the signs of their embeddings (by straight-through gradients and by a smoothed sign) or on
embeddings with noise are compared with the plain and the Matryoshka models of `served/laptop`, as they are
and after a rotation that was fitted off the collections. Six searches of up to 300 questions and 1,500
documents, three seeds. If OUT is the folder of `emberge run served/laptop --out OUT`, its trainings are not
run again. The tables are those of `OUT/signs/scores.md`, for whole vectors and 128 numbers, and of
`OUT/signs_rotated/scores.md`, for rotations that end in 128.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

import emberge
import yaml
from emberge_local import Local

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "merge_recipes" / "served" / "laptop.yaml"
DATA = ROOT.parent / "shared"
PLUGIN = Path(__file__).with_name("sign_losses.py")
KINDS = ("straight_through", "smooth", "noise")
_DIMS = [384, 128]
_PRECISIONS = ["float32", "binary", {"precision": "binary", "rescore": 40, "by": "int8"}]


def build_recipe(kinds: Collection[str] = KINDS) -> dict[str, Any]:
    """Return the recipe's trainings beside trainings for bits, their rotations and all scores."""
    text = RECIPE.read_text("utf-8").replace("../../../shared", str(DATA))
    recipe: dict[str, Any] = yaml.safe_load(text)
    steps = recipe["steps"]
    kept = {name: steps[name] for name in ("plain", "nested")}
    training, seeds = steps["plain"]["train"], steps["plain"]["foreach"]
    for name in kept:
        options = steps[name]["train"]
        options["learning_rate"] = float(options["learning_rate"])  # PyYAML takes 5e-5 for text
    for by in kinds:
        loss = {"signs": {"loss": training["loss"], "dims": _DIMS, "by": by}}
        kept[by] = {"foreach": seeds, "train": {**training, "loss": loss}}
    rotated = {
        f"{name}_rotated": {
            "foreach": seeds,
            "rotate": {**steps["short_off"]["rotate"], "model": f"${name}"},
        }
        for name in kept
    }
    mteb = {**steps["short"]["evaluate"]["evaluators"]["mteb"], "precisions": _PRECISIONS}
    mteb["data"] = {**mteb["data"], "limit_corpus": 1500}

    def score(names: Collection[str], dims: Collection[int] = ()) -> dict[str, Any]:
        first, *others = (f"${name}" for name in names)
        return {
            "evaluate": {
                "models": [first, *others],
                "compare": [[name, first] for name in others],
                "evaluators": {"mteb": {**mteb, **({"dims": [*dims]} if dims else {})}},
            }
        }

    return {
        "seed": recipe["seed"],
        "steps": {
            **kept,
            "signs": score(kept, _DIMS),
            **rotated,
            "signs_rotated": score(rotated),
        },
    }


def main() -> None:
    """Train the models, score them, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--workers", type=int, default=1, help="steps that run at a time")
    options = parser.parse_args()
    launcher = Local(workers=options.workers)
    plugins = emberge.load_plugins([PLUGIN])
    emberge.run_recipe(build_recipe(options.kinds), options.out, plugins, launcher=launcher)
    for step in ("signs", "signs_rotated"):
        print((options.out / step / "scores.md").read_text("utf-8"), flush=True)


if __name__ == "__main__":
    main()
