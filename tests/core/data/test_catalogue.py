"""Catalogues: sets by name, errors with lines, evaluation sets of every kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    ClassificationData,
    ClusteringData,
    DataEntry,
    DataError,
    DataRef,
    EvalSet,
    PairData,
    RetrievalData,
)
from emberge.contracts import DataOrigin
from emberge.data import load_catalogue, load_datasets, load_eval_set
from emberge.recipes.references import locate_file
from emberge_data import JsonLines

READERS = [JsonLines()]

TEXT = """\
format: 1
train:
- name: pairs
  file: train/pairs.jsonl
  task: retrieval
  language: no
  instruction: Find the answer.
  rows: 2
  source: {licence: MIT}
- name: similar
  path: train/similar.jsonl
  score_range: [0, 4]
  columns: {anchor: a, positive: b, score: s}
  prompt: "similar: "
eval:
- name: pairs
  dir: eval/pairs
  task: retrieval
  language: no
  domain: in
  metric: ndcg_at_10
  instruction: Find the answer.
  baseline: {test: 80.1}
- name: topics
  dir: eval/topics
  task: clustering
  symmetric: true
  x-seen: yesterday
"""


def rows(path: Path, found: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in found)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "datasets.yaml").write_text(TEXT)
    rows(tmp_path / "train/pairs.jsonl", [{"query": f"q{i}", "pos": [f"p{i}"]} for i in range(9)])
    rows(tmp_path / "train/similar.jsonl", [{"a": "x", "b": "y", "s": 3}])
    return tmp_path


def load(folder: Path, **options: Any) -> list[Any]:
    entry = DataEntry(path=DataRef(str(folder)), **options)
    return load_datasets([entry], readers=READERS, resolve=lambda r: Path(r.text))


def test_a_catalogue_is_found_from_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    named = load_catalogue(Path(folder.name)).train
    paths = [entry.path for entry in named if entry.path is not None]
    assert [locate_file(path).is_file() for path in paths] == [True] * len(named)


def test_training_sets_are_loaded_with_the_options_beside_their_catalogue(folder: Path) -> None:
    pairs, similar = load(folder)
    assert (pairs.info.name, len(pairs), pairs.prompt) == ("pairs", 9, "")
    assert (similar.prompt, similar.info.task) == ("similar: ", "sts")
    assert similar[0].positive_scores == (0.75,)
    (alone,) = load(folder, only=("similar",))
    assert alone.fingerprint == similar.fingerprint
    sets = load(folder, limit=3, weight=2.0, prompt="{prompt}")
    assert [len(s) for s in sets] == [3, 1]
    assert [s.info.weight for s in sets] == [2.0, 2.0]
    assert [s.prompt for s in sets] == ["Instruct: Find the answer.\nQuery: ", "similar: "]


def test_a_split_of_a_catalogue_is_its_hub_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for split in ("train", "validation", "test"):
        rows(tmp_path / f"hub/{split}.jsonl", [{"query": split, "pos": ["p"]}])
    sets = [f"{{name: a, hub: {tmp_path}/hub}}", f"{{name: b, hub: {tmp_path}/hub, split: test}}"]
    (tmp_path / "datasets.yaml").write_text(f"train: [{', '.join(sets)}]\n")
    assert [found[0].anchor for found in load(tmp_path)] == ["train", "test"]
    kept = load(tmp_path, split="validation")
    assert [found[0].anchor for found in kept] == ["validation", "validation"]


def test_a_missing_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no such catalogue"):
        load_catalogue(tmp_path / "datasets.yaml")


def evaluation(folder: Path, task: Any, **options: Any) -> EvalSet:
    return EvalSet(name="set", folder=folder, task=task, **options)


def labelled(path: Path, labels: int, texts: int) -> None:
    rows(
        path,
        [{"text": f"{path.stem} {i} {k}", "label": k} for i in range(texts) for k in range(labels)],
    )


def test_a_classification_set_has_two_halves_with_the_same_labels(tmp_path: Path) -> None:
    labelled(tmp_path / "train.jsonl", 40, 12)
    labelled(tmp_path / "test.jsonl", 40, 5)
    whole = load_eval_set(evaluation(tmp_path, "classification"), readers=READERS)
    assert isinstance(whole, ClassificationData)
    assert (len(whole.train_texts), len(whole.test_texts)) == (480, 200)
    cut = load_eval_set(evaluation(tmp_path, "classification"), readers=READERS, limit=64)
    assert isinstance(cut, ClassificationData)
    assert set(cut.train_labels) == set(cut.test_labels)
    assert len(set(cut.test_labels)) == 8
    assert len(cut.train_texts) == 64
    assert all(
        text.split()[2] == label
        for text, label in zip(cut.test_texts, cut.test_labels, strict=True)
    )


@pytest.mark.slow
def test_every_real_set_is_as_its_catalogue_counts_it(shared_data: Path, tmp_path: Path) -> None:
    import yaml

    said = yaml.safe_load((shared_data / "datasets.yaml").read_text("utf-8"))
    entry = DataEntry(path=DataRef(str(shared_data / "datasets.yaml")))
    sets = load_datasets(
        [entry], readers=READERS, resolve=lambda r: Path(r.text), store=tmp_path / "store"
    )
    for dataset, counted in zip(sets, said["train"], strict=True):
        assert dataset.info.name == counted["name"]
        assert dataset.info.task == counted["task"]
        assert len(dataset) == counted["rows"]
        assert dataset.symmetric == counted["symmetric"]
        scores = dataset[0].positive_scores
        assert (scores is not None) == counted["scores"]
        assert (dataset[0].label is not None) == counted["labels"]
        assert scores is None or all(0 <= score <= 1 for score in scores)


@pytest.mark.slow
def test_every_real_evaluation_set_is_read_as_its_catalogue_counts_it(shared_data: Path) -> None:
    import yaml

    said = yaml.safe_load((shared_data / "datasets.yaml").read_text("utf-8"))
    for one, counted in zip(load_catalogue(shared_data).eval, said["eval"], strict=True):
        assert (one.name, one.domain, one.metric) == (
            counted["name"],
            counted["domain"],
            counted["metric"],
        )
        data = load_eval_set(one, readers=READERS)
        if isinstance(data, RetrievalData):
            judged = sum(len(grades) for grades in data.relevant.values())
            sizes = (len(data.corpus), len(data.queries), judged)
            assert sizes == (
                counted["corpus"],
                counted["queries"]["test"],
                counted["qrels"]["test"],
            )
        elif isinstance(data, PairData):
            assert len(data.texts1) == len(data.scores) == counted["rows"]["test"]
            assert all(0 <= score <= 1 for score in data.scores)
        elif isinstance(data, ClassificationData):
            assert len(data.test_texts) == counted["rows"]["test"]
            assert set(data.test_labels) <= set(data.train_labels)
        else:
            assert isinstance(data, ClusteringData)
            assert len(data.texts) == counted["rows"]["test"]


@pytest.mark.parametrize(
    ("fact", "licence"),
    [
        ("source: {licence: MIT, package: pairs}", "MIT"),
        ("source: {license: mit}", "mit"),
        ("licence: cc-by-4.0", "cc-by-4.0"),
        ("licence: isc, source: {licence: mit}", "isc"),
        ("source: https://acme.org/pairs", None),
        ("source: {licence: unknown}", None),
        ("rows: 2", None),
    ],
)
def test_a_set_states_its_or_a_sources_licence(
    tmp_path: Path, fact: str, licence: str | None
) -> None:
    listed = f"train: [{{name: pairs, file: pairs.jsonl, {fact}}}]"
    (tmp_path / "datasets.yaml").write_text(listed)
    (entry,) = load_catalogue(tmp_path).train
    assert entry.source.licence == licence


def test_a_set_states_its_origin_and_further_facts_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "datasets.yaml").write_text("""
train:
- name: pairs
  file: pairs.jsonl
  source:
    licence: mit
    kind: crawled
    url: https://acme.org/pairs
    personal_data: false
    collected: 2024
    written_by: [acme/writer]
    scored_by: unknown
    package: pairs
    x-kinds: mine
""")
    (entry,) = load_catalogue(tmp_path).train
    assert entry.source == DataOrigin(
        licence="mit", url="https://acme.org/pairs", written_by=("acme/writer",)
    )


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("written_by: {t: 5}", r"datasets\.yaml:2: option 'written_by' of a source needs text"),
        ("url: [a]", r"datasets\.yaml:2: option 'url' of a source needs text"),
        ("writen_by: [t5]", r"datasets\.yaml:2: .*did you mean 'written_by'.*'x-writen_by'"),
    ],
)
def test_wrong_facts_of_a_source_name_their_line(tmp_path: Path, fact: str, message: str) -> None:
    listed = f"train:\n- {{name: pairs, file: pairs.jsonl, source: {{{fact}}}}}\n"
    (tmp_path / "datasets.yaml").write_text(listed)
    with pytest.raises(DataError, match=message):
        load_catalogue(tmp_path)
