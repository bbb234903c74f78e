"""A workspace to evaluate in, and tiny local sets of every kind of task."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import Artifact, DataRef, Machine, Model, ModelRef, Plugins, Reader, load_plugins
from emberge.contracts import Reference
from emberge.encoding import TextEmbedder
from emberge.merging import open_whole_model
from emberge.recipes.run.step_run import StepProgress
from emberge_data import JsonLines
from emberge_encoder import TextEncoder

from tests.support.tiny import WORDS

BACKBONE = TextEncoder()


def model_at(folder: Path, name: str = "") -> Model:
    """A model as a run finds it, its fingerprint that of its weights."""
    weights = sorted(folder.rglob("*.safetensors"))
    content = b"".join(file.read_bytes() for file in weights)
    return Model(name or folder.name, folder, hashlib.sha256(content).hexdigest())


@dataclass
class Bench:
    """A workspace that remembers what it was told."""

    root: Path
    id: str = "scores"
    seed: int = 0
    machine: Machine = field(default_factory=Machine)
    readers: Sequence[Reader] = (JsonLines(),)
    kept_plan: Any = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    told: list[tuple[float, float, str, str]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    many: dict[str, list[Model]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._progress = StepProgress(lambda *report: self.told.append(report))

    @property
    def plugins(self) -> Plugins:
        return load_plugins()

    @property
    def folder(self) -> Path:
        return self._made("out")

    @property
    def work(self) -> Path:
        return self._made("work")

    @property
    def store(self) -> Path:
        return self._made("store")

    def _made(self, name: str) -> Path:
        (self.root / name).mkdir(parents=True, exist_ok=True)
        return self.root / name

    def model(self, reference: ModelRef) -> Model:
        (model,) = self.models(reference)
        return model

    def models(self, reference: ModelRef) -> list[Model]:
        return self.many.get(reference.text) or [model_at(Path(reference.text))]

    def whole_model(self, model: Model) -> AbstractContextManager[Path]:
        return open_whole_model(model, self.work, self.machine)

    def data(self, reference: DataRef) -> Path:
        return Path(reference.text)

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        raise NotImplementedError

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        self._progress.report(done, total, unit, note)

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> AbstractContextManager[None]:
        return self._progress.part(noun, number, count, name)

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        self.metrics[name] = value

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def embedded_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that are embedded from now on, in order."""
    seen: list[str] = []
    original = TextEmbedder.embed

    def embed(self: TextEmbedder, texts: Any, **options: Any) -> Any:
        seen.extend(texts)
        return original(self, texts, **options)

    monkeypatch.setattr(TextEmbedder, "embed", embed)
    return seen


def sentence(rng: random.Random, words: int = 6) -> str:
    """Words that the tiny tokenizer knows."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_retrieval(folder: Path, *, queries: int = 12, documents: int = 30, seed: int = 0) -> None:
    """Each query shares words with its document."""
    rng = random.Random(seed)
    texts = [sentence(rng, 8) for _ in range(documents)]
    write_rows(
        folder / "corpus.jsonl.gz",
        [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)],
    )
    asked = [" ".join(texts[i].split()[:4]) + " " + sentence(rng, 2) for i in range(queries)]
    write_rows(
        folder / "queries.jsonl.gz", [{"_id": f"q{i}", "text": t} for i, t in enumerate(asked)]
    )
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(queries))]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n")


def write_pairs(path: Path, *, rows: int = 24, binary: bool = False, seed: int = 0) -> None:
    """Pairs whose score is the share of words they have in common."""
    rng = random.Random(seed)
    written = []
    for i in range(rows):
        first = sentence(rng, 6).split()
        kept = (0 if i % 2 else 5) if binary else i % 6
        second = first[:kept] + sentence(rng, 6).split()[kept:]
        score = float(kept == 5) if binary else float(kept)
        written.append({"query": " ".join(first), "pos": [" ".join(second)], "pos_scores": [score]})
    write_rows(path, written)


def write_labelled(path: Path, *, rows: int = 30, labels: int = 3, seed: int = 0) -> None:
    """Texts of a label share their first words."""
    rng = random.Random(seed)
    topics = [sentence(random.Random(100 + label), 3) for label in range(labels)]
    write_rows(
        path,
        [
            {"text": f"{topics[i % labels]} {sentence(rng, 3)}", "label": f"label {i % labels}"}
            for i in range(rows)
        ],
    )


def write_reranking(path: Path, *, rows: int = 8, seed: int = 0) -> None:
    rng = random.Random(seed)
    written = []
    for _ in range(rows):
        query = sentence(rng, 6)
        near = " ".join(query.split()[:4]) + " " + sentence(rng, 2)
        written.append({"query": query, "pos": [near], "neg": [sentence(rng) for _ in range(4)]})
    write_rows(path, written)


KINDS = ("retrieval", "reranking", "classification", "clustering", "sts", "pair_classification")


def write_catalogue(folder: Path, kinds: Sequence[str] = KINDS) -> Path:
    """A catalogue with a tiny set of each kind, named after the kind; sts is out of domain."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = []
    for kind in kinds:
        here = folder / "eval" / kind
        here.mkdir(parents=True, exist_ok=True)
        match kind:
            case "retrieval":
                write_retrieval(here)
            case "reranking":
                write_reranking(here / "test.jsonl.gz")
            case "classification":
                write_labelled(here / "train.jsonl.gz", seed=1)
                write_labelled(here / "test.jsonl.gz", seed=2)
            case "clustering":
                write_labelled(here / "test.jsonl.gz", seed=3)
            case _:
                write_pairs(here / "test.jsonl.gz", binary=kind == "pair_classification")
        entry = {"name": kind, "dir": f"eval/{kind}", "task": kind, "language": "en"}
        sets.append({**entry, "domain": "out" if kind == "sts" else "in"})
    path = folder / "datasets.yaml"
    path.write_text(yaml.safe_dump({"format": 1, "eval": sets}))
    return path
