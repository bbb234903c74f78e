"""What teachers' vectors make of rows: mined, filtered and found again, by hand on circles of vectors."""

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
from emberge.data import StoredDataset, check_entries, load_datasets
from emberge_data.json_lines import JsonLines
from emberge_data.steps import kept_blocks
from emberge_data.steps.consistency_filter import ConsistencyFilter
from emberge_data.steps.filter_negatives import FilterNegatives
from emberge_data.steps.kept_blocks import KeptBlocks
from emberge_data.steps.listed_set import ArrangedSet, ListedSet
from emberge_data.steps.mine_hard_negatives import MineHardNegatives, read_corpora
from emberge_data.steps.negative_choice import passages_of, places_of_passages
from emberge_data.steps.search.exact import SearchMemory
from emberge_data.steps.search.exclusions import Lists
from emberge_data.steps.search.space import Side, Space
from emberge_data.steps.taught_step import describe_spread
from emberge_data.steps.teacher import Teacher
from numpy.typing import NDArray

READERS = [JsonLines()]
TEACHERS = (Teacher(model=ModelRef("one")),)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dataset(folder: Path, *rows: Any, **options: Any) -> StoredDataset:
    entry = DataEntry(path=DataRef(str(write(folder / "rows.jsonl", *rows))), **options)
    (found,) = load_datasets([entry], readers=READERS, resolve=lambda ref: Path(ref.text))
    return found


