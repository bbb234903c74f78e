"""Datasets: what rows mean, what is wrong with them, samples that stay the same, random access."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Dataset, DatasetInfo, Example
from emberge.data import check_entries, count_datasets, expand, load_datasets
from emberge_data import Delimited, JsonLines, Parquet

READERS = [JsonLines(), Parquet(), Delimited()]


def resolve(reference: DataRef) -> Path:
    return reference.folder / reference.text


def entry(path: Path, **options: Any) -> DataEntry:
    return DataEntry(path=DataRef(str(path)), **options)


def write(path: Path, rows: Sequence[Any]) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def load(
    path: Path, limit: int | None = None, store: Path | None = None, **options: Any
) -> Dataset:
    (dataset,) = load_datasets(
        [entry(path, **options)], readers=READERS, resolve=resolve, limit=limit, store=store
    )
    return dataset


def only(folder: Path, row: Any, **options: Any) -> tuple[Example, str]:
    """The one row's example, and the task that it is taken for."""
    dataset = load(write(folder / "rows.jsonl", [row]), **options)
    return dataset[0], dataset.info.task


def refusal(folder: Path, rows: Sequence[Any], **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(write(folder / "rows.jsonl", rows), **options)
    return str(caught.value)


def test_rows_may_have_different_numbers_of_negatives(tmp_path: Path) -> None:
    rows = [
        {"query": "a", "positive": "b", "negative_1": "c"},
        {"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d"},
        {"query": "a", "positive": "b"},
        {"query": "a", "positive": "b", "negative_1": None, "negative_2": "d"},
    ]
    dataset = load(write(tmp_path / "rows.jsonl", rows))
    assert [dataset[i].negatives for i in range(4)] == [("c",), ("c", "d"), (), ("d",)]


def test_a_set_knows_its_scores_and_says_a_guess_at_their_scale(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (0, 2.5, 4.75)]
    entries, heard = [entry(write(tmp_path / "sts.jsonl", rows))], list[str]()
    (dataset,) = load_datasets(entries, readers=READERS, resolve=resolve, warn=heard.append)
    assert (dataset.info.task, dataset.symmetric) == ("sts", True)
    assert [dataset[row].positive_scores for row in range(3)] == [(0.0,), (0.5,), (0.95,)]
    (note,) = heard
    assert "scale of 0 to 5; write score_range" in note
    rows = [
        {"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [high], "neg_scores": [low]}
        for high, low in ((3, -1), (1, 0), (2, 1))
    ]
    path = write(tmp_path / "scored.jsonl", rows)
    assert load(path, score_range=(-1, 4)).info.scores == (0.0, 0.8)
    few = load(path, score_range=(-1, 4), limit=1)
    assert len(few) == 1
    assert few.info.scores == (0.0, 0.8)
    plain = write(tmp_path / "plain.jsonl", [{"query": "a", "pos": ["b"]}])
    assert load(plain).info.scores is None


def test_prompts_are_filled_and_texts_come_back_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"query": "q", "pos": ["a"]}])
    assert load(path, instruction="Find it.").prompt == ""
    assert load(path, instruction="Find it.", prompt="{instruction} ").prompt == "Find it. "
    templated = load(path, instruction="Find it.", prompt="{prompt}")
    assert templated.prompt == "Instruct: Find it.\nQuery: "
    text = ' täglich\u2028"\\ \n日本 🦆 '
    assert only(tmp_path, {"query": text, "pos": [text]})[0] == Example(text, (text,))


GOOD = {"query": "q", "pos": ["a"], "neg": ["n"]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"pos": ["a"]}, "column 'query' is missing (columns: pos); add it or remove"),
        ('{"query": "q",', "not JSON"),
        ("[1, 2]", "expected an object"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: Any, said: str) -> None:
    message = refusal(tmp_path, [GOOD, row, GOOD])
    assert message.count("\n") == 0
    assert f"{tmp_path / 'rows.jsonl'}:2: {said}" in message


