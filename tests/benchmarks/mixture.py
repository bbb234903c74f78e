"""How well cheap scores foretell the order of trained mixtures, from the run of `mixture/laptop`.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.mixture OUT

OUT is the folder of `emberge run mixture/laptop --out OUT`, which is run first if it is not complete. For
the mean of the sets with a dev half, the same mean without the set that differs most between mixtures and
without the two that do, the sets out of domain, and all sets, the table has for each foreteller Spearman's
correlation of its order of the mixtures (on dev halves) with their order when trained (on test halves,
mean of the seeds), and what its first choice loses against the best trained mixture and gains over equal
shares, in points. Foretellers are a short training of each mixture, merges of specialists at three
lengths, the specialists' own scores mixed by the shares, and the share of one set alone, the one that
ranks best in hindsight. `ceiling` is one seed of the trained mixtures, on test halves. Intervals of
correlations are of 95 % over mixtures and seeds, those of points over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import emberge
import numpy as np
import yaml
from emberge.evaluating import Scores, read_scores

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "merge_recipes" / "mixture" / "laptop.yaml"
SEEDS = ("mixed_1", "mixed_2", "mixed_3")
FORETOLD = {
    "a short training": "short",
    "the merge": "merged",
    "the merge, twice as far": "merged_further",
    "the merge, four times as far": "merged_far",
}
ROUNDS = 2000

Array = np.ndarray


def read_points(scores: Scores, step: str, tasks: Sequence[str]) -> Array:
    """Return scores in points of the models of a step, [models, tasks], in the recipe's order."""
    models = [name for name in scores.models if name.split(".")[0] == step]
    return np.array(
        [[100 * (scores.value(model, task) or 0) for task in tasks] for model in models]
    )


def rank(values: Array) -> Array:
    """Return ranks from 0 along the last axis; equal values have their mean rank."""
    below = (values[..., None, :] < values[..., :, None]).sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(-1)
    return below + (equal - 1) / 2


def correlate(first: Array, second: Array) -> Array:
    """Return Spearman's correlation along the last axis; 0 where one side is constant."""
    a, b = (ranks - ranks.mean(-1, keepdims=True) for ranks in (rank(first), rank(second)))
    length = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.where(length > 0, (a * b).sum(-1) / np.maximum(length, 1e-12), 0.0)


def bootstrap(
    measure: Callable[[Array, Array], Array], foretold: Array, trained: Array
) -> tuple[float, float]:
    """Return the 95 % interval of a measure over drawn mixtures and seeds; `trained` is [mixtures, seeds]."""
    draw = np.random.default_rng(0)
    mixtures, seeds = trained.shape
    rows = draw.integers(mixtures, size=(ROUNDS, mixtures))
    columns = draw.integers(seeds, size=(ROUNDS, seeds))
    drawn = trained[rows[:, :, None], columns[:, None, :]].mean(-1)
    low, high = np.percentile(measure(foretold[rows], drawn), [2.5, 97.5])
    return float(low), float(high)


def describe_choice(foretold: Array, trained: Array) -> str:
    """Return what the first choice loses against the best and gains over equal shares, as table cells."""
    mean, choice = trained.mean(1), int(foretold.argmax())
    variance = trained.var(axis=1, ddof=1).mean()
    half = 1.96 * float(np.sqrt(2 * variance / trained.shape[1]))
    return f"{mean[choice] - mean.max():+.2f} | {mean[choice] - mean[0]:+.2f} ± {half:.2f}"


def print_group(
    title: str, foretellers: dict[str, Array], trained: Array, shares: Array, names: list[str]
) -> None:
    """Print the table of one mean of sets; `trained` is [mixtures, seeds], `shares` [mixtures, sets]."""
    mean = trained.mean(1)
    alone = [float(correlate(column, mean)) for column in shares.T]
    best = int(np.argmax(alone))
    rows = {**foretellers, f"the share of {names[best]} alone": shares[:, best]}
    spread = f"{mean.max() - mean.min():.2f} points between mixtures"
    print(f"\n{title}: {spread}, {trained.std(axis=1, ddof=1).mean():.2f} between seeds\n")
    print("| foretold by | rank correlation | choice less the best | choice less equal shares |")
    print("|---|---|---|---|")
    ceiling = [
        float(correlate(trained[:, seed], np.delete(trained, seed, axis=1).mean(1)))
        for seed in range(trained.shape[1])
    ]
    print(f"| ceiling: one seed | {np.mean(ceiling):.2f} | | |")
    for label, foretold in rows.items():
        low, high = bootstrap(correlate, foretold, trained)
        cell = f"{float(correlate(foretold, mean)):.2f} [{low:.2f}, {high:.2f}]"
        print(f"| {label} | {cell} | {describe_choice(foretold, trained)} |", flush=True)


def main() -> None:
    """Run the recipe if it is not complete, and print a table for each mean of sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    emberge.run_recipe(RECIPE, options.out)
    recipe = yaml.safe_load(RECIPE.read_text("utf-8"))
    mixtures = recipe["x-mixtures"]
    names = list(mixtures[0])
    shares = np.array([[mixture[name] for name in names] for mixture in mixtures])
    scores, foretold = (read_scores(options.out / step) for step in ("scores", "foretold"))
    dev = {task.removesuffix("-dev"): task for task in foretold.columns() if foretold.task(task)}
    by_domain = scores.tasks_by_domain()
    everything = [task for tasks in by_domain.values() for task in tasks]
    outside = by_domain["Out of domain"]
    trained = {
        task: np.stack([read_points(scores, seed, [task])[:, 0] for seed in SEEDS], axis=1)
        for task in everything
    }
    spread = sorted(dev, key=lambda task: float(trained[task].mean(1).std()), reverse=True)
    groups = {
        "sets with a dev half": (list(dev), list(dev)),
        f"the same without {spread[0]}": ([t for t in dev if t not in spread[:1]],) * 2,
        f"without {spread[0]} and {spread[1]}": ([t for t in dev if t not in spread[:2]],) * 2,
        "sets out of domain": (outside, list(dev)),
        "all sets": (everything, list(dev)),
    }
    for title, (tested, seen) in groups.items():
        columns = [dev[task] for task in seen]
        foretellers = {
            label: read_points(foretold, step, columns).mean(1) for label, step in FORETOLD.items()
        }
        alone = [read_points(foretold, f"only_{name}", columns).mean() for name in names]
        foretellers["specialists' scores, mixed"] = shares @ np.array(alone)
        truth = np.mean([trained[task] for task in tested], axis=0)
        print_group(title, foretellers, truth, shares, names)


if __name__ == "__main__":
    main()
