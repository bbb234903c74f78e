"""Evaluation sets: which files a part has, how texts and judgements are joined, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import DataError, DataRef
from emberge_data import (
    ClassificationData,
    ClusteringData,
    EvalSet,
    EvalSource,
    JsonLines,
    PairData,
    RerankingData,
    RetrievalData,
    check_eval_sets,
    list_eval_texts,
    load_eval_set,
    pick_eval_sets,
)
from emberge_data.evaluation.read_eval_sets import explain_missing_part
from PIL import Image

from tests.support.glance import Glance

READERS = [JsonLines()]


def rows_file(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def one_set(folder: Path, task: str, **options: Any) -> EvalSet:
    return EvalSet(name="exam", folder=folder, task=task, where="datasets.yaml:2", **options)  # type: ignore[arg-type]


def pick(path: Path, *only: str) -> list[EvalSet]:
    return pick_eval_sets(EvalSource(path=DataRef(str(path)), only=only))


def read_part(folder: Path, task: str, split: str = "test") -> Any:
    return load_eval_set(one_set(folder, task), readers=READERS, split=split)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "datasets.yaml"
    path.write_text("eval:\n- {name: a, dir: a, task: sts}\n- {name: b, dir: b, task: sts}\n")
    return path


def test_all_sets_are_taken_or_those_that_are_named_and_listed(listed: Path) -> None:
    assert [one.name for one in pick(listed)] == ["a", "b"]
    assert [one.name for one in pick(listed, "b", "a")] == ["b", "a"]
    with pytest.raises(DataError, match="no evaluation set 'aa'; did you mean 'a'"):
        pick(listed, "a", "aa")
    listed.write_text("train:\n- {name: a, file: a}\n")
    with pytest.raises(DataError, match="has no evaluation sets"):
        pick(listed)


def test_facts_of_a_set_have_the_defaults_of_its_task(listed: Path) -> None:
    facts = (
        "language: no, domain: elsewhere, metric: ndcg, instruction: Find it., score_range: [0, 5]"
    )
    listed.write_text(
        f"eval:\n- {{name: a, dir: sets/a, task: sts, {facts}}}\n"
        "- {name: b, dir: b, task: sts, prompt: 'q: ', symmetric: false, instruction: I}\n"
        "- {name: c, dir: c, task: retrieval, instruction: ' '}\n"
    )
    first, second, third = pick(listed)
    assert first.where.endswith("datasets.yaml:2")
    assert replace(first, where="") == EvalSet(
        **{"name": "a", "folder": listed.parent / "sets/a", "task": "sts", "language": "no"},
        **{"domain": "elsewhere", "metric": "ndcg", "instruction": "Find it."},
        prompt="Instruct: Find it.\nQuery: ",
        score_range=(0.0, 5.0),
    )
    assert (second.prompt, second.symmetric) == ("q: ", False)
    assert (third.prompt, third.symmetric) == ("", False)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("x-mine: 1", "needs the option 'task'"),
        ("task: text", "single texts cannot be scored"),
        ("task: sts, domain: inside", "elsewhere"),
        ("task: sts, score_range: [5, 0]", "lowest, highest"),
    ],
)
def test_bad_facts_of_a_set_have_their_line(listed: Path, facts: str, words: str) -> None:
    listed.write_text(f"eval:\n- {{name: a, dir: a, {facts}}}\n")
    with pytest.raises(DataError, match=rf"datasets\.yaml:2: .*{words}"):
        pick(listed)


NEEDED = {
    "retrieval": ["corpus", "queries", "{}.tsv"],
    "reranking": ["{}"],
    "classification": ["train", "{}"],
    "clustering": ["{}"],
    "sts": ["{}"],
    "pair_classification": ["{}"],
}


@pytest.mark.parametrize("split", ["test", "dev"])
@pytest.mark.parametrize("task", NEEDED)
def test_each_file_that_a_part_lacks_is_named(tmp_path: Path, task: str, split: str) -> None:
    one = one_set(tmp_path / "a", task)
    fault = explain_missing_part(one, split, READERS)
    assert fault == f"datasets.yaml:2: {one.folder}: there is no such folder"
    (one.folder / "qrels").mkdir(parents=True)
    for stem in NEEDED[task]:
        name = stem.format(split)
        words = "qrels" if stem == "{}.tsv" else f"{name} file"
        fault = str(explain_missing_part(one, split, READERS))
        assert fault.startswith(f"datasets.yaml:2: {one.folder} has no {words}")
        path = f"qrels/{name}" if stem == "{}.tsv" else f"{name}.jsonl"
        (one.folder / path).touch()
    assert explain_missing_part(one, split, READERS) is None


def retrieval(
    folder: Path, queries: Sequence[Any], corpus: Sequence[Any], qrels: Mapping[str, str]
) -> None:
    rows_file(folder / "queries.jsonl", *queries)
    rows_file(folder / "corpus.jsonl", *corpus)
    for name, text in qrels.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def texts(**by_id: str) -> list[Any]:
    return [{"_id": name, "text": text} for name, text in by_id.items()]


def test_each_part_has_its_judgements(tmp_path: Path) -> None:
    retrieval(
        tmp_path,
        texts(q0="question 0", q1="question 1", q2="question 2"),
        texts(d0="text 0", d1="text 1", d2="text 2"),
        {
            "qrels.tsv": "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td1\t0\nq0\td0\t2\n",
            "qrels_dev.tsv": "q1\td1\t1\n\n  \nq2\td2\t 1 \nq2\td0\t-1\n",
        },
    )
    assert read_part(tmp_path, "retrieval") == RetrievalData(
        {"d0": "text 0", "d1": "text 1", "d2": "text 2"},
        {"q0": "question 0"},
        {"q0": {"d0": 2, "d1": 0}},
    )
    relevant = {"q1": {"d1": 1}, "q2": {"d2": 1, "d0": -1}}
    assert read_part(tmp_path, "retrieval", "dev").relevant == relevant


@pytest.mark.parametrize("text", ["", "query\tdoc\tscore\n"])
def test_a_file_without_judgements_is_refused(tmp_path: Path, text: str) -> None:
    retrieval(tmp_path, texts(q="a"), texts(d="b"), {"qrels.tsv": text})
    with pytest.raises(DataError, match=r"qrels\.tsv: there are no judgements"):
        read_part(tmp_path, "retrieval")


def test_a_query_without_a_grade_above_0_is_refused_in_scored_parts(tmp_path: Path) -> None:
    text = "q\td\t0\nr\td\t0\nr\te\t1\n"
    qrels = {"qrels.tsv": "query-id\tcorpus-id\tscore\n" + text, "qrels_train.tsv": text}
    retrieval(tmp_path, texts(q="a", r="b"), texts(d="c", e="d"), qrels)
    with pytest.raises(DataError, match=r"qrels\.tsv:2: .*'q'.*remove its lines"):
        read_part(tmp_path, "retrieval")
    assert list(read_part(tmp_path, "retrieval", "train").relevant) == ["q", "r"]
    context: Any = Announced(None)
    _, faults = check_eval_sets(context, EvalSource(path=DataRef(str(tmp_path))))
    assert ["qrels.tsv:2:" in fault for fault in faults] == [True]


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("queries", {"_id": "x", "text": " "}, "the text is empty"),
        ("queries", {"id": "x"}, r"expected _id and text \(columns: id\)"),
        ("corpus", {"_id": "x", "words": "a"}, r"the row needs a text, .* \(columns: _id, words\)"),
        ("corpus", [], "expected an object"),
        ("corpus", {"_id": "d", "text": "c"}, "the id 'd' was given before"),
    ],
)
def test_problems_of_retrieval_sets_have_lines(
    name: str, row: Any, said: str, tmp_path: Path
) -> None:
    rows = {"queries": texts(q="a"), "corpus": texts(d="b")}
    rows[name].append(row)
    retrieval(tmp_path, **rows, qrels={"qrels.tsv": "q\td\t1\n"})
    with pytest.raises(DataError, match=rf"{name}\.jsonl:2: {said}"):
        read_part(tmp_path, "retrieval")


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ("q\tz\t1", "2: there is no document 'z'"),
        ("y\td\t1", "2: there is no query 'y'"),
        ("q\td\t1\nq\td\t2", "3: 'd' was given another grade for 'q'"),
        ("q\td", "2: expected query, document and a whole number"),
    ],
)
def test_judgements_that_cannot_be_used_have_lines(tmp_path: Path, judged: str, said: str) -> None:
    qrels = {"qrels.tsv": f"query\tdocument\tscore\n{judged}\n"}
    retrieval(tmp_path, texts(q="a"), texts(d="b"), qrels)
    with pytest.raises(DataError, match=rf"qrels\.tsv:{said}"):
        read_part(tmp_path, "retrieval")


def test_labels_that_no_classifier_can_give_are_refused(tmp_path: Path) -> None:
    for fitted, message in (
        ("xx", "train.jsonl: all rows have one"),
        ("xy", "test.jsonl: no text"),
    ):
        for stem, labels in (("train", fitted), ("test", "xz")):
            rows_file(tmp_path / f"{stem}.jsonl", *({"text": f"{n}", "label": n} for n in labels))
        with pytest.raises(DataError, match=message):
            read_part(tmp_path, "classification")


def test_titles_are_of_documents_alone_and_media_come_before_text(tmp_path: Path) -> None:
    from emberge import Media, split_parts

    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    retrieval(
        tmp_path,
        [
            {"_id": "q", "text": "a", "title": 5},
            {"_id": "r", "image": "a.png", "text": "b"},
            {"_id": "s", "image": "a.png"},
            {"_id": "t", "image": "", "text": "c"},
            {"_id": "u", "text": {"image": "a.png"}},
        ],
        [{"_id": "d", "text": "b", "title": "t"}],
        {"qrels.tsv": "".join(f"{name}\td\t1\n" for name in "qrstu")},
    )
    found = read_part(tmp_path, "retrieval")
    parts = {
        name: ["image" if isinstance(part, Media) else part for part in split_parts(text)]
        for name, text in found.queries.items()
    }
    assert parts == {"q": ["a"], "r": ["image", "b"], "s": ["image"], "t": ["c"], "u": ["image"]}
    assert found.corpus == {"d": "t b"}


def pairs(count: int) -> list[dict[str, Any]]:
    return [
        {"query": f"a{n}", "pos": [f"b{n}"], "pos_scores": [n / 10], "subset": f"s{n % 2}"}
        for n in range(count)
    ]


def test_pairs_have_scores_on_the_scale_of_the_set(tmp_path: Path) -> None:
    rows_file(tmp_path / "test.jsonl", *pairs(3))
    found = read_part(tmp_path, "sts")
    assert found == PairData(["a0", "a1", "a2"], ["b0", "b1", "b2"], [0.0, 0.1, 0.2])
    rows_file(tmp_path / "test.jsonl", {"query": "a", "pos": ["b"], "pos_scores": [4]})
    one = one_set(tmp_path, "sts", score_range=(0, 5))
    found = load_eval_set(one, readers=READERS)
    assert isinstance(found, PairData)
    assert list(found.scores) == [0.8]


@pytest.mark.parametrize(
    "row", [{"pos": ["b", "c"], "pos_scores": [1, 1]}, {"pos": ["b"], "neg": ["c"]}]
)
def test_a_pair_has_one_text_and_one_score(tmp_path: Path, row: Mapping[str, Any]) -> None:
    first = {"query": "a", "pos": ["b"], "pos_scores": [1]} if "pos_scores" in row else {}
    rows = [one for one in (first, {"query": "a", **row}) if one]
    rows_file(tmp_path / "test.jsonl", *rows)
    with pytest.raises(DataError, match=rf"test\.jsonl:{len(rows)}: a pair needs one other text"):
        read_part(tmp_path, "sts")


def test_a_classifier_has_texts_to_fit_and_to_test(tmp_path: Path) -> None:
    for stem in ("train", "test", "dev"):
        rows = ({"text": f"{stem} {n}", "label": "xy"[n % 2]} for n in range(4))
        rows_file(tmp_path / f"{stem}.jsonl", *rows)
    train, test, dev = ([f"{s} {n}" for n in range(4)] for s in ("train", "test", "dev"))
    labels = ["x", "y"] * 2
    for split, scored in (("test", test), ("dev", dev)):
        found = read_part(tmp_path, "classification", split)
        assert found == ClassificationData(train, labels, scored, labels)
    assert read_part(tmp_path, "clustering") == ClusteringData(test, labels)


def test_a_row_has_both_sides_or_a_label(tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "pos": [f"p{n}"], "neg": [f"n{n}", "m"]} for n in range(5)]
    rows_file(tmp_path / "test.jsonl", *rows)
    assert read_part(tmp_path, "reranking") == RerankingData(
        [f"q{n}" for n in range(5)],
        [(f"p{n}",) for n in range(5)],
        [(f"n{n}", "m") for n in range(5)],
    )
    rows_file(tmp_path / "test.jsonl", rows[0], {"query": "q", "pos": ["p"]})
    with pytest.raises(DataError, match=r"test\.jsonl:2: a row to rerank needs negatives"):
        read_part(tmp_path, "reranking")
    rows_file(tmp_path / "test.jsonl", {"query": "a", "pos": "b"})
    with pytest.raises(DataError, match=r"test\.jsonl: the rows need the columns text and label"):
        read_part(tmp_path, "clustering")


def test_every_text_that_is_scored_has_its_side() -> None:
    retrieved = RetrievalData({"d": "D"}, {"q": "Q"}, {})
    assert list(list_eval_texts(retrieved)) == [("query", "Q"), ("document", "D")]
    ranked = RerankingData(["Q"], [("P",)], [("N", "M")])
    documents = (("document", text) for text in "PNM")
    assert list(list_eval_texts(ranked)) == [("query", "Q"), *documents]
    assert list(list_eval_texts(PairData(["A"], ["B"], [1.0]))) == [("query", "A"), ("query", "B")]
    assert list(list_eval_texts(ClassificationData(["A"], ["x"], ["B"], ["x"]))) == [("query", "B")]
    assert list(list_eval_texts(ClusteringData(["A"], ["x"]))) == [("query", "A")]


class Announced(Glance):
    """What a check knows of an earlier step: the sets that it will write, or nothing."""

    def __init__(self, sets: Mapping[str, str] | None) -> None:
        super().__init__()
        self._sets = sets

    def expected(self, reference: Any) -> Any:
        assert reference.step == "made"
        return None if self._sets is None else SimpleNamespace(sets=self._sets, splits=("test",))


def checked(
    sets: Mapping[str, str] | None, only: tuple[str, ...] = (), split: Any = "test"
) -> tuple[list[str], list[str]]:
    context: Any = Announced(sets)
    source = EvalSource(path=DataRef("$made"), only=only)
    found, faults = check_eval_sets(context, source, split)
    return [f"{one.name} {one.task}" for one in found], faults


def test_sets_to_come_are_announced_and_those_there_looked_at(listed: Path) -> None:
    sets = {"a": "sts", "b": "retrieval"}
    assert checked(sets) == (["a sts", "b retrieval"], [])
    assert checked(sets, ("b",)) == (["b retrieval"], [])
    assert checked(None) == checked({}) == ([], [])
    names, (fault,) = checked(sets, ("c",))
    assert names == []
    assert "$made: there is no evaluation set 'c'; there are a, b" in fault
    assert checked(sets, (), "dev") == (
        ["a sts", "b retrieval"],
        ["$made makes no development sets; write split: test, or a step split makes them"],
    )
    context: Any = Announced(None)
    source = EvalSource(path=DataRef(str(listed)), only=("a",))
    found, faults = check_eval_sets(context, source)
    assert [one.name for one in found] == ["a"]
    assert "a: there is no such folder" in faults[0]