def workspace(folder: Path, **more: Any) -> Any:
    """What a step has around it, with the calls of its progress in `seen`."""
    seen: list[Any] = []
    given = {"seed": 3, "machine": SimpleNamespace(memory=None)}
    return SimpleNamespace(
        work=folder,
        readers=READERS,
        data=lambda reference: folder / reference.text,
        progress=lambda *words: seen.append(words),
        seen=seen,
        warn=lambda message: seen.append(message),
        **{**given, **more},
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
# Of the documents a, x, y, b, c; all queries are alike.
COSINES = (0.8, 0.79, 0.5, 0.7, 0.9)


def space(arranged: ArrangedSet, cosines: Sequence[float] = COSINES) -> Space:
    return Space(on_a_circle(*[1.0] * len(arranged.queries)), on_a_circle(*cosines))


def outcomes(step: Any, around: Any, *rows: Any, cosines: Sequence[float] = COSINES) -> list[Any]:
    """Rows' numbers, texts after the step (positives, negatives, scores of both), and notes."""
    arranged = step.arranged(dataset(around.work, *rows), around)

    def follow() -> Iterator[Any]:
        around.description = yield from step.outcomes(
            7, arranged, [space(arranged, cosines)], around
        )

    found = list(follow())
    assert [one.before for one in found] == [
        arranged.dataset[n] for n in range(len(arranged.dataset))
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


# ── sets ────────────────────────────────────────────────────────────────────────────────────────


def test_texts_of_a_set_are_listed_once_with_their_rows(tmp_path: Path) -> None:
    listed = ListedSet.of(dataset(tmp_path, *ROWS), workspace(tmp_path), ["new", "x"])
    assert list(listed.texts) == ["q", "a", "x", "y", "r", "b", "c", "new"]
    assert (listed.name, listed.labels) == ("rows", [None] * 3)
    assert listed.anchors.tolist() == [0, 4, 0]
    assert (listed.positives.places.tolist(), listed.positives.starts.tolist()) == (
        [1, 5, 6],
        [0, 1, 2, 3],
    )
    assert listed.negatives.places.tolist() == [2, 3, 2, 1]
    assert listed.negatives.rows.tolist() == [0, 0, 1, 2]
    assert [listed.negatives.of(row).tolist() for row in range(3)] == [[2, 3], [2], [1]]
    assert listed.extra.tolist() == [7, 2]
    arranged = ArrangedSet.of(listed, places_of_passages(listed))
    assert (arranged.name, arranged.dataset) == ("rows", listed.dataset)
    assert (list(arranged.queries), list(arranged.documents)) == (
        ["q", "r"],
        ["a", "x", "b", "c", "new"],
    )
    assert (len(arranged.documents), arranged.documents[1:3]) == (5, ["x", "b"])
    assert arranged.query_of.tolist() == [0, 1, 0]
    assert arranged.document_of.tolist() == [-1, 0, 1, -1, -1, 2, 3, 4]
    lists = arranged.lists(arranged.numbers(listed.positives), arranged.numbers(listed.negatives))
    assert [lists[n].tolist() for n in range(len(lists))] == [[0, 1, 3], [1, 2]]


def test_a_row_without_a_positive_is_named_by_its_number(tmp_path: Path) -> None:
    found = dataset(tmp_path, *ROWS)
    rows = [found[0], dataclasses.replace(found[1], positives=())]

    class Bare(SimpleNamespace):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, row: int) -> Any:
            return rows[row]

    bare = Bare(info=found.info, draws=False)
    with pytest.raises(DataError, match="'rows': row 2 has no positive"):
        ListedSet.of(bare, workspace(tmp_path))  # type: ignore[arg-type]
    labelled = dataset(tmp_path, *({"text": f"t{n}", "label": n % 2} for n in range(4)))
    with pytest.raises(DataError, match=r"'rows' has no positives of its own.*`only`"):
        ListedSet.of(labelled, workspace(tmp_path))


def test_a_query_gets_neither_itself_nor_a_text_of_its_labels(tmp_path: Path) -> None:
    rows = (
        {"query": "q", "pos": ["a"], "neg": ["x"], "label": "one"},
        {"query": "r", "pos": ["b"], "neg": ["a"], "label": "two"},
        {"query": "q", "pos": ["c"], "neg": ["q"], "label": "two"},
        {"query": "s", "pos": ["q"], "neg": ["r"], "label": "one"},
    )
    listed = ListedSet.of(dataset(tmp_path, *rows), workspace(tmp_path))
    arranged = ArrangedSet.of(listed, places_of_passages(listed))
    # x has no label, and s is neither positive nor negative.
    assert list(arranged.documents) == ["q", "a", "r", "b", "c"]
    found = passages_of(arranged)
    assert [found.positives[n].tolist() for n in range(3)] == [[1, 4], [3], [0]]
    everything = np.arange(5)
    allowed = [found.excluded.allows(n, everything).tolist() for n in range(3)]
    # q is of both labels, r of the second, s of the first.
    assert allowed == [
        [False, False, False, False, False],
        [False, True, False, False, False],
        [False, False, True, True, True],
    ]
    assert found.size == 5


def test_negatives_are_only_out_of_the_question_to_keep_them(tmp_path: Path) -> None:
    listed = ListedSet.of(dataset(tmp_path, *ROWS), workspace(tmp_path))
    arranged = ArrangedSet.of(listed, places_of_passages(listed))
    assert list(arranged.documents) == ["a", "x", "y", "b", "c"]
    plain, kept = (passages_of(arranged, keep_negatives=keep) for keep in (False, True))
    assert (plain.excluded.group, plain.excluded.grouped) == (None, None)
    assert [plain.excluded.own[n].tolist() for n in (0, 1)] == [[0, 4], [3]]
    assert [kept.excluded.own[n].tolist() for n in (0, 1)] == [[0, 1, 2, 4], [1, 3]]


# ── steps ───────────────────────────────────────────────────────────────────────────────────────


def test_options_that_are_not_given_are_those_of_the_docs() -> None:
    assert dataclasses.asdict(MineHardNegatives(data=(), teachers=())) | {"data": ()} == {
        "data": (),
        "teachers": (),
        "count": 10,
        "margin": 0.95,
        "range": None,
        "existing": "replace",
        "corpus": (),
    }
    found = ConsistencyFilter(data=(), teachers=())
    assert (found.top_k, found.shard_size, found.seed) == (2, 1_000_000, None)
    assert FilterNegatives(data=(), teachers=()).margin == 0.95
    assert MineHardNegatives.every_rank is True


def mine(**options: Any) -> MineHardNegatives:
    return MineHardNegatives(data=(), teachers=TEACHERS, **options)


def test_mined_rows_have_new_negatives_and_no_scores_of_old_ones(tmp_path: Path) -> None:
    around = workspace(tmp_path)
    rows = [{**row, "neg_scores": [0.5] * len(row["neg"])} for row in ROWS]  # type: ignore[arg-type]
    # The lowest positive of q has 0.8, so that 0.76 is the threshold; that of r has 0.7.
    assert outcomes(mine(count=2), around, *rows) == [
        (("a", "by", None, None), "negatives mined"),
        (("b", "y", None, None), "fewer than 2 negatives"),
        (("c", "by", None, None), "negatives mined"),
    ]
    assert around.seen == [(0, 2, "queries")]
    assert (tmp_path / "mined" / "7" / "0.npy").is_file()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"count": 1}, ["b", "y", "b"]),
        ({"count": 2}, ["by", "y", "by"]),
        ({"count": 2, "existing": "keep"}, ["xyb", "xy", "ab"]),
        ({"count": 1, "margin": None}, ["x", "c", "x"]),
        ({"count": 1, "margin": 0.99}, ["x", "y", "x"]),
        ({"count": 1, "range": (2, 2)}, ["b", "", "b"]),
    ],
)
def test_options_decide_which_passages_are_negatives(
    options: dict[str, Any], expected: list[str | None], tmp_path: Path
) -> None:
    rows = [{**row, "neg_scores": [0.5] * len(row["neg"])} for row in ROWS]  # type: ignore[arg-type]
    found = outcomes(mine(**options), workspace(tmp_path), *rows)
    assert [after and after[1] for after, _ in found] == expected
    assert {after and after[3] for after, _ in found} == {None}
    count = options["count"]
    few = "no negative" if count == 1 else f"fewer than {count} negatives"
    short = [after is None or len(after[1]) < options["count"] for after, _ in found]
    if options.get("existing") != "keep":
        assert [note == few for _, note in found] == short


