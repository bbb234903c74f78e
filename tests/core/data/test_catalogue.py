"""Catalogues and entries: sets by name, the words of catalogues, errors with lines, which file is read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef
from emberge.contracts import DataOrigin
from emberge.data import find_reader, load_catalogue, load_datasets
from emberge.data.catalogue import FURTHER_FACTS
from emberge_data import Delimited, JsonLines, Parquet

READERS = [JsonLines(), Parquet(), Delimited()]


def resolve(reference: DataRef) -> Path:
    return Path(reference.text)


def rows_file(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **options: Any) -> Any:
    entry = DataEntry(path=DataRef(str(path)), **options)
    return load_datasets([entry], readers=READERS, resolve=resolve)


def catalogue(folder: Path, text: str) -> Path:
    path = folder / "datasets.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("fact", [*sorted(FURTHER_FACTS), "x-mine"])
def test_facts_of_a_set_are_kept_out_of_its_options(tmp_path: Path, fact: str) -> None:
    found = load_catalogue(
        catalogue(tmp_path, f"train:\n- {{name: a, file: a.jsonl, {fact}: out}}\n")
    )
    (entry,) = found.train
    plain = DataEntry(name="a", path=DataRef(str(tmp_path / "a.jsonl")))
    assert dataclasses.replace(entry, language=None, source=DataOrigin()) == plain
    assert entry.language == ("out" if fact == "language" else None)


def test_every_option_of_a_training_set_is_read(tmp_path: Path) -> None:
    text = """
train:
- {name: a, hub: owner/name, subset: small, split: dev, revision: main, task: sts,
   instruction: Find it., prompt: "p: ", symmetric: false, weight: 2.5, limit: 7, first: 9,
   score_range: [-1, 5], negatives: hard_only, ind_tasks: [one, two], language: no, folder: one,
   documents: texts, columns: {anchor: x, positive: y, negative: z, score: s, label: l}}