def test_bad_rows_are_told_of_all_datasets_and_up_to_twenty(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, [GOOD, *[{**GOOD, "query": n} for n in range(25)]]).splitlines()
    assert ":2: 'query' " in line
    assert "(25 rows of the 26 that were read: 2, 3, 4, 5, 6, …)" in line
    bad_lists = [{**GOOD, "pos": ["a", 3]}, {**GOOD, "pos": [None]}, {**GOOD, "pos": [5]}]
    assert [len(refusal(tmp_path, rows).splitlines()) for rows in (bad_lists, bad_lists[::2])] == [
        2,
        1,
    ]
    lines = refusal(tmp_path, [GOOD, *(f"{'x' * n} [" for n in range(1, 26))]).splitlines()
    assert len(lines) == 1
    one_fault = (
        [" " * n + "]" for n in range(25)],
        [{"pos": ["a"], f"x{n}": 1} for n in range(25)],
        [{**GOOD, "pos_scores": [f"{n},5" if n % 2 else "high"]} for n in range(25)],
    )
    for rows in one_fault:
        (line,) = refusal(tmp_path, [GOOD, *rows]).splitlines()
        assert "(25 rows of the 26 that were read: 2, 3, 4, 5, 6, …)" in line
    lines = refusal(tmp_path, [GOOD, *({**GOOD, f"neg_{n}": n} for n in range(25))]).splitlines()
    assert len(lines) == 21
    assert ":2: " in lines[0]
    assert ":21: " in lines[19]
    assert "5 more rows cannot be used" in lines[20]
    rows = [*[GOOD] * 50, {**GOOD, "query": ""}]
    assert "rows.jsonl:51: " in refusal(tmp_path, rows, limit=1)
    bad = [write(tmp_path / f"{name}.jsonl", [{**GOOD, "pos": [""]}]) for name in "ab"]
    with pytest.raises(DataError) as caught:
        load_datasets([entry(path) for path in bad], readers=READERS, resolve=resolve)
    assert [line.rpartition("/")[2][:8] for line in str(caught.value).splitlines()] == [
        "a.jsonl:",
        "b.jsonl:",
    ]


def test_labels_without_pairs_and_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    rows = [{"text": t, "label": label} for t, label in (("a", 1), ("b", 1), ("c", 2))]
    assert "label '2' has one row only" in refusal(tmp_path, rows)
    assert "all rows have the label '1'" in refusal(tmp_path, rows[:2])
    assert "'label' is empty" in refusal(tmp_path, [*rows, {"text": "d", "label": None}])
    path = write(tmp_path / "rows.jsonl", [GOOD])
    with pytest.raises(DataError, match="two datasets are named 'rows'"):
        load_datasets([entry(path), entry(path)], readers=READERS, resolve=resolve)
    named = [entry(path), entry(path, name="other")]
    loaded = load_datasets(named, readers=READERS, resolve=resolve)
    assert [dataset.info.name for dataset in loaded] == ["rows", "other"]


def many(path: Path, count: int = 200) -> Path:
    return write(path, [{"query": f"q{i}", "pos": [f"p{i}"]} for i in range(count)])


def anchors(dataset: Dataset) -> list[str]:
    return [dataset[i].anchor for i in range(len(dataset))]


def test_a_limit_keeps_an_even_sample_of_which_a_smaller_one_is_a_part(tmp_path: Path) -> None:
    path = many(tmp_path / "rows.jsonl")
    small, large = anchors(load(path, limit=20)), anchors(load(path, limit=60))
    assert (len(small), len(large)) == (20, 60)
    assert set(small) < set(large)
    numbers = [int(anchor[1:]) for anchor in large]
    assert numbers == sorted(numbers)
    assert 15 <= sum(number < 100 for number in numbers) <= 45  # not the first rows
    assert anchors(load(path, limit=20)) == small
    assert anchors(load(path, limit=20, name="other")) != small
    path = many(tmp_path / "rows.jsonl")
    entries = [entry(path, limit=5)]
    (dataset,) = load_datasets(entries, readers=READERS, resolve=resolve, limit=50)
    assert len(dataset) == 5


def test_the_fingerprint_is_of_content_and_of_how_it_is_read(tmp_path: Path) -> None:
    path = many(tmp_path / "rows.jsonl")
    first = load(path).fingerprint
    packed = tmp_path / "packed" / "rows.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load(path).fingerprint == first
    assert load(packed).fingerprint == first
    changes: list[dict[str, Any]] = [
        *({"prompt": "x"}, {"symmetric": True}, {"name": "other"}, {"limit": 7}),
        *(
            {"task": "reranking"},
            {"weight": 2.0},
            {"columns": Columns(anchor="pos", positive="query")},
        ),
    ]
    write(path, [{"query": f"q{i}", "pos": f"p{i}"} for i in range(200)])
    others = [load(path, **options).fingerprint for options in changes]
    assert len({first, *others}) == len(changes) + 1
    write(path, [{"query": f"q{i}", "pos": [f"P{i}"]} for i in range(200)])
    assert load(path).fingerprint != first


