"""Tiny sets to fine-tune on: texts of one of two subjects, with all that any head wants of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from emberge import DataRef
from emberge_encoder import TextEncoder
from emberge_fine_tuned import FineTuned, TaskEntry, TaskRowSource

from tests.support.bench import Bench, model_at
from tests.support.tiny import WORDS

STEPS, RATE = 24, 2e-3

SIDES = (["list", "sort", "index", "table"], ["bank", "card", "account", "travel"])
PLAIN = ["the", "of", "a", "weather"]


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    drawn, found = random.Random(seed), []
    for number in range(count):
        side = number % 2
        words = drawn.choices(SIDES[side] + PLAIN, k=drawn.randint(3, 9))
        words[0] = SIDES[side][number % 4]
        place = drawn.randrange(len(words))
        found.append(
            {
                "text": " ".join(words),
                "other": " ".join(drawn.choices(WORDS, k=3)),
                "label": ["code", "money"][side],
                "grade": sum(word in SIDES[1] for word in words) / len(words),
                "words": words,
                "tags": ["O" if word in PLAIN else f"B-{side}" for word in words],
                "answers": {
                    "text": [words[place]],
                    "answer_start": [sum(len(word) + 1 for word in words[:place])],
                },
            }
        )
    return found


def write_sets(folder: Path) -> Path:
    """Write train.jsonl, dev.jsonl and test.jsonl into a folder, and return it."""
    for seed, (name, count) in enumerate({"train": 40, "dev": 16, "test": 24}.items()):
        lines = "".join(json.dumps(row) + "\n" for row in rows(count, seed))
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


def source(folder: Path, name: str) -> TaskRowSource:
    return TaskRowSource(path=DataRef(str(folder / f"{name}.jsonl")))


def task(folder: Path, **more: Any) -> TaskEntry:
    sets = {"train": source(folder, "train"), "dev": (source(folder, "dev"),)}
    return TaskEntry(name="subject", test=(source(folder, "test"),), **sets, **more)


def tuner(*entries: TaskEntry, **more: Any) -> FineTuned:
    options: dict[str, Any] = {"steps": STEPS, "batch_size": (8,), "learning_rate": (RATE,)}
    options |= {"patience": None, "backbone": TextEncoder(pooling="mean")}
    return FineTuned(data=entries, **{**options, **more})


def scored(evaluator: FineTuned, model: Path, place: Path) -> Any:
    bench = Bench(place)
    tasks = evaluator.plan(bench)
    return list(evaluator.evaluate(model_at(model), tasks, bench))
