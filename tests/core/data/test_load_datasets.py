"""Datasets: what rows mean, what is wrong with them, samples that stay the same, random access, previews."""

from __future__ import annotations

import gc
import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Dataset, Example, hash_evenly
from emberge.data import check_entries, list_sources, load_datasets, sample_rows
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


def load(path: Path, limit: int | None = None, store: Path | None = None, **options: Any) -> Any:
    (dataset,) = load_datasets(
        [entry(path, **options)], readers=READERS, resolve=resolve, limit=limit, store=store
    )
    return dataset


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
    assert [dataset[i].negatives for i in (-4, -1)] == [("c",), ("d",)]
    for row in (4, -5):
        with pytest.raises(IndexError, match=f"rows has 4 rows, not {row}"):
            dataset[row]


def test_a_set_knows_its_scores_and_says_a_guess_at_their_scale(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (0, 2.5, 4.75)]
    dataset = load(write(tmp_path / "sts.jsonl", rows))
    assert (dataset.info.task, dataset.symmetric) == ("sts", True)
    assert [dataset[row].positive_scores for row in range(3)] == [(0.0,), (0.5,), (0.95,)]
    (note,) = dataset.notes
    assert "scale of 0 to 5; write score_range" in note
    rows = [
        {"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [high], "neg_scores": [low]}
        for high, low in ((3, -1), (1, 0), (2, 1))
    ]
    path = write(tmp_path / "scored.jsonl", rows)
    for limit in (None, 1):  # of the whole file, whatever a limit keeps
        assert load(path, limit=limit, score_range=(-1, 4)).info.scores == (0.0, 0.8)


def test_prompts_are_filled_and_texts_come_back_as_they_were(tmp_path: Path) -> None:
    text = ' täglich\u2028"\\ \n日本 🦆 '
    path = write(tmp_path / "rows.jsonl", [{"query": text, "pos": [text]}])
    assert load(path, instruction="Find it.").prompt == ""
    assert load(path, instruction="Find it.", prompt="{instruction} ").prompt == "Find it. "
    templated = load(path, instruction="Find it.", prompt="{prompt}")
    assert templated.prompt == "Instruct: Find it.\nQuery: "
    assert templated[0] == Example(text, (text,))
    assert templated.info.scores is None


def test_texts_of_labels_are_drawn_by_the_sets_name_and_the_row(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": n % 4} for n in range(20)]
    path = write(tmp_path / "a.jsonl", rows)
    drawn = {}
    for name in ("a", "b"):
        dataset = load(path, name=name)
        examples = [dataset[row] for row in (0, 1, 7)]
        drawn[name] = [" ".join((*e.positives, "|", *e.negatives)) for e in examples]
    assert drawn == {
        "a": ["t12 | t13 t18 t1", "t9 | t0 t2 t12", "t15 | t17 t0 t9"],
        "b": ["t8 | t10 t6 t5", "t13 | t10 t16 t8", "t11 | t17 t6 t4"],
    }


GOOD = {"query": "q", "pos": ["a"], "neg": ["n"]}


def test_bad_rows_are_told_of_all_datasets_and_up_to_twenty(tmp_path: Path) -> None:
    rows = [{**GOOD, "query": n} for n in range(25)]
    (line,) = refusal(tmp_path, [GOOD, *rows]).splitlines()
    assert ":2: " in line
    assert "(25 rows: 2, 3, 4, 5, 6, …)" in line
    lines = refusal(tmp_path, [GOOD, *({**GOOD, f"neg_{n}": n} for n in range(25))]).splitlines()
    assert [line.split(": ")[0].rpartition(":")[2] for line in (lines[0], lines[19])] == ["2", "21"]
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


def test_labels_without_pairs_are_refused(tmp_path: Path) -> None:
    rows = [{"text": t, "label": label} for t, label in (("a", 1), ("b", 1), ("c", 2))]
    assert "label '2' has one row only" in refusal(tmp_path, rows)
    assert "all rows have the label '1'" in refusal(tmp_path, rows[:2])
    assert "'label' is empty" in refusal(tmp_path, [*rows, {"text": "d", "label": None}])


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
    assert anchors(load(path, limit=20, name="other")) != small
    (dataset,) = load_datasets([entry(path, limit=5)], readers=READERS, resolve=resolve, limit=50)
    assert len(dataset) == 5


def test_samples_and_places_are_these() -> None:
    """Sets that were sampled before stay the same."""
    assert list(sample_rows(10, 4, "a")) == [2, 4, 5, 6]
    assert list(sample_rows(10, 4, "b")) != [2, 4, 5, 6]
    assert list(sample_rows(3, 3, "a")) == list(sample_rows(3, None, "a")) == [0, 1, 2]
    assert hash_evenly("a", 1) == 9331952569449725121
    assert hash_evenly("a1") != hash_evenly("a", 1) != hash_evenly("a", "1", "")


def test_the_first_rows_alone_are_read_and_a_limit_is_of_them(tmp_path: Path) -> None:
    path = write(tmp_path / "texts.jsonl", [*({"text": f"text {n}"} for n in range(50)), "{"])
    found = load(path, first=50)
    assert [found[row].anchor for row in (0, 49)] == ["text 0", "text 49"]
    with pytest.raises(DataError, match=r"texts\.jsonl:51"):
        load(path, first=51)
    few, first = load(path, first=20, limit=5), load(path, first=20)
    assert set(anchors(few)) < set(anchors(first))
    for rows in (10, 20, 10):
        assert len(load(path, store=tmp_path / "store", first=rows)) == rows


def test_the_fingerprint_is_of_content_and_of_how_it_is_read(tmp_path: Path) -> None:
    path = many(tmp_path / "rows.jsonl")
    first = load(path).fingerprint
    packed = tmp_path / "packed" / "rows.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load(path).fingerprint == load(packed).fingerprint == first
    changes: list[dict[str, Any]] = [
        *({"prompt": "x"}, {"symmetric": True}, {"name": "other"}, {"limit": 7}),
        *({"task": "reranking"}, {"weight": 2.0}),
        {"columns": Columns(anchor="pos", positive="query")},
    ]
    write(path, [{"query": f"q{i}", "pos": f"p{i}"} for i in range(200)])
    others = [load(path, **options).fingerprint for options in changes]
    assert len({first, *others}) == len(changes) + 1
    write(path, [{"query": f"q{i}", "pos": [f"P{i}"]} for i in range(200)])
    assert load(path).fingerprint != first


class Counting(JsonLines):
    """A reader that counts the files that it has read."""

    files = 0

    def rows(self, path: Path) -> Iterator[Any]:
        Counting.files += 1
        return super().rows(path)


READER = Counting()


def test_a_store_is_filled_once_and_read_again(tmp_path: Path) -> None:
    path, store, before = many(tmp_path / "rows.jsonl"), tmp_path / "store", Counting.files
    loaded = [
        load_datasets([entry(path)], readers=[READER], resolve=resolve, store=store)[0]
        for _ in range(3)
    ]
    assert Counting.files == before + 1
    assert [anchors(dataset) for dataset in loaded] == [[f"q{i}" for i in range(200)]] * 3
    assert len({dataset.fingerprint for dataset in loaded}) == 1
    many(path, 10)
    assert len(load(path, store=store)) == 10


def test_a_reader_of_another_revision_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many(tmp_path / "rows.jsonl")
    (source,) = list_sources(entry(path), readers=[JsonLines()], resolve=lambda _: path)
    before = source.compute_key()
    monkeypatch.setattr(JsonLines, "revision", 2, raising=False)
    assert source.compute_key() != before


def test_a_store_has_each_way_of_reading_a_file_and_no_file_with_bad_rows(tmp_path: Path) -> None:
    path, store = write(tmp_path / "rows.jsonl", [GOOD, {}]), tmp_path / "store"
    with pytest.raises(DataError):
        load(path, store=store)
    assert [p for p in store.rglob("*") if p.is_file()] == []
    rows = [{"text": f"t{i}", "label": str(i % 2)} for i in range(4)]
    write(path, rows)
    for _ in range(2):
        assert load(path, store=store).info.task == "classification"
        assert load(path, store=store, task="text")[1] == Example("t1")
        load(path, store=store, task="text", columns=Columns(anchor="text"))
    assert len(list((store / "examples").iterdir())) == 3


def test_without_a_store_rows_go_with_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    dataset = load(write(tmp_path / "a.jsonl", [{"text": "a"}]))
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    del dataset
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []


# Checks and previews.


def check(*paths: Path, limit_rows: int = 100, **options: Any) -> Any:
    entries = [entry(path, **options) for path in paths]
    return check_entries(entries, readers=READERS, resolve=resolve, limit_rows=limit_rows)


def test_a_check_reads_only_the_first_rows_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*[{"query": f"q{i}", "pos": ["p"]} for i in range(10)], {"query": ""}]
    path = write(tmp_path / "rows.jsonl", rows)
    assert [problem.where for problem in check(path, limit_rows=9).problems] == [f"{path}:11"]
    monkeypatch.setattr("emberge.data.data_check.WHOLE_BYTES", 0)
    assert check(path, limit_rows=10).problems == ()
    assert [problem.where for problem in check(path, limit_rows=11).problems] == [f"{path}:11"]
    checked = check_entries([entry(Path("$corpus"))], readers=READERS, resolve=lambda _: None)
    assert (checked.problems, checked.first_rows) == ((), ())


def test_a_check_tells_every_problem_and_shows_the_other_entries(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", [{"query": "q", "pos": ["p"], "neg": ["a", "b", "c"]}])
    bad = write(tmp_path / "bad.jsonl", [GOOD, {**GOOD, "pos": [None]}])
    checked = check(good, bad, tmp_path / "none.jsonl", good)
    said = sorted(problem.message.partition(" (")[0] for problem in checked.problems)
    assert said[0].startswith("'pos[0]' must be text, not null; correct or remove it")
    assert "no such file" in said[1]
    assert "two datasets are named 'good'" in said[2]
    assert checked.first_rows[0].title == "good: retrieval"
    assert checked.first_rows[0].lines == (
        "columns: anchor = query, positive = pos, negative = neg",
        "anchor: q",
        "positive: p",
        "negative: a",
        "negative: b (and 1 more)",
    )


def test_a_preview_shows_all_parts_of_the_first_row(tmp_path: Path) -> None:
    row = {"query": "q " * 100, "pos": ["a", "b", "c"], "pos_scores": [0.5, 0.25, 1]}
    (head,) = check(write(tmp_path / "a.jsonl", [row]), task="retrieval", prompt="p: ").first_rows
    assert head.lines[:2] == (
        "columns: anchor = query, positive = pos, score = pos_scores",
        "prompt: 'p:' before the anchor",
    )
    assert (head.lines[2][:13], head.lines[2][-1]) == ("anchor: q q q", "…")
    assert len(head.lines[2]) == len("anchor: ") + 100
    assert head.lines[3:] == ("positive: a (score 0.5)", "positive: b (score 0.25) (and 1 more)")
    rows = [{"text": f"{n}", "label": "ab"[n % 2]} for n in range(4)]
    (head,) = check(write(tmp_path / "a.jsonl", rows), symmetric=True, prompt="p").first_rows
    assert "prompt: 'p' before every text" in head.lines
    assert head.lines[-2:] == ("label: a", "positive: drawn among the rows of the label")
    (head,) = check(write(tmp_path / "b.jsonl", [{"text": "a"}])).first_rows
    assert head.lines == ("columns: text = text", "text: a")
