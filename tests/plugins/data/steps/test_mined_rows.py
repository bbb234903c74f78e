"""What a teacher's vectors make of rows: mined, filtered and found again, by hand on circles of vectors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataError, DataRef, ModelRef
from emberge.data import StoredDataset, load_datasets
from emberge_data.json_lines import JsonLines
from emberge_data.steps.compared_set import ComparedSet
from emberge_data.steps.consistency_filter_step import ConsistencyFilter
from emberge_data.steps.filter_negatives_step import FilterNegatives
from emberge_data.steps.mine_hard_negatives_step import MineHardNegatives, _build_exclusion
from emberge_data.steps.similarity import VectorSimilarity
from emberge_data.steps.teacher import Teacher
from numpy.typing import NDArray

READERS = [JsonLines()]
TEACHER = Teacher(model=ModelRef("one"))


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dataset(folder: Path, *rows: Any, **options: Any) -> StoredDataset:
    entry = DataEntry(path=DataRef(str(write(folder / "rows.jsonl", *rows))), **options)
    (found,) = load_datasets([entry], readers=READERS, resolve=lambda ref: Path(ref.text))
    return found


def workspace(folder: Path) -> Any:
    """What a step has around it, with the calls of its progress in `seen`."""
    seen: list[Any] = []
    return SimpleNamespace(
        work=folder,
        readers=READERS,
        seed=3,
        data=lambda reference: folder / reference.text,
        progress=lambda *words: seen.append(words),
        warn=seen.append,
        seen=seen,
    )


def on_a_circle(*cosines: float) -> NDArray[np.float32]:
    """Vectors with these cosines to the first axis."""
    x = np.array(cosines)
    return np.stack([x, np.sqrt(1 - x**2)], axis=1).astype(np.float32)


ROWS = (
    {"query": "q", "pos": ["a"], "neg": ["x", "y"]},
    {"query": "r", "pos": ["b"], "neg": ["x"], "label": None},
    {"query": "q", "pos": ["c"], "neg": ["a"]},
)
SCORED = [{**row, "neg_scores": [0.5] * len(row["neg"])} for row in ROWS]  # type: ignore[arg-type]
# Of the documents a, x, y, b, c; all queries are alike.
COSINES = (0.8, 0.79, 0.5, 0.7, 0.9)


def similarity(compared: ComparedSet, cosines: Sequence[float] = COSINES) -> VectorSimilarity:
    queries: Any = on_a_circle(*[1.0] * len(compared.queries))
    documents: Any = on_a_circle(*cosines)
    return VectorSimilarity(queries, documents, "cpu")


def judged(step: Any, around: Any, *rows: Any, cosines: Sequence[float] = COSINES) -> list[Any]:
    """Rows' texts after the step (positives, negatives, scores of both), and notes."""
    compared = step.list_texts(dataset(around.work, *rows), around)

    def follow() -> Iterator[Any]:
        around.sentence = yield from step.judge(compared, similarity(compared, cosines), around)

    found = list(follow())
    assert [one.before for one in found] == [
        compared.dataset[n] for n in range(len(compared.dataset))
    ]
    assert [one.row for one in found] == list(range(len(rows)))
    return [
        (
            one.after
            and (
                "".join(one.after.positives),
                "".join(one.after.negatives),
                one.after.positive_scores,
                one.after.negative_scores,
            ),
            one.note,
        )
        for one in found
    ]


def mine(**options: Any) -> MineHardNegatives:
    return MineHardNegatives(data=(), teacher=TEACHER, **options)


# ── sets ────────────────────────────────────────────────────────────────────────────────────────