"""
    assert load_catalogue(catalogue(tmp_path, text)).train == (
        DataEntry(
            **{"name": "a", "hub": "owner/name", "subset": "small", "split": "dev"},
            **{"revision": "main", "task": "sts", "instruction": "Find it.", "prompt": "p: "},
            **{"symmetric": False, "weight": 2.5, "limit": 7, "first": 9, "folder": "one"},
            **{"documents": "texts", "score_range": (-1.0, 5.0), "negatives": "hard_only"},
            ind_tasks=("one", "two"),
            language="no",  # a word, whatever YAML 1.1 makes of it
            columns=Columns(anchor="x", positive="y", negative="z", score="s", label="l"),
        ),
    )


def test_lists_may_be_empty_and_evaluation_sets_are_listed_by_their_folders(tmp_path: Path) -> None:
    text = "".join(f"{part}:\n- {{name: a, file: a}}\n" for part in ("train", "dev"))
    text += "eval:\n- {name: a, dir: a}\n- {name: b, path: b}\n- {name: c, folder: c}\ntest:\n"
    found = load_catalogue(catalogue(tmp_path, f"format: 1\n{text}"))
    assert [len(part) for part in (found.train, found.dev, found.test)] == [1, 1, 0]
    assert [one.folder for one in found.eval] == [tmp_path / name for name in "abc"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "empty"),
        ("format: 2\ntrain: []", 1, "format 1"),
        ("dev: []\n", 1, "no set"),
        ("train: a", 1, "list of sets"),
        ("- a", 1, "name: value"),
        ("train:\n- {file: a}", 2, "no 'name'"),
        ("train:\n- {name: a}", 2, "either a path or a hub id"),
        ("train:\n- {name: a, file: a, path: b}", 2, "say the same"),
        ("train:\n- {name: a, file: a, task: st}", 2, "'task' of set 'a' needs one of"),
        ("train:\n- {name: a, file: a, limit: -1}", 2, "whole number of at least 1"),
        ("train:\n- {name: a, file: a}\n- {name: a, file: b}", 3, "rename one"),
        ("train:\n- {name: a, file: a, only: [b]}", 2, "there is no 'only' here"),
        ("eval:\n- {name: a, task: sts}", 2, "no 'dir'"),
        ("train: [", 1, "not YAML"),
        ("train:\n- name: a\n  file: a\n  tsak: sts", 4, "no 'tsak' here; did you mean 'task'?"),
        ("train:\n- name: a\n  file: a\n  columns: {anchr: x}", 4, "did you mean 'anchor'?"),
        ('train:\n- {file: a, name: "a\\u202Eb"}', 2, "without control characters"),
    ],
)
def test_bad_catalogues_are_named(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(DataError) as caught:
        load_catalogue(catalogue(tmp_path, text))
    assert f"datasets.yaml:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_catalogue_and_one_in_another_encoding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no such catalogue"):
        load_catalogue(tmp_path / "datasets.yaml")
    (tmp_path / "datasets.yaml").write_bytes(b"train: [\xff]")
    with pytest.raises(DataError, match=r"not UTF-8"):
        load_catalogue(tmp_path)


@pytest.mark.parametrize(
    ("fact", "licence"),
    [
        ("source: {licence: MIT, package: pairs}", "MIT"),
        ("licence: cc-by-4.0", "cc-by-4.0"),
        ("licence: isc, source: {licence: mit}", "isc"),
        ("source: {licence: unknown}", None),
    ],
)
def test_a_set_states_its_or_a_sources_licence(
    tmp_path: Path, fact: str, licence: str | None
) -> None:
    text = f"train: [{{name: pairs, file: pairs.jsonl, {fact}}}]"
    (entry,) = load_catalogue(catalogue(tmp_path, text)).train
    assert entry.source.licence == licence


def test_a_set_states_its_origin_and_further_facts_are_not_read(tmp_path: Path) -> None:
    facts = "licence: mit, kind: crawled, written_by: [acme/writer], scored_by: unknown, x-k: mine"
    text = f"train:\n- {{name: pairs, file: pairs.jsonl, source: {{{facts}}}}}\n"
    (entry,) = load_catalogue(catalogue(tmp_path, text)).train
    assert entry.source == DataOrigin(licence="mit", written_by=("acme/writer",))
    with pytest.raises(DataError, match=r"datasets\.yaml:2: option 'written_by' of a source needs"):
        load_catalogue(catalogue(tmp_path, text.replace("[acme/writer]", "{t: 5}")))


def test_what_a_recipe_states_of_a_source_is_added_to_a_catalogues(tmp_path: Path) -> None:
    rows_file(tmp_path / "find.jsonl", {"query": "a", "pos": "b"})
    text = "train: [{name: find, file: find.jsonl, source: {licence: mit, written_by: [t5]}}]"
    path = catalogue(tmp_path, text)
    (found,) = load(path, source=DataOrigin(written_by=("t6",), url="https://acme.org"))
    origin = DataOrigin(licence="mit", url="https://acme.org", written_by=("t6",))
    assert found.entry.source == origin
    assert DataEntry(hub="acme/pairs").origin.url == "https://huggingface.co/datasets/acme/pairs"
    assert DataEntry(hub="acme/pairs", source=origin).origin == origin


@pytest.fixture
def two_lists(tmp_path: Path) -> Path:
    """A catalogue with training and development sets."""
    for name in ("a", "b", "kept"):
        rows_file(tmp_path / f"{name}.jsonl", {"text": name})
    text = "train:\n- {name: a, file: a.jsonl}\n- {name: b, file: b.jsonl}\n"
    return catalogue(tmp_path, f"{text}dev:\n- {{name: a, file: kept.jsonl}}\n")


def test_only_and_split_pick_sets_of_a_catalogue_and_a_name_is_for_one(two_lists: Path) -> None:
    with pytest.raises(DataError, match="'c' cannot stand for 2 sets"):
        load(two_lists, name="c")
    (dataset,) = load(two_lists, name="c", only=("a",))
    assert dataset.info.name == "c"
    with pytest.raises(DataError, match="picks sets of a catalogue"):
        load(two_lists.parent / "a.jsonl", only=("a",))
    (two_lists.parent / "empty").mkdir()
    with pytest.raises(DataError, match=r"no datasets\.yaml"):
        load(two_lists.parent / "empty")
    assert [one[0].anchor for one in load(two_lists.parent)] == ["a", "b"]
    (dataset,) = load(two_lists, split="dev")
    assert (dataset[0].anchor, dataset.entry.split) == ("kept", "train")
    with pytest.raises(DataError, match="no training set 'b'; it has a"):
        load(two_lists, split="dev", only=("b",))
    two_lists.write_text(two_lists.read_text().partition("dev:")[0])
    with pytest.raises(DataError, match="no development sets"):
        load(two_lists, split="dev")


def test_options_beside_a_catalogue_are_those_of_each_of_its_sets(two_lists: Path) -> None:
    own = {"task": "text", "instruction": "Find it.", "weight": 2.0, "language": "de"}
    text = two_lists.read_text().replace("{name: a,", "{name: a, task: text, weight: 3, limit: 5,")
    two_lists.write_text(text)
    (dataset,) = load(two_lists, only=("a",), prompt="{prompt}{instruction}", **own)
    assert dataset.entry == DataEntry(
        path=DataRef(str(two_lists.parent / "a.jsonl")),
        name="a",
        prompt="Instruct: Find it.\nQuery: Find it.",
        limit=5,
        **own,  # type: ignore[arg-type]
    )


def test_a_split_of_a_catalogue_is_its_hub_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    for split in ("train", "validation", "test"):
        rows_file(tmp_path / f"hub/{split}.jsonl", {"query": split, "pos": ["p"]})
    sets = [f"{{name: a, hub: {tmp_path}/hub}}", f"{{name: b, hub: {tmp_path}/hub, split: test}}"]
    path = catalogue(tmp_path, f"train: [{', '.join(sets)}]\n")
    assert [found[0].anchor for found in load(path)] == ["train", "test"]
    assert [found[0].anchor for found in load(path, split="validation")] == ["validation"] * 2
    assert [found[0].anchor for found in load(path, split="test")] == ["test"] * 2
    text = f"train: [{sets[0]}, {{name: f, file: hub/train.jsonl}}]\n"
    with pytest.raises(DataError, match="no development sets"):
        load(catalogue(tmp_path, text), split="dev")
    catalogue(tmp_path, f"{text}dev: [{{name: f, file: hub/validation.jsonl}}]\n")
    assert [found[0].anchor for found in load(path, split="dev")] == ["validation"]


def test_the_reader_of_the_longest_ending_is_taken_of_a_file_that_is_there(tmp_path: Path) -> None:
    assert type(find_reader(tmp_path / "a.TSV.GZ", READERS)) is Delimited
    with pytest.raises(DataError, match=r"known: \.csv, .*\.tsv\.gz"):
        find_reader(tmp_path / "a.txt", READERS)
    rows_file(tmp_path / "questions.jsonl", {"text": "a"})
    with pytest.raises(DataError, match=r"no such file; did you mean 'questions\.jsonl'"):
        load(tmp_path / "question.jsonl")


def test_contradictions_of_an_entry_are_named(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "a.jsonl", {"text": "a"})
    for options, words in (
        ({"hub": "a/b"}, "either path or hub"),
        *(
            ({option: "a"}, f"`{option}` chooses a part of a hub dataset")
            for option in ("split", "subset", "folder", "documents", "revision")
        ),
    ):
        with pytest.raises(DataError, match=words):
            load(path, **options)
    for score_range in ((1.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(ValueError, match="lowest, highest"):
            DataEntry(score_range=score_range)
    entries = [DataEntry(path=DataRef(str(path)))] * 2
    with pytest.raises(DataError, match="two datasets are named 'a'"):
        load_datasets(entries, readers=READERS, resolve=resolve)