def test_a_description_counts_the_negatives_of_all_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parted = workspace(tmp_path), workspace(tmp_path / "parted")
    (tmp_path / "parted").mkdir()
    outcomes(mine(count=2), whole, *ROWS)
    monkeypatch.setattr(kept_blocks, "BLOCK", 1)
    outcomes(mine(count=2), parted, *ROWS)
    assert len(list((tmp_path / "parted" / "mined" / "7").iterdir())) == 2
    assert parted.description == whole.description
    assert "3 of 3 rows have mined negatives, 5 in all" in whole.description.sentences[0]


def test_where_nothing_passes_the_scores_seen_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        outcomes(mine(count=2, margin=0.1), workspace(tmp_path), *ROWS)
    assert str(caught.value) == (
        "dataset 'rows': no passage passes for any query (one scores the lowest positives 0.7 to 0.8, "
        "median 0.7 and the nearest other passages 0.79 to 0.9, median 0.79); raise margin (0.1), widen "
        "range, or name a corpus"
    )


def test_a_spread_is_of_finite_numbers() -> None:
    """Of a query without a passage the best score is -inf."""
    assert describe_spread(np.array([3, -np.inf, 1, np.nan, 2])) == "1 to 3, median 2"
    assert describe_spread(np.array([-np.inf])) == "none"


def test_too_few_passages_are_refused(tmp_path: Path) -> None:
    found = dataset(tmp_path, *ROWS)
    assert len(mine(count=4).arranged(found, workspace(tmp_path)).documents) == 5
    with pytest.raises(DataError, match=r"'rows' has 5 passages, too few for count \(5\)"):
        mine(count=5).arranged(found, workspace(tmp_path))
    write(tmp_path / "more.jsonl", {"text": "new"})
    more = mine(count=3, corpus=(DataRef("more.jsonl"),)).arranged(found, workspace(tmp_path))
    assert list(more.documents) == ["a", "b", "c", "new"]


def test_a_set_that_a_step_cannot_work_on_is_told_by_its_first_rows(tmp_path: Path) -> None:
    def told(step: Any, *rows: Any, **options: Any) -> list[str]:
        entry = DataEntry(path=DataRef(str(write(tmp_path / "rows.jsonl", *rows))), **options)
        found = check_entries([entry], readers=READERS, resolve=lambda ref: Path(ref.text))
        return list(step.set_problems(found.heads[0]))

    assert told(mine(count=6), *ROWS) == []
    (message,) = told(mine(count=7), *ROWS)
    assert "'rows' has fewer passages than count (7)" in message
    assert told(mine(count=8, corpus=(DataRef("a"),)), *ROWS) == []
    assert "no positives of its own" in told(mine(count=1), {"text": "a"}, {"text": "b"})[0]
    pair = {"sentence1": "a", "sentence2": "b", "score": 0.5}
    assert "pairs of any similarity" in told(mine(count=1), pair)[0]