def test_texts_of_a_set_are_listed_once_with_their_rows(tmp_path: Path) -> None:
    found = dataset(tmp_path, *ROWS)
    compared = ComparedSet.of(found, workspace(tmp_path), corpus=["new", "x"])
    assert (compared.name, compared.dataset, compared.labels) == ("rows", found, [None] * 3)
    assert list(compared.queries) == ["q", "r"]
    assert list(compared.documents) == ["a", "x", "y", "b", "c", "new"]
    assert compared.documents[1:3] == ["x", "y"]
    assert compared.documents.take(np.array([3, 0]), "to ")[:] == ["to b", "to a"]

    def pairs(name: str) -> list[list[int]]:
        one = getattr(compared, name)
        return [one.rows.tolist(), one.queries.tolist(), one.documents.tolist()]

    assert pairs("anchors") == [[0, 1, 2], [0, 1, 0], [-1, -1, -1]]
    assert pairs("positives") == [[0, 1, 2], [0, 1, 0], [0, 3, 4]]
    assert pairs("negatives") == [[0, 0, 1, 2], [0, 0, 1, 0], [1, 2, 1, 0]]
    split = compared.negatives.split(np.arange(4), 3)
    assert [part.tolist() for part in split] == [[0, 1], [2], [3]]
    alone = ComparedSet.of(found, workspace(tmp_path), negatives=False)
    assert list(alone.documents) == ["a", "b", "c"]
    assert alone.negatives.documents.tolist() == [-1, -1, -1, 0]


def test_a_set_without_positives_is_refused(tmp_path: Path) -> None:
    labelled = dataset(tmp_path, *({"text": f"t{n}", "label": n % 2} for n in range(4)))
    with pytest.raises(DataError, match=r"'rows' has no positives of its own.*`only`"):
        ComparedSet.of(labelled, workspace(tmp_path))


def allowed(compared: ComparedSet) -> list[str]:
    """The documents that each query may get as negatives, joined."""
    size = len(compared.queries), len(compared.documents)
    mask = np.ones(size, dtype=bool)
    exclude = _build_exclusion(compared)
    for columns in (slice(0, 2), slice(2, size[1])):  # as tiles are cut
        rows, places = exclude(slice(0, size[0]), columns)
        mask[rows, places + columns.start] = False
    return ["".join(np.array(compared.documents[:])[row]) for row in mask]


def test_a_query_gets_neither_itself_nor_a_text_of_its_labels(tmp_path: Path) -> None:
    rows = (
        {"query": "q", "pos": ["a"], "neg": ["x"], "label": "one"},
        {"query": "r", "pos": ["b"], "neg": ["a"], "label": "two"},
        {"query": "q", "pos": ["c"], "neg": ["q"], "label": "two"},
        {"query": "s", "pos": ["q"], "neg": ["r"], "label": "one"},
        {"query": "t", "pos": ["d"], "neg": ["r"], "label": "three"},
    )
    compared = mine(count=1).list_texts(dataset(tmp_path, *rows), workspace(tmp_path))
    assert list(compared.documents) == [
        "q",
        "a",
        "b",
        "c",
        "d",
    ]  # the labels of x and r are unknown
    # q is of both labels, r of the second, s of the first, t of another.
    assert allowed(compared) == ["d", "ad", "bcd", "qabc"]


# ── steps ───────────────────────────────────────────────────────────────────────────────────────


