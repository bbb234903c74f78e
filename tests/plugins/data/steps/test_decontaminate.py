"""Rows that hold texts of tests go, whatever was done to the texts; other rows stay."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import DataEntry, DataError, DataRef, Evaluator, TaskInfo, Workspace
from emberge.contracts import TextRole
from emberge.data import load_datasets
from emberge_data.json_lines import JsonLines
from emberge_data.steps.decontaminate_step import Decontaminate
from emberge_data.steps.leak_index import gather_blocks
from emberge_mteb import EvalEntry, Mteb

from tests.plugins.data.steps.steps import written
from tests.support.bench import BACKBONE, Bench
from tests.support.glance import Glance


@dataclass(frozen=True, kw_only=True)
class Tests(Evaluator):
    """An evaluator of one task with given texts."""

    __test__ = False

    given: tuple[tuple[TextRole, str], ...]

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [TaskInfo("exam", "retrieval", "ndcg_at_10")]

    def texts(self, task: TaskInfo, workspace: Workspace) -> Iterator[tuple[TextRole, str]]:
        return iter(self.given)


def entry(path: Path) -> tuple[DataEntry, ...]:
    return (DataEntry(path=DataRef(str(path))),)


def cleaned(step: Decontaminate, bench: Bench) -> list[dict[str, Any]]:
    """The rows that are left."""
    step.run(bench)
    (left,) = load_datasets(
        entry(bench.folder), readers=[JsonLines()], resolve=lambda ref: Path(ref.text)
    )
    rows = [left[row] for row in range(len(left))]
    return [{"query": r.anchor, "pos": list(r.positives), "neg": list(r.negatives)} for r in rows]


def pair(anchor: str, positive: str, *negatives: str) -> dict[str, Any]:
    return {"query": anchor, "pos": [positive], "neg": list(negatives)}


def numbered(first: int, count: int) -> str:
    """So many words that no other text has."""
    return " ".join(f"w{number}x{number * 7}" for number in range(first, first + count))


def test_a_row_goes_for_its_anchor_or_positive_and_loses_negatives(tmp_path: Path) -> None:
    rows = [
        pair("Who wrote it?", "Nobody knows who did."),
        pair("who wrote IT", "Some answer of its own."),
        pair("Another question", "THE DOCUMENT; of the test"),
        pair("A third question", "Its own answer", "the document of the test", "something else"),
        pair("A fourth question", "Its own passage"),
    ]
    path = written(tmp_path / "a.jsonl", rows)
    tests = Tests(given=(("query", "Who wrote it"), ("document", "The document of the test.")))
    bench = Bench(tmp_path)
    left = cleaned(Decontaminate(data=entry(path), evaluators=(tests,), jaccard=1.0), bench)
    assert [row["query"] for row in left] == ["A third question", "A fourth question"]
    assert left[0]["neg"] == ["something else"]
    changes = json.loads((bench.folder / "changes.json").read_text("utf-8"))["a"]
    assert changes["notes"] == {
        "equal to a query of exam": 2,
        "equal to a document of exam": 1,
        "a negative is equal to a document of exam": 1,
    }


def test_rows_for_documents_alone_stay_if_queries_are_asked_for(tmp_path: Path) -> None:
    rows = [pair("Its question", "The document"), pair("The query", "An answer"), pair("a", "b")]
    path = written(tmp_path / "a.jsonl", rows)
    tests = Tests(given=(("query", "The query"), ("document", "The document")))
    left = cleaned(
        Decontaminate(data=entry(path), evaluators=(tests,), drop=("queries",)), Bench(tmp_path)
    )
    assert [row["query"] for row in left] == ["Its question", "a"]


@pytest.mark.parametrize(("common", "dropped"), [(13, True), (12, False)])
def test_thirteen_words_in_a_row_are_a_copy_and_twelve_are_not(
    tmp_path: Path, common: int, dropped: bool
) -> None:
    run = numbered(0, common)
    rows = [pair("q", f"{numbered(100, 40)} {run.upper()}, {numbered(200, 40)}"), pair("r", "s")]
    path = written(tmp_path / "a.jsonl", rows)
    tests = Tests(given=(("document", f"{numbered(300, 40)} {run} {numbered(400, 40)}"),))
    left = cleaned(Decontaminate(data=entry(path), evaluators=(tests,)), Bench(tmp_path))
    assert ([row["query"] for row in left] == ["r"]) == dropped


def test_a_phrase_of_many_texts_or_of_many_tests_is_no_copy(tmp_path: Path) -> None:
    phrase = numbered(0, 15)
    for count, dropped in ((10, 10), (11, 0)):
        rows = [
            *(pair(f"q{i}", f"{phrase} {numbered(100 * i + 100, 40)}") for i in range(count)),
            pair("r", "s"),
        ]
        path = written(tmp_path / f"{count}.jsonl", rows)
        tests = Tests(given=(("document", f"{numbered(5000, 40)} {phrase}"),))
        step = Decontaminate(data=entry(path), evaluators=(tests,))
        left = cleaned(step, Bench(tmp_path / f"texts {count}"))
        assert len(rows) - len(left) == dropped
        texts = [f"{numbered(1000 * i + 1000, 40)} {phrase}" for i in range(count)]
        path = written(tmp_path / "a.jsonl", [rows[0], rows[-1]])
        tests = Tests(given=tuple(("document", text) for text in texts))
        step = Decontaminate(data=entry(path), evaluators=(tests,))
        left = cleaned(step, Bench(tmp_path / f"tests {count}"))
        assert [row["query"] for row in left] == (["r"] if dropped else ["q0", "r"])


@pytest.fixture
def single_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts are compared by their characters, so that their similarity is known."""
    monkeypatch.setattr("emberge_data.steps.leak_index.SHINGLE", 1)