def test_filtered_rows_lose_negatives_above_the_threshold_with_their_scores(tmp_path: Path) -> None:
    rows = [
        {**ROWS[0], "neg_scores": [0.25, 0.5]},
        {**ROWS[1], "neg_scores": [0.75]},
        {**ROWS[2], "neg_scores": [1.0]},
    ]
    note = "negatives above the threshold are gone"
    step = FilterNegatives(data=(), teachers=TEACHERS, margin=0.95)
    assert outcomes(step, workspace(tmp_path), *rows) == [
        (("a", "y", None, (0.5,)), note),
        (("b", "", None, ()), note),
        (("c", "", None, ()), note),
    ]
    found = outcomes(step, workspace(tmp_path), *ROWS)
    assert [after[1:] for after, _ in found] == [(text, None, None) for text in ("y", "", "")]
    whole = dataclasses.replace(step, margin=0.99)
    assert [after[1] for after, _ in outcomes(whole, workspace(tmp_path), *ROWS)] == ["xy", "", ""]
    with pytest.raises(DataError) as caught:
        outcomes(dataclasses.replace(step, margin=0.1), workspace(tmp_path), *ROWS)
    assert str(caught.value) == (
        "dataset 'rows': every negative is above the threshold (one scores the lowest positives 0.7 to "
        "0.8, median 0.7 and negatives 0.5 to 0.8, median 0.79); raise margin (0.1), or mine others"
    )
    with pytest.raises(DataError, match="'rows' has no negatives to filter"):
        step.arranged(dataset(tmp_path, {"query": "q", "pos": ["a"]}), workspace(tmp_path))


def test_rows_keep_the_positives_that_are_found_again(tmp_path: Path) -> None:
    around = workspace(tmp_path)
    rows = (
        {"query": "q", "pos": ["a", "b"], "pos_scores": [0.5, 1.0]},
        {"query": "r", "pos": ["c"], "pos_scores": [0.25]},
        {"query": "s", "pos": ["d"], "pos_scores": [0.75]},
    )
    step = ConsistencyFilter(data=(), teachers=TEACHERS, top_k=2)
    cosines = (0.9, 0.6, 0.8, 0.7)  # a is first, c second; b is fourth, or third beside its own a
    assert outcomes(step, around, *rows, cosines=cosines) == [
        (("a", "", (0.5,), None), "positives"),
        (("c", "", (0.25,), None), "positives"),
        (None, "no positive among the 2 nearest"),
    ]
    assert around.seen == [(0, 1, "shards")]
    wide = dataclasses.replace(step, top_k=3)
    found = outcomes(wide, around, *rows, cosines=cosines)
    assert [after and after[0] for after, _ in found] == ["ab", "c", "d"]
    alone = dataclasses.replace(step, shard_size=1, top_k=1)
    assert len(outcomes(alone, around, *rows, cosines=cosines)) == 3
    assert around.seen[-3:] == [(n, 3, "shards") for n in range(3)]
    few = [{"query": "q", "pos": ["a"]}, {"query": "a", "pos": ["b"]}]
    arranged = step.arranged(dataset(tmp_path, *few), around)
    crossed = Space(
        np.eye(2, dtype=np.float32), np.array([[0.1, 0.9], [0.9, 0.1]], dtype=np.float32)
    )
    with pytest.raises(DataError) as caught:
        list(dataclasses.replace(step, top_k=1).outcomes(0, arranged, [crossed], around))
    assert str(caught.value) == (
        "dataset 'rows': no positive is among the 1 nearest documents of its query (one scores them "
        "0.1104 to 0.1104, median 0.1104); raise top_k, make shards smaller, or see to the teacher's "
        "prompts"
    )


def test_a_search_may_take_the_memory_of_the_machine(tmp_path: Path) -> None:
    machine = SimpleNamespace(memory=1 << 20)
    assert mine().limits(workspace(tmp_path)) == SearchMemory() == SearchMemory(512 << 20)
    assert mine().limits(workspace(tmp_path, machine=machine)) == SearchMemory(1 << 20)


# ── parts ───────────────────────────────────────────────────────────────────────────────────────


def test_a_tile_is_as_large_as_memory_and_device_allow() -> None:
    assert SearchMemory().tile("cpu", 10_000) == (2048, 8192)
    assert SearchMemory().tile("cpu", 10_000, 2) == (1024, 8192)
    assert SearchMemory().tile("cpu", 100) == (100, 8192)
    assert SearchMemory(8 << 30).tile("cuda", 100_000) == (32768, 8192)
    assert SearchMemory(4 << 14).tile("cpu", 100) == (1, 4096)
    assert SearchMemory(1).tile("cpu", 100) == (1, 1024)
    assert SearchMemory(1 << 20).queries(64) == 256
    assert SearchMemory(1).queries(64) == 1


