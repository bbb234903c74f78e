"""A small recipe for launchers, and what can be said of the results and processes of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.training_data import retrieval

PLUGIN = Path(__file__).with_name("launched_plugin.py")
STEPS = 30
RECIPE = """\
seed: 1
steps:
  members:
    foreach: {{draw: [1, 2]}}
    train:
      model: {model}
      data: [{{path: {data}, task: retrieval}}]
      sampler: [{{bagging: {{ratio: 0.6, draw: $draw}}}}, {{batch_shuffle: {{batch_size: 7}}}}]
      loss: mortal
      max_steps: {steps}
      learning_rate: 1.0e-4
      save_steps: 4
      logging_steps: 1
  merged:
    merge: {{models: $members, weights: size, strategy: multi_slerp}}
"""
LIMIT = 240.0


def write_recipe(folder: Path, model: Path) -> Path:
    """Two members on bags of a small set, and their merge."""
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(30).rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, data=folder / "pairs.jsonl", steps=STEPS))
    return path


def losses(out: Path, step: str) -> list[tuple[int, float]]:
    rows = (json.loads(line) for line in (out / step / "metrics.jsonl").read_text().splitlines())
    return [(row["at"], row["value"]) for row in rows if row["name"] == "loss"]


def workers(out: Path) -> Iterator[tuple[str, int]]:
    """Steps that have been entered, each with the number of its process."""
    for events in (out / ".work").glob("*/.worker-*.jsonl"):
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "started":
                yield events.parent.name, event["pid"]


def gone(process: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(true: Callable[[], bool], seconds: float = LIMIT) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