def test_the_stores_key_names_the_reader_by_class_and_revision_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many(tmp_path / "rows.jsonl")
    (source,) = expand(
        DataEntry(path=DataRef(str(path))), readers=[JsonLines()], resolve=lambda _: path
    )
    before = source.key()
    monkeypatch.setattr(JsonLines, "__module__", "elsewhere")
    assert source.key() == before
    monkeypatch.setattr(JsonLines, "revision", 2, raising=False)
    assert source.key() != before


def test_a_store_is_filled_once_and_read_again(tmp_path: Path) -> None:
    path, store = many(tmp_path / "rows.jsonl"), tmp_path / "store"

    class Counting(JsonLines):
        reads = 0

        def rows(self, path: Path) -> Any:
            Counting.reads += 1
            return super().rows(path)

    loaded = [
        load_datasets([entry(path)], readers=[Counting()], resolve=resolve, store=store)[0]
        for _ in range(3)
    ]
    assert Counting.reads == 1
    assert [anchors(dataset) for dataset in loaded] == [[f"q{i}" for i in range(200)]] * 3
    assert len({dataset.fingerprint for dataset in loaded}) == 1
    many(path, 10)
    assert len(load(path, store=store)) == 10


def test_a_store_has_each_way_of_reading_a_file_and_none_with_faults(tmp_path: Path) -> None:
    path, store = write(tmp_path / "rows.jsonl", [GOOD, {}]), tmp_path / "store"
    with pytest.raises(DataError):
        load(path, store=store)
    assert [p for p in store.rglob("*") if p.is_file()] == []
    rows = [{"text": f"t{i}", "label": str(i % 2)} for i in range(4)]
    path, store = write(tmp_path / "rows.jsonl", rows), tmp_path / "store"
    for _ in range(2):
        assert load(path, store=store).info.task == "classification"
        assert load(path, store=store, task="text")[1] == Example("t1")


def test_a_check_reads_heads_alone_of_what_is_there(tmp_path: Path) -> None:
    rows = [*[{"query": f"q{i}", "pos": ["p"]} for i in range(10)], {"query": ""}]
    path = write(tmp_path / "rows.jsonl", rows)

    def check(limit_rows: int) -> Any:
        return check_entries([entry(path)], readers=READERS, resolve=resolve, limit_rows=limit_rows)

    assert check(10).problems == ()
    assert [problem.where for problem in check(11).problems] == [f"{path}:11"]
    entries = [DataEntry(path=DataRef("$corpus"))]
    checked = check_entries(entries, readers=READERS, resolve=lambda _: None)
    assert (checked.problems, checked.heads) == ((), ())


