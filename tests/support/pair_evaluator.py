"""A small evaluator on pairs of texts, as a bare plugin: how near a text lies to its partner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge import (
    Backbone,
    DataRef,
    Evaluator,
    Model,
    Preflight,
    TaskInfo,
    TaskScore,
    Workspace,
    component,
    hookimpl,
)
from emberge.encoding import TextEmbedder


@dataclass(frozen=True, kw_only=True)
class Pairs(Evaluator):
    """Share of anchors whose own positive is the nearest of all; `data` is a file of pairs."""

    data: DataRef
    backbone: Backbone = component("text_encoder")

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        path = workspace.data(self.data)
        fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
        return [
            TaskInfo("Pairs", "retrieval", "accuracy", domain="in", fingerprint=fingerprint),
            TaskInfo("Reversed", "retrieval", "accuracy", fingerprint=fingerprint),
        ]

    def preview(self, context: Preflight) -> Sequence[TaskInfo]:
        return [TaskInfo(name, "retrieval", "accuracy") for name in ("Pairs", "Reversed")]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        text = workspace.data(self.data).read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        encoder = self.backbone.load(model.folder, device="cpu", dtype="float32")
        embedder = TextEmbedder(encoder)
        sides = [embedder.embed([row[side] for row in rows]) for side in ("anchor", "positive")]
        for number, task in enumerate(tasks, 1):
            workspace.progress(number, len(tasks), "tasks", task.name)
            mine, others = sides if task.name == "Pairs" else reversed(sides)
            nearest = (mine @ others.T).argmax(1)
            score = sum(int(n) == i for i, n in enumerate(nearest)) / len(rows)
            yield TaskScore(task, score)


@hookimpl
def register_evaluators() -> Mapping[str, type[Evaluator]]:
    return {"pairs": Pairs}
