"""A student of three layers beside sentence-transformers' distillation script, at equal steps and texts.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.distilling OUT

The teacher is all-MiniLM-L6-v2, the student its layers 1, 3 and 5. The texts are the questions and documents
of the eight training sets of ../shared/data. Ours is the recipe smaller/laptop's: the step `distil` with its
default loss. The other side is sentence-transformers' script for fewer layers: `MSELoss` to the teacher's
embeddings, one column of texts in batches of as many texts, a rate of 1e-4 with a tenth of warm-up, in
bfloat16 as ours. The table has each side's share of the teacher's score in the mean of the sets, and the
difference of the scores, with 95 % intervals over test examples and seeds. Killed, it goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import emberge
import yaml
from emberge.evaluating import Scores, read_scores

from tests.benchmarks.adapting import PEER, count_steps, read_rows
from tests.benchmarks.documents import describe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "merge_recipes" / "smaller" / "laptop.yaml"
CATALOGUE = ROOT.parent / "shared" / "data" / "datasets.yaml"
LAYERS = (1, 3, 5)
CUT = "not distilled"


def read_steps(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the recipe's steps of a cut model and of its students, for these seeds."""
    recipe = yaml.safe_load(RECIPE.read_text("utf-8"))
    steps: dict[str, Any] = {name: recipe["steps"][name] for name in ("three_cut", "three")}
    options = steps["three"]["distil"]
    options["data"] = {**options["data"], "path": str(CATALOGUE)}
    options["learning_rate"] = float(options["learning_rate"])  # PyYAML takes 1e-3 for text
    steps["three"]["foreach"] = {"seed": list(seeds)}
    steps["scores"] = recipe["steps"]["scores"]
    steps["scores"]["evaluate"]["evaluators"]["mteb"]["data"]["path"] = str(CATALOGUE)
    return steps


def with_models(
    step: dict[str, Any], teacher: str, cut: str, peers: Sequence[Path]
) -> dict[str, Any]:
    """Return an evaluation of the teacher, both sides' students, and the cut model."""
    options = dict(step["evaluate"])
    others = [{"model": str(path), "arm": PEER} for path in peers]
    options["models"] = [teacher, cut, "$three", *others]
    options["compare"] = [["$three", str(peers[0])], ["$three", cut]]
    return {"evaluate": options}


def read_texts(options: dict[str, Any]) -> list[str]:
    """Return the texts that the student reads: of each row its query and its document."""
    rows = read_rows(CATALOGUE.parent, options["data"]["limit"])
    return [text for row in rows for text in (row["query"], *row["pos"][:1])]


def train_peer(
    texts: list[str], *, steps: int, batch_size: int, max_length: int, seed: int, out: Path
) -> None:
    """Train the layers of MiniLM by sentence-transformers' script for fewer layers, for so many steps."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MSELoss

    from tests.support.tiny import minilm

    teacher = SentenceTransformer(str(minilm()), device="cpu")
    student = SentenceTransformer(str(minilm()), device="cpu")
    teacher.max_seq_length = student.max_seq_length = max_length
    labels = teacher.encode(texts, batch_size=64, convert_to_numpy=True)
    encoder = student[0].auto_model
    encoder.encoder.layer = torch.nn.ModuleList(encoder.encoder.layer[place] for place in LAYERS)
    encoder.config.num_hidden_layers = len(LAYERS)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out.with_suffix(".work")),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=1e-4,
        warmup_steps=0.1,
        seed=seed,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=True,
    )
    trainer = SentenceTransformerTrainer(
        model=student,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts, "label": labels.tolist()}),
        loss=MSELoss(student),
    )
    trainer.train()
    student.save_pretrained(str(out))


def print_row(scores: Scores) -> None:
    """Print the table's row: shares of the teacher, and differences in points."""
    pooled = scores.pooled
    if pooled is None:
        raise RuntimeError("the scores of seeds are not pooled")
    ours, peer, cut = "three", PEER, "three_cut"
    whole = pooled.value(pooled.models[0], "task")  # the teacher is the first of the models
    values = [pooled.value(name, "task") for name in (ours, peer, cut)]
    if not whole or None in values:
        raise RuntimeError(f"{ours}, {peer}, {cut} or their teacher have no score")
    cells = [f"{100 * (value or 0) / whole:.1f} %" for value in values]
    cells += [describe(pooled.difference(ours, "task", other)) for other in (peer, cut)]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Distil on both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="trainings a side, 1 to this number")
    options = parser.parse_args()
    seeds = range(1, 1 + options.seeds)
    plugins = emberge.load_plugins()
    steps = read_steps(seeds)
    distil = steps["three"]["distil"]
    teacher = distil["teacher"]
    trained = {name: steps[name] for name in ("three_cut", "three")}
    emberge.run_recipe({"seed": 0, "steps": trained}, options.out, plugins)
    peers = [options.out.with_name(f"{options.out.name}-peer-{seed}") for seed in seeds]
    texts = read_texts(distil)
    for seed, peer in zip(seeds, peers, strict=True):
        if not peer.exists():
            step_count = count_steps(options.out / f"three.seed={seed}")
            train_peer(
                texts,
                steps=step_count,
                batch_size=2
                * distil["sampler"]["batch_shuffle"]["batch_size"],  # rows have two texts
                max_length=distil["max_length"],
                seed=seed,
                out=peer,
            )
    scored = {"scores": with_models(steps["scores"], teacher, "$three_cut", peers)}
    emberge.run_recipe({"seed": 0, "steps": {**trained, **scored}}, options.out, plugins)
    print(f"| distilled | {PEER} | {CUT} | less {PEER} | less {CUT} |")
    print("|---|---|---|---|---|")
    print_row(read_scores(options.out / "scores"))


if __name__ == "__main__":
    main()