def test_a_check_tells_every_fault_and_shows_the_sound_entries(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", [{"query": "q", "pos": ["p"], "neg": ["a", "b", "c"]}])
    bad = write(tmp_path / "bad.jsonl", [GOOD, {**GOOD, "pos": 3}])
    entries = [entry(good), entry(bad), entry(tmp_path / "none.jsonl"), entry(good)]
    checked = check_entries(entries, readers=READERS, resolve=resolve)
    said = [problem.message for problem in checked.problems]
    assert len(said) == 3
    assert any("no such file" in message for message in said)
    assert any("two datasets are named 'good'" in message for message in said)
    assert any("'pos' must be text" in message for message in said)
    assert checked.heads[0].title == "good: retrieval"
    assert checked.heads[0].lines == (
        "columns: anchor = query, positive = pos, negative = neg",
        "anchor: q",
        "positive: p",
        "negative: a",
        "negative: b (and 1 more)",
    )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset's folder as the hub has it, read through `datasets` into a cache of this test."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "acme" / "pairs"
    folder.mkdir(parents=True)
    write(folder / "train.jsonl", [{"anchor": f"a{i}", "positive": f"p{i}"} for i in range(5)])
    write(folder / "test.jsonl", [{"anchor": "t", "positive": "p"}])
    return folder


def test_hub_datasets_come_through_the_library_by_their_splits(hub: Path, tmp_path: Path) -> None:
    def loaded(**options: Any) -> Dataset:
        entries = [DataEntry(hub=str(hub), **options)]
        return load_datasets(entries, readers=READERS, resolve=resolve, store=tmp_path / "s")[0]

    dataset = loaded()
    assert dataset.info.name == "pairs"
    assert dataset[4] == Example("a4", ("p4",))
    assert loaded().fingerprint == dataset.fingerprint
    assert len(loaded(split="test")) == 1
    entries = [DataEntry(hub=str(hub), split="dev")]
    with pytest.raises(DataError, match=r"pairs\[dev\] cannot be loaded: .*correct hub"):
        load_datasets(entries, readers=READERS, resolve=resolve)


def test_a_check_of_hub_datasets_needs_leave_to_use_the_network(hub: Path) -> None:
    entries = [DataEntry(hub=str(hub))]
    (problem,) = check_entries(entries, readers=READERS, resolve=resolve).problems
    assert problem.severity == "unseen"
    assert problem.message == f"dataset {hub}[train] was not looked at"
    checked = check_entries(entries, readers=READERS, resolve=resolve, network=True)
    assert checked.problems == ()
    assert checked.heads[0].example == Example("a0", ("p0",))


def test_a_hub_that_cannot_be_reached_is_unseen_in_a_check_and_an_error_in_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert datasets
    entries = [DataEntry(hub="acme/never-downloaded")]
    with pytest.raises(DataError, match="acme/never-downloaded"):
        load_datasets(entries, readers=READERS, resolve=resolve)
    (problem,) = check_entries(entries, readers=READERS, resolve=resolve, network=True).problems
    assert problem.severity == "unseen"
    assert "cannot be reached" in problem.message


PAIRS = [{"anchor": f"question {i}", "positive": f"answer {i}"} for i in range(9)]


SCORED = [{"anchor": "a", "positive": f"b{i}", "score": i} for i in range(6)]


LABELS = [{"text": f"text {i}", "label": "even" if i % 2 == 0 else "odd"} for i in range(8)]


TEXTS = [{"text": f"text {i}"} for i in range(3)]


class Counting(JsonLines):
    """A reader that counts the files that it has read."""

    files = 0

    def rows(self, path: Path) -> Iterator[Any]:
        Counting.files += 1
        return super().rows(path)


READER = Counting()


def counted(path: Path, **options: Any) -> DatasetInfo:
    (info,) = count_datasets(
        [DataEntry(path=DataRef(str(path)), **options)],
        readers=[READER],
        resolve=lambda reference: Path(reference.text),
    )
    return info


def loaded(path: Path, **options: Any) -> DatasetInfo:
    (dataset,) = load_datasets(
        [DataEntry(path=DataRef(str(path)), **options)],
        readers=[READER],
        resolve=lambda reference: Path(reference.text),
    )
    return dataset.info


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (PAIRS, {}),
        (PAIRS, {"limit": 4, "weight": 2.5, "name": "few"}),
        (PAIRS, {"limit": 90}),
        (PAIRS, {"first": 5, "limit": 7}),
        (SCORED, {"limit": 2}),
        (SCORED, {"score_range": (0, 10), "negatives": "none"}),
        (LABELS, {}),
        (LABELS, {"limit": 3}),
        (LABELS, {"task": "text"}),
        (TEXTS, {}),
    ],
)
def test_counts_are_as_trainings_load(
    rows: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", rows)
    assert counted(path, **options) == loaded(path, **options)


@pytest.mark.parametrize(
    "rows",
    [
        [*PAIRS, {"anchor": "", "positive": "x"}, {"anchor": "y"}],
        [*LABELS, {"text": "alone", "label": "prime"}],
        LABELS[::2],
        [{"what": 1}],
        [],
    ],
)
def test_what_a_training_refuses_is_refused(rows: list[Any], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError) as counting:
        counted(path)
    with pytest.raises(DataError) as loading:
        loaded(path)
    assert str(counting.value) == str(loading.value)


def test_a_file_is_read_once_whatever_share_of_it_is_taken(tmp_path: Path) -> None:
    path, before = write(tmp_path / "rows.jsonl", PAIRS), Counting.files
    assert [counted(path, limit=n, weight=n + 1.0).size for n in (2, 4, 40)] == [2, 4, 9]
    assert counted(path, name="other", prompt="find: ").size == 9
    assert Counting.files == before + 1
    write(path, PAIRS[:3])
    assert counted(path).size == 3
    assert Counting.files == before + 2