def test_mined_rows_have_new_negatives_and_no_scores_of_old_ones(tmp_path: Path) -> None:
    around = workspace(tmp_path)
    # The lowest positive of q has 0.8, so that 0.76 is the threshold; that of r has 0.7.
    assert judged(mine(count=2), around, *SCORED) == [
        (("a", "by", None, None), "negatives mined"),
        (("b", "y", None, None), "fewer than 2 negatives"),
        (("c", "by", None, None), "negatives mined"),
    ]
    assert around.seen == [(2, 2, "queries")]
    assert around.sentence == (
        "rows: 3 negatives for 2 of 2 queries, which score 0.5 to 0.7, median 0.5; the lowest positives "
        "score 0.7 to 0.8, median 0.7."
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"count": 1}, ["b", "y", "b"]),
        ({"count": 2}, ["by", "y", "by"]),
        ({"count": 1, "margin": None}, ["x", "c", "x"]),
        ({"count": 1, "margin": 0.99}, ["x", "y", "x"]),
        ({"count": 1, "range": (2, 2)}, ["b", "", "b"]),
        ({"count": 1, "range": (2, 9)}, ["b", "y", "b"]),
        ({"count": 2, "range": (2, 3), "margin": None}, ["by", "ax", "by"]),
    ],
)
def test_options_decide_which_passages_are_negatives(
    options: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    found = judged(mine(**options), workspace(tmp_path), *SCORED)
    assert [after[1] for after, _ in found] == expected
    assert {after[3] for after, _ in found} == {None}
    count = options["count"]
    few = "no negative" if count == 1 else f"fewer than {count} negatives"
    assert [note == few for _, note in found] == [len(text) < count for text in expected]


def test_where_nothing_passes_the_scores_seen_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        judged(mine(count=2, margin=0.1), workspace(tmp_path), *ROWS)
    assert str(caught.value) == (
        "dataset 'rows': no passage passes for any query (one scores the lowest positives 0.7 to 0.8, "
        "median 0.7); raise margin (0.1), widen range, or name a corpus"
    )


def test_with_a_corpus_its_texts_and_the_positives_are_passages(tmp_path: Path) -> None:
    found = dataset(tmp_path, *ROWS)
    write(tmp_path / "more.jsonl", {"_id": 1, "title": "T", "text": "new"}, {"text": " card "})
    more = mine(count=3, corpus=(DataRef("more.jsonl"),)).list_texts(found, workspace(tmp_path))
    assert list(more.documents) == ["a", "b", "c", "T new", "card"]


def test_filtered_rows_lose_negatives_above_the_threshold_with_their_scores(tmp_path: Path) -> None:
    rows = [
        {**ROWS[0], "neg_scores": [0.25, 0.5]},
        {**ROWS[1], "neg_scores": [0.75]},
        {**ROWS[2], "neg_scores": [1.0]},
    ]
    note = "negatives above the threshold are gone"
    step = FilterNegatives(data=(), teacher=TEACHER, margin=0.95)
    assert judged(step, workspace(tmp_path), *rows) == [
        (("a", "y", None, (0.5,)), note),
        (("b", "", None, ()), note),
        (("c", "", None, ()), note),
    ]
    found = judged(step, workspace(tmp_path), *ROWS)
    assert [after[1:] for after, _ in found] == [(text, None, None) for text in ("y", "", "")]
    whole = dataclasses.replace(step, margin=0.99)
    assert [after[1] for after, _ in judged(whole, workspace(tmp_path), *ROWS)] == ["xy", "", ""]


def test_rows_keep_the_positives_that_are_found_again(tmp_path: Path) -> None:
    around = workspace(tmp_path)
    rows = (
        {"query": "q", "pos": ["a", "b"], "pos_scores": [0.5, 1.0]},
        {"query": "r", "pos": ["c"], "pos_scores": [0.25]},
        {"query": "s", "pos": ["d"], "pos_scores": [0.75]},
    )
    step = ConsistencyFilter(data=(), teacher=TEACHER, top_k=2)
    cosines = (0.9, 0.6, 0.8, 0.7)  # a is first, c second; b is fourth, or third beside its own a
    assert judged(step, around, *rows, cosines=cosines) == [
        (("a", "", (0.5,), None), "positives"),
        (("c", "", (0.25,), None), "positives"),
        (None, "no positive among the 2 nearest"),
    ]
    assert around.seen == [(0, 1, "shards")]
    wide = dataclasses.replace(step, top_k=3)
    found = judged(wide, around, *rows, cosines=cosines)
    assert [after and after[0] for after, _ in found] == ["ab", "c", "d"]
    alone = dataclasses.replace(step, shard_size=1, top_k=1)
    assert len(judged(alone, around, *rows, cosines=cosines)) == 3
    assert around.seen[-3:] == [(n, 3, "shards") for n in range(3)]
