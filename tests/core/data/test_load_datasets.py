"""Datasets: what rows mean, what is wrong with them, samples that stay the same, random access."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Dataset, Example
from emberge.data import check_entries, expand, load_datasets
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


# ── what rows mean ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("anchor", "positive"),
    [
        ("anchor", "positive"),
        ("query", "pos"),
        ("question", "answer"),
        ("query", "document"),
        ("query", "passage"),
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
    ],
)
def test_pairs_are_found_by_the_usual_names(tmp_path: Path, anchor: str, positive: str) -> None:
    assert only(tmp_path, {anchor: "a", positive: "b"}) == (Example("a", ("b",)), "retrieval")


def test_triplets_are_found_by_the_usual_names(tmp_path: Path) -> None:
    row = {"anchor": "a", "positive": "b", "negative": "c"}
    assert only(tmp_path, row) == (Example("a", ("b",), ("c",)), "retrieval")


def test_numbered_negatives_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    row = {"anchor": "a", "positive": "b", "negative_10": "z", "negative_2": "y", "negative_1": "x"}
    assert only(tmp_path, row)[0].negatives == ("x", "y", "z")


def test_rows_may_have_different_numbers_of_negatives(tmp_path: Path) -> None:
    rows = [
        {"query": "a", "positive": "b", "negative_1": "c"},
        {"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d"},
        {"query": "a", "positive": "b"},
        {"query": "a", "positive": "b", "negative_1": None, "negative_2": "d"},
    ]
    dataset = load(write(tmp_path / "rows.jsonl", rows))
    assert [dataset[i].negatives for i in range(4)] == [("c",), ("c", "d"), (), ("d",)]


def test_the_unified_record_keeps_all_texts_scores_and_the_label(tmp_path: Path) -> None:
    row = {
        **{"query": "q", "pos": ["a", "b"], "neg": ["c"], "label": "x", "prompt": "search: "},
        **{"pos_scores": [1, 0.5], "neg_scores": [0.25]},
    }
    dataset = load(write(tmp_path / "rows.jsonl", [row]))
    assert dataset[0] == Example("q", ("a", "b"), ("c",), (1.0, 0.5), (0.25,), "x")
    assert dataset.prompt == "search: "


def test_a_file_of_one_column_is_single_texts(tmp_path: Path) -> None:
    assert only(tmp_path, {"text": "a b"}) == (Example("a b"), "text")


def test_single_texts_may_be_a_column_among_others(tmp_path: Path) -> None:
    row = {"url": "x", "text": "a b", "label": "c"}
    assert only(tmp_path, row, task="text") == (Example("a b"), "text")
    row = {"url": "x", "body": "a b"}
    named = Columns(anchor="body")
    assert only(tmp_path, row, task="text", columns=named) == (Example("a b"), "text")
    assert "columns: {anchor: …}" in refusal(tmp_path, [row], task="text")


def test_a_row_without_the_column_of_single_texts_is_named(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": " "}, {"body": "b"}]
    lines = refusal(tmp_path, rows).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"{tmp_path / 'rows.jsonl'}:{number}" for number in (2, 3)
    ]


def test_a_file_of_one_column_is_not_taken_for_pairs(tmp_path: Path) -> None:
    assert "no column for the positive" in refusal(tmp_path, [{"text": "a"}], task="retrieval")


def test_one_store_keeps_a_file_as_texts_and_as_labelled_ones(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": str(i % 2)} for i in range(4)]
    path, store = write(tmp_path / "rows.jsonl", rows), tmp_path / "store"
    for _ in range(2):
        assert load(path, store=store).info.task == "classification"
        assert load(path, store=store, task="text")[1] == Example("t1")


@pytest.mark.parametrize(("highest", "notes"), [(4.75, 1), (5, 0)])
def test_scored_pairs_are_sts_and_a_guess_at_their_scale_is_said(
    highest: float, notes: int, tmp_path: Path
) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (0, 2.5, highest)]
    heard: list[str] = []
    (dataset,) = load_datasets(
        [entry(write(tmp_path / "sts.jsonl", rows))],
        readers=READERS,
        resolve=resolve,
        warn=heard.append,
    )
    assert dataset.info.task == "sts"
    assert dataset.symmetric
    scores = [example.positive_scores for example in dataset]  # type: ignore[attr-defined]
    assert scores == [(0.0,), (0.5,), (highest / 5,)]
    assert len(heard) == notes  # scores from 0 to 5 leave nothing to guess
    assert all("scale of 0 to 5; write score_range" in note for note in heard)


def test_scores_between_0_and_1_stay_as_they_are(tmp_path: Path) -> None:
    row = {"sentence1": "a", "sentence2": "b", "score": 0.3}
    assert only(tmp_path, row) == (Example("a", ("b",), (), (0.3,)), "sts")


def test_a_score_range_becomes_0_to_1(tmp_path: Path) -> None:
    row = {"sentence1": "a", "sentence2": "b", "score": 0.0}
    assert only(tmp_path, row, score_range=(-1.0, 1.0))[0].positive_scores == (0.5,)


def test_a_set_knows_the_lowest_and_highest_score_of_its_whole_file(tmp_path: Path) -> None:
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


def test_a_label_beside_two_sentences_is_a_score(tmp_path: Path) -> None:
    row = {"sentence1": "a", "sentence2": "b", "label": 1}
    assert only(tmp_path, row) == (Example("a", ("b",), (), (1.0,)), "pair_classification")


def test_teacher_scores_of_negatives_make_no_sts(tmp_path: Path) -> None:
    row = {"query": "q", "positive": "a", "negative": "b", "score": [0.9, 0.2]}
    assert only(tmp_path, row) == (Example("q", ("a",), ("b",), (0.9,), (0.2,)), "retrieval")


def test_explicit_columns_beat_the_usual_names(tmp_path: Path) -> None:
    row = {"title": "t", "query": "q", "positive": "p", "body": "b", "label": 3}
    columns = Columns(anchor="title", positive="body")
    assert only(tmp_path, row, columns=columns) == (Example("t", ("b",)), "retrieval")


def test_labelled_texts_are_paired_with_others_of_their_label(tmp_path: Path) -> None:
    rows = [{"text": f"{label} {i}", "label": label} for label in "abc" for i in range(4)]
    path = write(tmp_path / "intents.jsonl", rows)
    dataset = load(path)
    assert dataset.info.task == "classification"
    for example in dataset:  # type: ignore[attr-defined]
        (positive,) = example.positives
        assert positive != example.anchor
        assert positive[0] == example.label
        assert example.negatives
        assert all(text[0] != example.label for text in example.negatives)
    again = load(path)
    assert [again[i] for i in range(12)] == [dataset[i] for i in range(12)]


def test_the_task_and_the_prompt_of_an_entry_beat_what_rows_say(tmp_path: Path) -> None:
    rows = [{"query": "q", "pos": ["a"], "type": "symmetric_class", "prompt": "x"}]
    path = write(tmp_path / "rows.jsonl", rows)
    assert load(path).info.task == "classification"
    changed = load(path, task="clustering", prompt="topic: ", symmetric=False)
    assert (changed.info.task, changed.prompt, changed.symmetric) == (
        "clustering",
        "topic: ",
        False,
    )


def test_a_prompt_is_filled_with_the_instruction(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"query": "q", "pos": ["a"]}])
    assert load(path, instruction="Find it.").prompt == ""
    assert load(path, instruction="Find it.", prompt="{instruction} ").prompt == "Find it. "
    templated = load(path, instruction="Find it.", prompt="{prompt}")
    assert templated.prompt == "Instruct: Find it.\nQuery: "


# ── what is wrong with rows ─────────────────────────────────────────────────────────────────────

GOOD = {"query": "q", "pos": ["a"], "neg": ["n"]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"pos": ["a"]}, "column 'query' is missing (columns: pos); add it or remove"),
        ({"query": "q"}, "column 'pos' is missing"),
        ({**GOOD, "query": 3}, "'query' must be text, not a number"),
        ({**GOOD, "pos": [["a"]]}, "'pos[0]' must be text, not a list"),
        ({**GOOD, "pos": {"text": "a"}}, "'pos' must be text, not an object"),
        ({**GOOD, "query": " \t"}, "'query' is empty or only white space"),
        ({**GOOD, "neg": ["n", ""]}, "'neg[1]' is empty or only white space"),
        ({**GOOD, "pos": []}, "'pos' holds no positive"),
        ({**GOOD, "pos_scores": [1, 2]}, "'pos_scores' has 2 scores for 1 positives"),
        ({**GOOD, "pos_scores": 1}, "'pos_scores' must be a list of numbers"),
        ({**GOOD, "pos_scores": [float("nan")]}, "'pos_scores' is nan"),
        ({**GOOD, "pos_scores": ["high"]}, "'pos_scores' must be a number, not 'high'"),
        ({**GOOD, "neg_scores": [True]}, "'neg_scores' must be a number, not true or false"),
        ({**GOOD, "score": [1, 2, 3]}, "'score' has 3 scores for 1 positives and 1 negatives"),
        ({**GOOD, "label": []}, "'label' must be a word or a whole number, not a list"),
        ({**GOOD, "prompt": 1}, "'prompt' must be text"),
        ('{"query": "q",', "not JSON"),
        ("[1, 2]", "expected an object"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: Any, said: str) -> None:
    message = refusal(tmp_path, [GOOD, row, GOOD])
    assert message.count("\n") == 0
    assert f"{tmp_path / 'rows.jsonl'}:2: " in message
    assert said in message


def test_every_bad_row_is_told_up_to_twenty_and_the_rest_counted(tmp_path: Path) -> None:
    lines = refusal(tmp_path, [GOOD, *[{**GOOD, "query": ""}] * 25]).splitlines()
    assert len(lines) == 21
    assert ":2: " in lines[0]
    assert ":21: " in lines[19]
    assert "5 more rows cannot be used" in lines[20]


def test_faults_of_all_datasets_are_told_at_once(tmp_path: Path) -> None:
    bad = [write(tmp_path / f"{name}.jsonl", [{**GOOD, "pos": [""]}]) for name in "ab"]
    with pytest.raises(DataError) as caught:
        load_datasets([entry(path) for path in bad], readers=READERS, resolve=resolve)
    assert [line.rpartition("/")[2][:8] for line in str(caught.value).splitlines()] == [
        "a.jsonl:",
        "b.jsonl:",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"left": "a", "right": "b"}, "among left, right; write columns: {anchor: …, positive: …}"),
        ({"query": "a", "text": "b"}, "no column for the positive among query, text"),
        (
            {"query": "a", "question": "b", "pos": "c"},
            "query and question could both be the anchor",
        ),
        ({"question": "a", "answer": "b", "document": "c"}, "could both be the positive"),
        ({"premise": "a", "hypothesis": "b", "label": 2}, "may be a class or a score"),
    ],
)
def test_columns_that_cannot_be_understood_are_listed(tmp_path: Path, row: Any, said: str) -> None:
    assert said in refusal(tmp_path, [row])


def test_a_misspelt_column_is_suggested(tmp_path: Path) -> None:
    message = refusal(tmp_path, [GOOD], columns=Columns(anchor="qeury"))
    assert "anchor names 'qeury', which is not there; did you mean 'query'?" in message


def test_a_class_beside_two_sentences_is_no_score(tmp_path: Path) -> None:
    message = refusal(tmp_path, [{"sentence1": "a", "sentence2": "b", "label": 2}])
    assert "neither 0 or 1 nor between" in message


def test_a_scale_that_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in (-3, 11)]
    assert "from -3 to 11" in refusal(tmp_path, rows)
    assert "lies outside score_range 0 to 10" in refusal(tmp_path, rows, score_range=(0.0, 10.0))


def test_scores_and_labels_are_given_to_all_rows_or_to_none(tmp_path: Path) -> None:
    rows = [GOOD, {**GOOD, "pos_scores": [1]}]
    assert "rows.jsonl:1: this row has no scores and line 2 has" in refusal(tmp_path, rows)
    rows = [{**GOOD, "label": "x"}, GOOD]
    assert "rows.jsonl:2: this row has no label and line 1 has" in refusal(tmp_path, rows)


def test_different_prompts_in_one_dataset_are_refused(tmp_path: Path) -> None:
    rows = [{**GOOD, "prompt": p} for p in "ab"]
    assert "rows have different prompts" in refusal(tmp_path, rows)
    assert load(tmp_path / "rows.jsonl", prompt="c").prompt == "c"


def test_sts_without_scores_is_refused(tmp_path: Path) -> None:
    pair = {"anchor": "a", "positive": "b"}
    assert "task sts needs a score for every pair" in refusal(tmp_path, [pair], task="sts")


def test_labels_that_cannot_give_a_pair_are_refused(tmp_path: Path) -> None:
    rows = [{"text": t, "label": label} for t, label in (("a", 1), ("b", 1), ("c", 2))]
    assert "label '2' has one row only" in refusal(tmp_path, rows)
    assert "all rows have the label '1'" in refusal(tmp_path, rows[:2])
    assert "'label' is empty" in refusal(tmp_path, [*rows, {"text": "d", "label": None}])


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert "there are no rows" in refusal(tmp_path, [])


def test_a_truncated_gzip_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    packed = gzip.compress("".join(json.dumps(GOOD) + "\n" for _ in range(100)).encode())
    path.write_bytes(packed[:-10])
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz:\d+: the file is damaged here .* fetch"):
        load(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit must be 1 or more"),
        ({"weight": 0.0}, "weight must be above 0"),
        ({"score_range": (1.0, 0.0)}, r"score_range is \[lowest, highest\]"),
        ({"only": ("a",)}, "picks sets of a catalogue"),
        ({"hub": "a/b"}, "needs either path or hub"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    entries = [entry(write(tmp_path / "rows.jsonl", [GOOD]), **options)]
    with pytest.raises(DataError, match=said):
        load_datasets(entries, readers=READERS, resolve=resolve)


def test_files_that_are_missing_or_of_no_known_kind_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [GOOD])
    with pytest.raises(DataError, match=r"no such file; did you mean 'rows\.jsonl'"):
        load(tmp_path / "row.jsonl")
    with pytest.raises(DataError, match=r"no reader for this kind of file; known: .*\.parquet"):
        load(write(tmp_path / "rows.xlsx", [GOOD]))
    with pytest.raises(DataError, match=r"the folder has no datasets\.yaml"):
        load(tmp_path)


def test_two_datasets_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [GOOD])
    with pytest.raises(DataError, match="two datasets are named 'rows'"):
        load_datasets([entry(path), entry(path)], readers=READERS, resolve=resolve)
    named = [entry(path), entry(path, name="other")]
    loaded = load_datasets(named, readers=READERS, resolve=resolve)
    assert [dataset.info.name for dataset in loaded] == ["rows", "other"]


# ── samples, fingerprints, access ───────────────────────────────────────────────────────────────


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


def test_the_smaller_of_two_limits_holds(tmp_path: Path) -> None:
    path = many(tmp_path / "rows.jsonl")
    entries = [entry(path, limit=5)]
    (dataset,) = load_datasets(entries, readers=READERS, resolve=resolve, limit=50)
    assert len(dataset) == 5


def test_bad_rows_outside_the_sample_stop_the_run_too(tmp_path: Path) -> None:
    rows = [*[GOOD] * 50, {**GOOD, "query": ""}]
    assert "rows.jsonl:51: " in refusal(tmp_path, rows, limit=1)


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


def test_nothing_stays_in_the_store_of_a_file_with_faults(tmp_path: Path) -> None:
    path, store = write(tmp_path / "rows.jsonl", [GOOD, {}]), tmp_path / "store"
    with pytest.raises(DataError):
        load(path, store=store)
    assert [p for p in store.rglob("*") if p.is_file()] == []


def test_without_a_store_the_rows_go_when_the_dataset_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    dataset = load(many(tmp_path / "rows.jsonl"))
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert dataset[-1].anchor == "q199"
    with pytest.raises(IndexError):
        dataset[200]
    del dataset
    assert list((tmp_path / "temporary").iterdir()) == []


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    text = ' täglich\u2028"\\ \n日本 🦆 '
    assert only(tmp_path, {"query": text, "pos": [text]})[0] == Example(text, (text,))


# ── looking at heads ────────────────────────────────────────────────────────────────────────────


def test_a_check_reads_heads_alone(tmp_path: Path) -> None:
    rows = [*[{"query": f"q{i}", "pos": ["p"]} for i in range(10)], {"query": ""}]
    path = write(tmp_path / "rows.jsonl", rows)

    def check(limit_rows: int) -> Any:
        return check_entries([entry(path)], readers=READERS, resolve=resolve, limit_rows=limit_rows)

    assert check(10).problems == ()
    assert [problem.where for problem in check(11).problems] == [f"{path}:11"]


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


def test_a_check_passes_over_what_is_yet_to_be_made() -> None:
    entries = [DataEntry(path=DataRef("$corpus"))]
    checked = check_entries(entries, readers=READERS, resolve=lambda _: None)
    assert (checked.problems, checked.heads) == ((), ())


# ── hub datasets ────────────────────────────────────────────────────────────────────────────────


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


def test_hub_datasets_come_through_the_datasets_library(hub: Path, tmp_path: Path) -> None:
    def loaded(**options: Any) -> Dataset:
        entries = [DataEntry(hub=str(hub), **options)]
        return load_datasets(entries, readers=READERS, resolve=resolve, store=tmp_path / "s")[0]

    dataset = loaded()
    assert dataset.info.name == "pairs"
    assert dataset[4] == Example("a4", ("p4",))
    assert loaded().fingerprint == dataset.fingerprint
    assert len(loaded(split="test")) == 1


def test_a_check_of_hub_datasets_needs_leave_to_use_the_network(hub: Path) -> None:
    entries = [DataEntry(hub=str(hub))]
    (problem,) = check_entries(entries, readers=READERS, resolve=resolve).problems
    assert problem.severity == "unseen"
    checked = check_entries(entries, readers=READERS, resolve=resolve, network=True)
    assert checked.problems == ()
    assert checked.heads[0].example == Example("a0", ("p0",))


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training steps share data, and `datasets` waits half a minute before it gives up on one."""
    datasets = pytest.importorskip("datasets")
    asked: list[str] = []

    def silent(self: Any, repo_id: str, **_: Any) -> None:
        asked.append(repo_id)
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", silent)
    monkeypatch.setattr(datasets, "load_dataset", None)
    entries = [DataEntry(hub="acme/silent", split=split, name=split) for split in ("a", "b")]
    for _ in range(2):
        found = check_entries(entries, readers=READERS, resolve=resolve, network=True).problems
        assert [problem.severity for problem in found] == ["unseen", "unseen"]
        assert "acme/silent[a] cannot be looked up" in found[0].message
    assert asked == ["acme/silent"]


def test_a_wrong_split_of_a_hub_dataset_is_an_error(hub: Path) -> None:
    entries = [DataEntry(hub=str(hub), split="dev")]
    with pytest.raises(DataError, match=r"pairs\[dev\] cannot be loaded: .*correct hub"):
        load_datasets(entries, readers=READERS, resolve=resolve)


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
