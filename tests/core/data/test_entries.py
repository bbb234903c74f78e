"""Entries of data: their defaults, the words of catalogues, and every name of a column that is known."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, EvalSet
from emberge.contracts import DataOrigin
from emberge.data import (
    DistinctTexts,
    check_entries,
    data_sources,
    expand,
    load_catalogue,
    load_datasets,
    one_by_one,
    read_document_rows,
    read_plain_rows,
)
from emberge.data.catalogue import FREE
from emberge.data.rows.columns import ColumnLayout, LayoutError, column_kind, find_layout
from emberge.data.sampling import sample_labelled, sample_rows
from emberge_data import Delimited, JsonLines, Parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

READERS = [JsonLines(), Parquet(), Delimited()]


def resolve(reference: DataRef) -> Path:
    return Path(reference.text)


def rows_file(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, store: Path | None = None, **options: Any) -> Any:
    entry = DataEntry(path=DataRef(str(path)), **options)
    return load_datasets([entry], readers=READERS, resolve=resolve, store=store)


def catalogue(folder: Path, text: str) -> Path:
    path = folder / "datasets.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("fact", [*sorted(FREE), "x-mine"])
def test_facts_of_a_set_are_kept_out_of_its_options(tmp_path: Path, fact: str) -> None:
    rows_file(tmp_path / "a.jsonl", {"text": "a"})
    found = load_catalogue(
        catalogue(tmp_path, f"train:\n- {{name: a, file: a.jsonl, {fact}: out}}\n")
    )
    (entry,) = found.train
    plain = DataEntry(name="a", path=DataRef(str(tmp_path / "a.jsonl")))
    assert dataclasses.replace(entry, language=None, source=DataOrigin()) == plain
    assert entry.language == ("out" if fact == "language" else None)


@pytest.mark.parametrize("fact", ["sauce", "y-mine", "columns.source"])
def test_other_words_are_refused(tmp_path: Path, fact: str) -> None:
    inner = f"{fact}: 1" if "." not in fact else "columns: {source: a}"
    path = catalogue(tmp_path, f"train:\n- {{name: a, file: a.jsonl, {inner}}}\n")
    with pytest.raises(DataError, match=r"datasets\.yaml:2: .* no .*'(sauce|y-mine|source)'"):
        load_catalogue(path)


TRAIN = """
train:
- name: a
  hub: owner/name
  subset: small
  split: dev
  revision: main
  task: sts
  instruction: Find it.
  prompt: "p: "
  symmetric: false
  weight: 2.5
  limit: 7
  first: 9
  score_range: [-1, 5]
  negatives: {negatives}
  ind_tasks: [one, two]
  language: de
  columns: {{anchor: x, positive: y, negative: z, score: s, label: l}}
"""


@pytest.mark.parametrize("negatives", ["auto", "in_batch", "hard_only"])
def test_every_option_of_a_training_set_is_read(tmp_path: Path, negatives: str) -> None:
    found = load_catalogue(catalogue(tmp_path, TRAIN.format(negatives=negatives)))
    assert found.train == (
        DataEntry(
            name="a",
            hub="owner/name",
            subset="small",
            split="dev",
            revision="main",
            task="sts",
            instruction="Find it.",
            prompt="p: ",
            symmetric=False,
            weight=2.5,
            limit=7,
            first=9,
            score_range=(-1.0, 5.0),
            negatives=negatives,  # type: ignore[arg-type]
            ind_tasks=("one", "two"),
            language="de",
            columns=Columns(anchor="x", positive="y", negative="z", score="s", label="l"),
        ),
    )


EVAL = """
train: []
eval:
- name: a
  {folder}: sets/a
  task: {task}
  language: no
  domain: {domain}
  metric: ndcg
  instruction: Find it.
  score_range: [0, 5]
