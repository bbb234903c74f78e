"""A reranker that harms behind the gate of a recipe, beside the one that the same rows teach.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.searching OUT

OUT is the folder of `emberge run stack/laptop --out OUT`; of its steps this takes the mined rows, the
retrievers and the rerankers, and makes what is missing. For each seed a second reranker is trained as the
recipe's, on the same rows with shuffled labels: which of a question's passages is called its answer is
drawn by chance. Both are put behind their retriever and held to the gate `{model: $stack, not_worse_than:
$retriever, margin: 1}`. The table has each search's gain over its retriever in points, with its 95 %
interval over questions, and what the gate said. Killed, it goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import emberge
import yaml
from emberge.evaluating import Scores, read_scores

from tests.benchmarks.adapting import read_rows
from tests.benchmarks.documents import describe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "merge_recipes" / "stack" / "laptop.yaml"
DATA = ROOT.parent / "shared" / "data"


def read_steps() -> dict[str, Any]:
    """Return the recipe's steps of mined rows, retrievers and rerankers, with the catalogue's own place."""
    recipe = yaml.safe_load(RECIPE.read_text("utf-8"))
    steps: dict[str, Any] = {
        name: recipe["steps"][name] for name in ("found", "filled", "retriever", "reranker")
    }
    for name in ("found", "filled"):
        steps[name]["mine_hard_negatives"]["data"]["path"] = str(DATA / "datasets.yaml")
    for name in ("retriever", "reranker"):
        options = steps[name]["train"]
        options["learning_rate"] = float(options["learning_rate"])  # PyYAML takes 1e-4 for text
    return steps


def shuffle_labels(found: Path, out: Path) -> None:
    """Write the mined rows with an answer drawn from each row's passages, the rest as its negatives."""
    draw = random.Random(0)
    with out.open("w", encoding="utf-8") as file:
        for row in read_rows(found):
            passages = [*row["pos"][:1], *row["neg"]]
            draw.shuffle(passages)
            shuffled = {"query": row["query"], "pos": passages[:1], "neg": passages[1:]}
            file.write(json.dumps(shuffled, ensure_ascii=False) + "\n")


def build_gate(reranker: str, seeds: list[int], queries: int) -> dict[str, Any]:
    """Return the steps of a search with this reranker, and of a gate that refuses it if it harms."""
    search = f"search_by_{reranker}"
    data = {
        "path": str(DATA / "datasets.yaml"),
        "only": ["squad", "medquad", "scifact", "nq"],
        "limit_queries": queries,
        "limit_corpus": 600,
    }
    claim = {"model": f"${search}", "not_worse_than": "$retriever", "margin": 1}
    return {
        search: {
            "foreach": {"seed": seeds},
            "stack": {"retriever": "$retriever", "reranker": f"${reranker}", "depth": 20},
        },
        f"gate_of_{reranker}": {
            "foreach": {"seed": seeds},
            "evaluate": {
                "models": ["$retriever", f"${search}"],
                "base": "$retriever",
                "evaluators": {"mteb": {"max_length": 96, "data": data}},
                "require": [claim],
            },
        },
    }


def print_gate(label: str, scores: Scores) -> None:
    """Print a row of the table: the gain of a search over its retriever, and the verdict of its gate."""
    retriever, search = scores.models
    gain = scores.difference(search, "task", retriever)
    (verdict,) = scores.requirements
    print(f"| {label} | {describe(gain)} | {'passed' if verdict.met else 'refused'} |", flush=True)


def main() -> None:
    """Train both rerankers, hold them to the gate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=100, help="questions of each set")
    options = parser.parse_args()
    plugins = emberge.load_plugins()
    steps = read_steps()
    seeds = steps["retriever"]["foreach"]["seed"]
    emberge.run_recipe({"seed": 0, "steps": steps}, options.out, plugins)
    shuffled = options.out.with_name(f"{options.out.name}-shuffled.jsonl")
    shuffle_labels(options.out / "filled", shuffled)
    training = {**steps["reranker"]["train"], "data": str(shuffled)}
    steps["shuffled"] = {**steps["reranker"], "train": training}
    rerankers = {"reranker": "as mined", "shuffled": "shuffled"}
    for reranker in rerankers:
        steps |= build_gate(reranker, seeds, options.queries)
    with contextlib.suppress(emberge.RequirementError):  # each verdict is read below
        emberge.run_recipe({"seed": 0, "steps": steps}, options.out, plugins)
    print("| labels, seed | gain over the retriever | gate |")
    print("|---|---|---|")
    for reranker, labels in rerankers.items():
        for seed in seeds:
            scores = read_scores(options.out / f"gate_of_{reranker}.seed={seed}")
            print_gate(f"{labels}, {seed}", scores)


if __name__ == "__main__":
    main()