def test_a_text_exactly_at_the_threshold_is_a_copy(tmp_path: Path, single_characters: None) -> None:
    path = written(tmp_path / "a.jsonl", [pair("abcd", "0"), pair("1", "2")])
    tests = Tests(given=(("query", "abce"),))
    for threshold, left_of_rows in ((0.6, ["1"]), (0.6 + 1e-9, ["abcd", "1"])):
        step = Decontaminate(data=entry(path), evaluators=(tests,), jaccard=threshold)
        left = cleaned(step, Bench(tmp_path / str(threshold)))
        assert [row["query"] for row in left] == left_of_rows


@pytest.mark.parametrize("is_shared", [False, True])
def test_short_texts_have_a_higher_threshold(
    tmp_path: Path, is_shared: bool, single_characters: None
) -> None:
    """The texts share three of five characters: 0.6."""
    tests = Tests(given=(("query", "abcd"), ("query", "ghij")))
    texts = {"a": "abce", "b": "abce" if is_shared else "ghik"}
    data = [
        dataclasses.replace(entry(written(tmp_path / f"{name}.jsonl", rows))[0], task=task)
        for (name, text), task in zip(texts.items(), ("retrieval", "clustering"), strict=True)
        for rows in [[pair(text, name), pair("1", "2")]]
    ]
    details = (
        Decontaminate(data=tuple(data), evaluators=(tests,)).run(Bench(tmp_path / "run")).details
    )
    dropped = {name: counts.dropped for name, counts in details.changes.items()}
    assert dropped == {"a": 1, "b": 0}


def test_sets_of_a_catalogue_are_tests_as_mteb_gives_their_texts(tmp_path: Path) -> None:
    (tmp_path / "exam").mkdir()
    written(tmp_path / "exam" / "test.jsonl", [{"text": "One of them", "label": "x"}])
    exam = {"name": "exam", "dir": "exam", "task": "clustering"}
    (tmp_path / "datasets.yaml").write_text(yaml.safe_dump({"eval": [exam]}))
    path = written(tmp_path / "a.jsonl", [pair(t, "p") for t in ("one of them", "another one")])
    local = EvalEntry(path=DataRef(str(tmp_path / "datasets.yaml")))
    evaluator = Mteb(data=(local,), backbone=BACKBONE)
    left = cleaned(Decontaminate(data=entry(path), evaluators=(evaluator,)), Bench(tmp_path))
    assert [row["query"] for row in left] == ["another one"]


def test_test_texts_come_in_blocks_and_each_once_a_block() -> None:
    texts: list[tuple[str, TextRole, str]] = [
        *(("one", "query", f"text {i}") for i in range(5)),
        ("two", "document", "Text 4!"),
        ("two", "query", "?"),
    ]
    blocks = list(gather_blocks(texts, most=2))
    assert [block.texts for block in blocks] == [
        ["text 0", "text 1"],
        ["text 2", "text 3"],
        ["text 4", "?"],
    ]
    assert blocks[2].labels == ["a query of one", "a query of two"]


def test_data_of_nothing_but_test_texts_stops_with_what_was_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [pair("the query", "p")])
    step = Decontaminate(data=entry(path), evaluators=(Tests(given=(("query", "The query"),)),))
    with pytest.raises(DataError, match="equal to a query of exam"):
        step.run(Bench(tmp_path))


def test_a_step_without_tests_is_refused_before_work_starts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [pair("q", "p")])
    (problem,) = Decontaminate(data=entry(path), evaluators=()).check(Glance())
    assert (problem.severity, problem.where) == ("error", "evaluators")
    assert "there is no test" in problem.message