def test_vectors_are_looked_at_in_pieces_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    queries, documents = (draw.normal(size=(n, 5)).astype(np.float32) for n in (7, 11))
    asked, places = np.arange(7), draw.integers(0, 11, (7, 3))
    whole = Space(queries, documents)
    expected = whole.scores(asked, places), whole.documents.units(slice(2, 9)).tolist()
    assert whole.queries.piece == (16 << 20) // 20
    monkeypatch.setattr("emberge_data.steps.search.space.PIECE", 60)
    cut = Space(queries, documents)
    assert (cut.documents.piece, cut.documents.dimension, len(cut.documents)) == (3, 5, 11)
    assert cut.documents.lengths.tolist() == whole.documents.lengths.tolist()
    assert (cut.scores(asked, places) == expected[0]).all()
    assert cut.documents.units(slice(2, 9)).tolist() == expected[1]
    assert cut.scores(asked, places[:, 0]).shape == (7,)
    monkeypatch.setattr("emberge_data.steps.search.space.PIECE", 1)
    assert Space(queries, documents).queries.piece == 1


def test_vectors_of_a_store_are_compared_as_float32() -> None:
    stored = np.array([[1, 2], [3, 4], [5, 6]], np.float16)[:, ::-1]
    side = Side(stored)
    found = side.at(np.array([2, 0]))
    assert (str(found.dtype), found.tolist(), found.is_contiguous()) == (
        "torch.float32",
        [[6, 5], [2, 1]],
        True,
    )
    assert side.at(slice(0, 1)).tolist() == [[2, 1]]
    assert (str(side.lengths.dtype), side.lengths.tolist()) == ("torch.float64", [5, 25, 61])
    assert str(side.units(slice(0, 3)).dtype) == "torch.float32"


def test_lists_lack_what_they_do_not_have() -> None:
    lists = Lists.of([[1, 3], [], [2]])
    numbers, places = np.array([0, 0, 1, 2, 2, 0]), np.array([1, 2, 1, 2, 9, 9])
    assert lists.lacks(numbers, places).tolist() == [False, True, True, False, True, True]
    assert Lists.of([[], []]).lacks(np.array([0, 1]), np.array([0, 5])).tolist() == [True, True]
    taken = lists.select(np.array([2, 0, 2]))
    assert [taken[n].tolist() for n in range(len(taken))] == [[2], [1, 3], [2]]


def test_blocks_are_computed_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_blocks.BLOCK == 16384
    monkeypatch.setattr(kept_blocks, "BLOCK", 4)
    computed: list[list[int]] = []
    told: list[tuple[int, int]] = []

    def compute(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        computed.append(rows.tolist())
        return rows[:, None] * 10

    blocks = KeptBlocks(tmp_path / "a" / "b", 6, compute, lambda *words: told.append(words))
    assert [blocks[row].tolist() for row in range(6)] == [[n * 10] for n in range(6)]
    assert [block.shape for block in blocks] == [(4, 1), (2, 1)]
    assert (computed, told) == ([[0, 1, 2, 3], [4, 5]], [(0, 6), (4, 6)])
    (tmp_path / "a" / "b" / "1.npy").unlink()
    assert KeptBlocks(tmp_path / "a" / "b", 6, compute)[5].tolist() == [50]
    assert computed[2:] == [[4, 5]]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["0.npy", "1.npy"]


def test_passages_of_corpora_have_their_titles_before_them(tmp_path: Path) -> None:
    one = write(
        tmp_path / "one.jsonl",
        {"_id": 1, "title": "new", "text": "table"},
        {"id": "b", "text": " card "},
        {"_id": None, "id": "c", "title": None, "text": "x"},
    )
    other = write(tmp_path / "other.jsonl", {"_id": "1", "text": "new table"}, {"text": "x"})
    found = list(read_corpora([one, other], READERS))
    assert found == ["new table", "card", "x", "new table", "x"]
    write(one, {"id": "b", "text": "card"}, {"_id": "a", "text": "1"}, {"_id": "c", "text": "1"})
    write(other, {"_id": "c", "text": "1"}, {"_id": "a", "text": "2"}, {"_id": "b", "text": "3"})
    with pytest.raises(
        DataError,
        match=r"^other\.jsonl:2: .*at one\.jsonl:2 \(2 such passages\); give every passage an id",
    ):
        list(read_corpora([one, other], READERS))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"txt": "a", "id": 1}, r"needs text in the column `text`.* \(columns: txt, id\)"),
        ({"text": "a", "title": 5}, "in `title` if it is there"),
        ({"text": " ", "title": " "}, "empty or only white space"),
        ({"text": "a", "_id": True}, "not a bool"),
        ({"text": "a", "id": 1.5}, "not a float"),
        ([], "expected an object"),
    ],
)
def test_a_row_that_is_no_passage_is_named(row: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", {"text": "a"}, row)
    with pytest.raises(DataError, match=rf"^one\.jsonl:2: .*{words}"):
        list(read_corpora([path], READERS))