"""


@pytest.mark.parametrize(
    ("folder", "domain"), [("dir", "in"), ("folder", "out"), ("path", "elsewhere")]
)
@pytest.mark.parametrize(
    "task", ["retrieval", "reranking", "classification", "clustering", "sts", "pair_classification"]
)
def test_evaluation_sets_are_read_whole(
    tmp_path: Path, folder: str, domain: Any, task: Any
) -> None:
    path = catalogue(tmp_path, EVAL.format(folder=folder, task=task, domain=domain))
    (found,) = load_catalogue(tmp_path).eval
    assert found.where.endswith("datasets.yaml:4")
    assert dataclasses.replace(found, where="") == EvalSet(
        name="a",
        folder=path.parent / "sets" / "a",
        task=task,
        language="no",  # a word, whatever YAML 1.1 makes of it
        symmetric=task not in ("retrieval", "reranking"),
        domain=domain,
        metric="ndcg",
        instruction="Find it.",
        prompt="Instruct: Find it.\nQuery: ",
        score_range=(0.0, 5.0),
    )


def test_catalogues_may_have_empty_lists_equal_names_and_own_prompts(tmp_path: Path) -> None:
    text = (
        "eval:\n- {name: a, dir: a, task: sts, prompt: 'q: ', symmetric: false, instruction: I}\n"
    )
    (found,) = load_catalogue(catalogue(tmp_path, text)).eval
    assert (found.prompt, found.symmetric) == ("q: ", False)
    text = "eval:\n- {name: a, dir: a, task: retrieval, symmetric: true, instruction: ' '}\n"
    (found,) = load_catalogue(catalogue(tmp_path, text)).eval
    assert (found.prompt, found.symmetric) == ("", True)
    text = "".join(f"{part}:\n- {{name: a, file: a}}\n" for part in ("train", "dev"))
    text += "eval:\n- {name: a, dir: a, task: sts}\n"
    found = load_catalogue(catalogue(tmp_path, f"format: 1\n{text}"))
    assert [len(part) for part in (found.train, found.dev, found.eval)] == [1, 1, 1]
    found = load_catalogue(catalogue(tmp_path, "train:\n- {name: a, file: a}\ndev:\neval:\n"))
    assert (len(found.train), found.dev, found.eval) == (1, (), ())


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
        ("train:\n- {name: a, file: a, hub: b}", 2, "either a path or a hub id"),
        ("train:\n- {name: a, file: a, task: st}", 2, "'task' of set 'a' needs one of"),
        ("train:\n- {name: a, file: a, negatives: some}", 2, "hard_only"),
        ("train:\n- {name: a, file: a, symmetric: maybe}", 2, "true or false"),
        ("train:\n- {name: a, file: a, ind_tasks: {b: c}}", 2, "'ind_tasks' of set 'a' needs text"),
        ("train:\n- {name: a, file: a, score_range: [1, 1]}", 2, "lowest, highest"),
        ("train:\n- {name: a, file: a, score_range: [0, 1, 2]}", 2, "a list of 2"),
        ("train:\n- {name: a, file: a, limit: -1}", 2, "whole number of at least 1"),
        ("train:\n- {name: [a], file: a}", 2, "expected a text"),
        ("train:\n- {name: a, name: b, file: a}", 2, "written twice"),
        ("train:\n- {name: a, file: a}\n- {name: a, file: b}", 3, "rename one"),
        ("eval:\n- {name: a, dir: a}", 2, "no 'task'"),
        ("eval:\n- {name: a, task: sts}", 2, "no 'dir'"),
        ("eval:\n- {name: a, dir: a, folder: b, task: sts}", 2, "say the same"),
        ("eval:\n- {name: a, dir: a, task: text}", 2, "single texts cannot be scored"),
        ("eval:\n- {name: a, dir: a, task: sts, domain: inside}", 2, "elsewhere"),
        ("train: [", 1, "not YAML"),
        ("train:\n- &a {name: a, file: b}\n- *a\n", 2, "rename one"),
        ("train:\n- name: a\n  file: a\n  tsak: sts", 4, "no 'tsak' here; did you mean 'task'?"),
        ("train:\n- {name: a, file: a, basline: 3}", 2, "'basline' here; did you mean 'baseline'?"),
        ("format: 1\ntrian: []", 2, "there is no 'trian' here; did you mean 'train'?"),
        (
            "train:\n- name: a\n  file: a\n  score_range: [0, x]",
            4,
            "needs a number, not the text 'x'",
        ),
        ("train:\n- name: a\n  file: a\n  columns: {anchr: x}", 4, "did you mean 'anchor'?"),
        ("train:\n- name: a\n  file: a\n  rows: 2\n  rows: 3", 5, "'rows' is written twice"),
        ("train:\n- {name: a, file: a, weight: 0}", 2, "needs a number above 0, not"),
        ("[" * 3000, 1, "nested too deeply"),
        ('train:\n- {file: a, name: "a\\u202Eb"}', 2, "without control characters"),
        ("train:\n- {name: a, file: a, score_range: [0, .inf]}", 2, "needs a finite number"),
    ],
)
def test_bad_catalogues_are_named(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(DataError) as caught:
        load_catalogue(catalogue(tmp_path, text))
    assert f"datasets.yaml:{line}: " in str(caught.value)
    assert words in str(caught.value)


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
    assert len(load(two_lists.parent)) == 2
    (dataset,) = load(two_lists, split="dev")
    assert (dataset[0].anchor, dataset.entry.split) == ("kept", "train")
    assert [one[0].anchor for one in load(two_lists)] == ["a", "b"]
    with pytest.raises(DataError, match="no training set 'b'; it has a"):
        load(two_lists, split="dev", only=("b",))
    two_lists.write_text(two_lists.read_text().partition("dev:")[0])
    with pytest.raises(DataError, match="no development sets"):
        load(two_lists, split="dev")


def test_options_beside_a_catalogue_are_those_of_each_of_its_sets(two_lists: Path) -> None:
    own = {"task": "text", "instruction": "Find it.", "weight": 2.0, "language": "de"}
    text = two_lists.read_text().replace("{name: a,", "{name: a, task: text, weight: 3, limit: 5,")
    two_lists.write_text(text)
    (dataset,) = load(two_lists, only=("a",), prompt="{prompt}{instruction}", **own)  # type: ignore[arg-type]
    assert dataset.entry == DataEntry(
        path=DataRef(str(two_lists.parent / "a.jsonl")),
        name="a",
        prompt="Instruct: Find it.\nQuery: Find it.",
        limit=5,
        **own,
    )


def test_texts_of_labels_are_drawn_by_the_sets_name_and_the_row(tmp_path: Path) -> None:
    rows = ({"text": f"t{n}", "label": n % 4} for n in range(20))
    path = rows_file(tmp_path / "a.jsonl", *rows)
    drawn = {}
    for name in ("a", "b"):
        (dataset,) = load(path, name=name)
        examples = [dataset[row] for row in (0, 1, 7)]
        drawn[name] = [" ".join((*e.positives, "|", *e.negatives)) for e in examples]
    assert drawn == {
        "a": ["t12 | t13 t18 t1", "t9 | t0 t2 t12", "t15 | t17 t0 t9"],
        "b": ["t8 | t10 t6 t5", "t13 | t10 t16 t8", "t11 | t17 t6 t4"],
    }


def test_heads_alone_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def rows(entry: DataEntry, *, head: bool = False) -> Any:
        asked.append(head)
        return iter([(1, {"text": "a"}), (2, {"text": "b"})])

    monkeypatch.setattr(data_sources, "read_hub_rows", rows)
    (source,) = expand(DataEntry(hub="owner/name", first=1), readers=READERS, resolve=resolve)
    assert source.name == "name"
    assert list(source.rows()) == [(1, {"text": "a"})]
    list(source.rows(head=True))
    assert asked == [False, True]


def test_the_reader_of_the_longest_ending_is_taken_of_a_file_that_is_there(tmp_path: Path) -> None:
    from emberge.data.data_sources import find_reader

    assert type(find_reader(tmp_path / "a.TSV.GZ", READERS)) is Delimited
    with pytest.raises(DataError, match=r"known: \.csv, .*\.tsv\.gz"):
        find_reader(tmp_path / "a.txt", READERS)
    with pytest.raises(DataError, match="known: none"):
        find_reader(tmp_path / "a.txt", [])
    rows_file(tmp_path / "questions.jsonl", {"text": "a"})
    with pytest.raises(DataError, match=r"no such file; did you mean 'questions\.jsonl'"):
        load(tmp_path / "question.jsonl")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"score_range": (1.0, 1.0)}, "lowest, highest"),
        ({"score_range": (float("nan"), 1.0)}, "lowest, highest"),
        ({"hub": "a/b"}, "either path or hub"),
        ({"subset": "a"}, "`subset` chooses a part of a hub dataset"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    path = rows_file(tmp_path / "a.jsonl", {"text": "a"})
    with pytest.raises(DataError, match=words):
        load(path, **options)
    with pytest.raises(DataError, match="data entry 'x' needs either"):
        expand(DataEntry(name="x"), readers=READERS, resolve=resolve)


def test_the_smallest_options_and_the_last_row_are_allowed(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b"})
    (dataset,) = load(path, limit=1, first=1, weight=1e-9)
    assert (len(dataset), dataset.info.weight) == (1, 1e-9)
    (dataset,) = load(rows_file(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b"}))
    assert (dataset[-2].anchor, dataset[-1].anchor) == ("a", "b")
    for row in (2, -3):
        with pytest.raises(IndexError, match=f"a has 2 rows, not {row}"):
            dataset[row]


ANCHORS = ["query", "anchor", "question", "sentence1", "sentence_1", "sentence_a", "premise"]
ANCHORS += ["text1", "question1", "sentence"]
POSITIVES = ["pos", "positive", "positives", "answer", "document", "passage", "hypothesis", "code"]
POSITIVES += ["sentence2", "sentence_2", "sentence_b", "text2", "question2"]
NEGATIVES = ["neg", "negative", "negatives", "hard_negative", "hard_negatives"]


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("positive", POSITIVES)
def test_every_pair_of_usual_names_is_a_pair(anchor: str, positive: str) -> None:
    found = find_layout([positive, "id", anchor], Columns())
    assert (found.anchor, found.positives, found.negatives) == (anchor, (positive,), ())
    assert found == ColumnLayout(anchor, (positive,))


@pytest.mark.parametrize("negative", NEGATIVES)
def test_every_usual_name_of_negatives_is_known(negative: str) -> None:
    found = find_layout(["query", "pos", negative], Columns())
    assert found.negatives == (negative,)
    numbered = [f"{negative}_2", f"{negative}_10", f"{negative}1"]
    found = find_layout(["query", "pos", *numbered], Columns())
    assert found.negatives == (f"{negative}1", f"{negative}_2", f"{negative}_10")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, "score") for name in ("score", "scores", "similarity_score")),
        *((name, "label") for name in ("label", "labels", "category")),
        *((name, "positive_scores") for name in ("pos_scores", "positive_scores")),
        *((name, "negative_scores") for name in ("neg_scores", "negative_scores")),
        *((name, "kind") for name in ("type", "task_type")),
        ("prompt", "prompt"),
    ],
)
def test_every_usual_name_beside_a_pair_is_known(name: str, part: str) -> None:
    found = find_layout(["query", "pos", name], Columns())
    assert getattr(found, part) == name
    assert found == dataclasses.replace(ColumnLayout("query", ("pos",)), **{part: name})


@pytest.mark.parametrize("name", ["text", "sentence", "query", "utterance"])
def test_every_usual_name_of_a_text_is_known(name: str) -> None:
    assert find_layout([name], Columns()) == ColumnLayout(name, single=True)
    assert find_layout([name, "id"], Columns(), "text") == ColumnLayout(name, single=True)
    for label in ("label", "labels", "category"):
        assert find_layout([name, label], Columns()) == ColumnLayout(name, label=label)


@pytest.mark.parametrize("name", ["image", "images", "image_path", "image_file"])
def test_every_usual_name_of_an_image_is_known(name: str) -> None:
    assert column_kind(name) == "image"
    for caption in ("caption", "captions", "text", "transcription", "transcript", "description"):
        assert find_layout([caption, name], Columns()) == ColumnLayout(name, (caption,))
    assert find_layout([name, "query"], Columns()) == ColumnLayout("query", (name,))
    assert find_layout([name, "pos"], Columns()) == ColumnLayout(name, ("pos",))
    assert find_layout([name, "label"], Columns()) == ColumnLayout(name, label="label")
    assert find_layout([name, "text", "label"], Columns()).anchor == "text"


@pytest.mark.parametrize("name", ["audio", "audio_path", "audio_file"])
def test_every_usual_name_of_a_clip_is_known(name: str) -> None:
    assert column_kind(name) == "audio"
    assert column_kind(name.upper()) == "audio"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["QUESTION", "Answer"], ColumnLayout("QUESTION", ("Answer",))),
        (
            ["Query", " POSITIVE", "Negative 1"],
            ColumnLayout("Query", (" POSITIVE",), ("Negative 1",)),
        ),
        (["Text", "Label"], ColumnLayout("Text", label="Label")),
        (
            ["Sentence1", "SENTENCE2", "Label"],
            ColumnLayout("Sentence1", ("SENTENCE2",), score="Label", unit_score=True),
        ),
        (["query", "Query", "pos"], ColumnLayout("query", ("pos",))),
        (["TEXT"], ColumnLayout("TEXT", single=True)),
    ],
)
def test_headings_are_read_in_any_case(names: list[str], layout: ColumnLayout) -> None:
    assert find_layout(names, Columns()) == layout


def test_a_degree_beside_two_sentences_is_a_unit_score() -> None:
    for one in ("sentence1", "sentence_1", "sentence_a", "text1", "question1"):
        for other in ("sentence2", "sentence_2", "sentence_b", "text2", "question2"):
            found = find_layout([one, other, "label"], Columns())
            assert found == ColumnLayout(one, (other,), score="label", unit_score=True)
    assert find_layout(["query", "pos", "label"], Columns()).label == "label"
    both = find_layout(["sentence1", "sentence2", "label", "score"], Columns())
    assert (both.score, both.label, both.unit_score) == ("score", "label", False)


def test_columns_that_are_named_or_alone_are_read() -> None:
    found = find_layout(
        ["a", "b", "neg", "score", "label", "prompt"], Columns(anchor="a", positive="b")
    )
    assert found == ColumnLayout("a", ("b",))
    given = Columns(anchor="a", positive="b", negative="neg", score="score", label="label")
    found = find_layout(["a", "b", "neg", "score", "label", "prompt"], given)
    assert found == ColumnLayout("a", ("b",), ("neg",), score="score", label="label")
    assert find_layout(["a", "p_1", "p_2"], Columns(anchor="a", positive="p")).positives == (
        "p_1",
        "p_2",
    )
    assert find_layout(["body"], Columns(), "text").anchor == "body"
    assert find_layout(["body", "id"], Columns(anchor="body"), "text").anchor == "body"
    for names in (["body", "id"], []):
        with pytest.raises(LayoutError, match=r"no column for the text.*columns: \{anchor: …"):
            find_layout(names, Columns(), "text")
    with pytest.raises(LayoutError, match="no column for the positive"):
        find_layout(["text"], Columns(), "retrieval")


@pytest.mark.parametrize(
    ("names", "columns", "words"),
    [
        (["query", "question", "pos"], Columns(), "query and question could both be the anchor"),
        (["query", "pos", "answer"], Columns(), "pos and answer could both be the positive"),
        (["query", "pos", "neg", "negative"], Columns(), "could both be the negative"),
        (["query", "pos", "label", "labels"], Columns(), "could both be the label"),
        (["image", "audio"], Columns(), "could both be the medium"),
        (["image", "text", "caption"], Columns(), "could both be the caption"),
        (["a", "b"], Columns(), "no column for the anchor"),
        (["query", "b"], Columns(), "no column for the positive"),
        (["query", "score", "label"], Columns(), "no column for the positive"),
        (["query", "b"], Columns(anchor="query"), r"for the positive \(anchor is 'query'\)"),
        (["query", "b"], Columns(positive="c"), "positive names 'c', which is not there"),
        (["premise", "hypothesis", "label"], Columns(), "may be a class or a score"),
        (["left", "right"], Columns(), r"left, right; write columns: \{anchor: …, positive: …"),
        (["query", "b"], Columns(anchor="qeury"), "names 'qeury', .*; did you mean 'query'"),
    ],
)
def test_ambiguous_columns_are_named(names: list[str], columns: Columns, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        find_layout(names, columns)


def test_a_layout_is_described_by_its_parts() -> None:
    layout = ColumnLayout("q", ("p", "p_2"), ("n",), score="s", label="l")
    assert layout.describe() == "anchor = q, positive = p, p_2, negative = n, score = s, label = l"
    assert ColumnLayout("t", single=True).describe() == "text = t"
    assert ColumnLayout("q", ("p",), positive_scores="ps").describe().endswith("score = ps")
    assert not ColumnLayout("t", single=True).labelled
    assert not layout.labelled
    assert ColumnLayout("t", label="l").labelled


def test_samples_are_these(tmp_path: Path) -> None:
    """Sets that were sampled before stay the same."""
    assert list(sample_rows(10, 4, "a")) == [2, 4, 5, 6]
    assert list(sample_rows(10, 4, "b")) != [2, 4, 5, 6]
    assert list(sample_rows(3, 3, "a")) == list(sample_rows(3, None, "a")) == [0, 1, 2]
    labels = [f"l{row % 5}" for row in range(60)]
    found = sample_labelled(labels, 20, "a")
    counts = {label: sum(labels[row] == label for row in found) for label in set(labels)}
    assert sorted(counts.values()) == [0, 0, 0, 10, 10]
    assert list(found) == sorted(found)
    assert set(sample_labelled(labels, 10, "a")) <= set(found)
    assert list(sample_labelled(labels, 60, "a")) == list(range(60))
    assert len(sample_labelled(labels, 59, "a")) == 59
    assert len({labels[row] for row in sample_labelled(labels, 40, "a")}) == 5


def test_without_a_store_rows_go_with_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    (dataset,) = load(rows_file(tmp_path / "a.jsonl", {"text": "a"}))
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    assert dataset[0].anchor == "a"
    del dataset
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_rows_in_a_store_are_found_by_content(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "a.jsonl", {"text": "a"})
    load(path, tmp_path / "store")
    load(path, tmp_path / "store", first=1)
    load(path, tmp_path / "store", score_range=(0.0, 2.0))
    load(path, tmp_path / "store", columns=Columns(anchor="text"), task="text")
    assert len(list((tmp_path / "store" / "examples").iterdir())) == 4


def test_plain_rows_are_those_of_one_file(tmp_path: Path, two_lists: Path) -> None:
    path = rows_file(tmp_path / "c.jsonl", *({"n": n} for n in range(20)))
    entry = DataEntry(path=DataRef(str(path)), limit=8)
    found = read_plain_rows(entry, readers=READERS, resolve=resolve)
    assert found is not None
    assert [number for number, _ in found.rows] == [row + 1 for row in sample_rows(20, 8, "c")]
    assert found.at(3).endswith("c.jsonl:3")
    assert len(found.key) == 32
    assert read_plain_rows(entry, readers=READERS, resolve=lambda _: None) is None
    with pytest.raises(DataError, match="not a catalogue of several"):
        read_plain_rows(DataEntry(path=DataRef(str(two_lists))), readers=READERS, resolve=resolve)


def test_one_fault_of_plain_rows_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 21 + '{"a": 1,\n')
    with pytest.raises(DataError) as caught:
        read_plain_rows(DataEntry(path=DataRef(str(path))), readers=READERS, resolve=resolve)
    first, second = str(caught.value).splitlines()
    assert f"{path}:1: " in first
    assert "(21 rows: 1, 2, 3, 4, 5, …)" in first
    assert f"{path}:22: " in second
    assert "at column 9" in second  # behind the comma, where the line ends


def test_capital_headings_of_plain_rows_and_documents_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ID": 7, "Title": "T", "TEXT": "x"}\n')
    entry = DataEntry(path=DataRef(str(path)))
    found = read_plain_rows(entry, readers=READERS, resolve=resolve)
    assert found is not None
    assert found.rows[0][1]["text"] == "x"
    (document,) = read_document_rows(path, READERS)
    assert (document.name, document.title, document.text) == ("7", "T", "x")


def preview(path: Path, **options: Any) -> Any:
    entry = DataEntry(path=DataRef(str(path)), **options)
    (head,) = check_entries([entry], readers=READERS, resolve=resolve).heads
    return head


def test_a_preview_shows_all_parts_of_the_first_row(tmp_path: Path) -> None:
    row = {
        "query": "q " * 100,
        "pos": ["a", "b", "c"],
        "neg": ["d"],
        "pos_scores": [0.5, 0.25, 1],
        "neg_scores": [0],
    }
    path = rows_file(
        tmp_path / "a.jsonl", row, {**row, "query": "r", "neg": ["d", "e"], "neg_scores": [0, 0]}
    )
    head = preview(path, prompt="p: ")
    assert head.lines[:2] == (
        "columns: anchor = query, positive = pos, negative = neg, score = pos_scores",
        "prompt: 'p:' before the anchor",
    )
    assert head.lines[2].startswith("anchor: q q q")
    assert len(head.lines[2]) == len("anchor: ") + 100
    assert head.lines[2].endswith("…")
    assert head.lines[3:6] == (
        "positive: a (score 0.5)",
        "positive: b (score 0.25) (and 1 more)",
        "negative: d (score 0)",
    )
    assert head.info.size == 0
    assert head.title == "a: retrieval"


def test_a_preview_of_labels_or_texts_says_what_is_drawn(tmp_path: Path) -> None:
    rows = [{"text": f"{n}", "label": "ab"[n % 2]} for n in range(4)]
    head = preview(rows_file(tmp_path / "a.jsonl", *rows), symmetric=True, prompt="p")
    assert "prompt: 'p' before every text" in head.lines
    assert head.lines[-2:] == ("label: a", "positive: drawn among the rows of the label")
    head = preview(rows_file(tmp_path / "b.jsonl", {"text": "a"}))
    assert head.lines == ("columns: text = text", "text: a")


def entry(text: str, folder: Path, **more: object) -> DataEntry:
    return DataEntry(path=DataRef(text, folder), **more)  # type: ignore[arg-type]


def test_a_catalogue_is_split_into_its_sets_if_they_are_known(tmp_path: Path) -> None:
    sets = "".join(f"- {{name: {n}, path: {n}.jsonl}}\n" for n in ("red", "blue"))
    (tmp_path / "datasets.yaml").write_text(f"train:\n{sets}")
    for text in ("datasets.yaml", "."):
        found = one_by_one([entry(text, tmp_path, limit=7)])
        assert list(found) == ["blue", "red"]
        assert found["red"] == entry(text, tmp_path, limit=7, only=("red",))
    assert list(one_by_one([entry("datasets.yaml", tmp_path, only=("red",))])) == ["red"]
    with pytest.raises(DataError, match=r"the sets that \$corpus will hold .* under `only`"):
        one_by_one([entry("$corpus", tmp_path)])
    assert list(one_by_one([entry("$corpus", tmp_path, only=("b", "a"))])) == ["a", "b"]


def test_entries_go_by_their_names_or_numbers(tmp_path: Path) -> None:
    given = [
        DataEntry(hub="me/questions"),
        entry("pairs.jsonl.gz", tmp_path),
        entry("b.csv", tmp_path, name="my set"),
    ]
    assert list(one_by_one(given)) == ["my-set", "pairs", "questions"]
    assert one_by_one(given) == one_by_one(given[::-1])
    given = [entry("a/x.jsonl", tmp_path), entry("b/x.jsonl", tmp_path)]
    assert list(one_by_one(given)) == ["x-0", "x-1"]


@pytest.mark.slow
@given(st.lists(st.text(max_size=5), max_size=30))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_texts_are_in_the_order_of_their_first(tmp_path: Path, given: list[str]) -> None:
    texts = DistinctTexts(iter(given), tmp_path)
    assert list(texts) == list(dict.fromkeys(given))
    assert [texts[int(place)] for place in texts.places] == given
    assert texts[1:3] == list(dict.fromkeys(given))[1:3]


def test_half_a_surrogate_pair_is_a_text(tmp_path: Path) -> None:
    assert list(DistinctTexts(["\ud800", "a", "\ud800"], tmp_path)) == ["\ud800", "a"]
    assert not list(tmp_path.iterdir())
