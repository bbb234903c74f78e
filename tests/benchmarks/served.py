"""Trainings for bits beside Matryoshka and rotations: `served/laptop` with two further kinds of models.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.served OUT

OUT is the folder of `emberge run served/laptop --out OUT`, whose steps are not run again. Models trained on
the signs of their embeddings, by straight-through gradients and by a smoothed sign, are scored as the
recipe's are, and compared with its plain models. The tables are those of `OUT/signs/scores.md`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import emberge
import yaml

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "merge_recipes" / "served" / "laptop.yaml"
DATA = ROOT.parent / "shared"
PLUGIN = Path(__file__).with_name("sign_losses.py")
_DIMS = [384, 128]


def build_recipe() -> dict[str, Any]:
    """Return the recipe's trainings and scores with models that are trained on signs."""
    text = RECIPE.read_text("utf-8").replace("../../../shared", str(DATA))
    recipe: dict[str, Any] = yaml.safe_load(text)
    steps = recipe["steps"]
    kept = {name: steps[name] for name in ("plain", "nested")}
    training = steps["plain"]["train"]
    for name in kept:
        options = steps[name]["train"]
        options["learning_rate"] = float(options["learning_rate"])  # PyYAML takes 5e-5 for text
    names = []
    for by in ("straight_through", "smooth"):
        loss = {"signs": {"loss": training["loss"], "dims": _DIMS, "by": by}}
        seeds = steps["plain"]["foreach"]
        kept[by] = {"foreach": seeds, "train": {**training, "loss": loss}}
        names.append(f"${by}")
    options = dict(steps["scores"]["evaluate"])
    options["models"] = ["$plain", "$nested", *names]
    options["compare"] = [[name, "$plain"] for name in ("$nested", *names)]
    del options["base"]
    return {"seed": recipe["seed"], "steps": {**kept, "signs": {"evaluate": options}}}


def main() -> None:
    """Train the models, score them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    plugins = emberge.load_plugins([PLUGIN])
    emberge.run_recipe(build_recipe(), options.out, plugins)
    print((options.out / "signs" / "scores.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
