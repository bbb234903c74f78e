"""Rows part by part: texts, labels, scores and kinds; what a file decides; what a catalogue keeps."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import Columns, DataEntry, DataError, DataRef, Media, split_parts
from emberge.contracts import DataOrigin
from emberge.data import StoredDataset, hub_datasets, load_datasets, write_catalogue
from emberge.data.file_summary import FileSummary, decide_data, parse_rows
from emberge.data.rows.columns import LayoutError
from emberge.data.rows.media_values import MediaProperties, MediaValues
from emberge.data.rows.row_parser import Row, RowError, RowParser
from emberge.data.sampling import even_place, sample_labelled
from emberge.media import MediaFolder
from emberge_data import JsonLines
from PIL import Image

from tests.support.fixture_types import Patch

PNG = io.BytesIO()
Image.new("RGB", (3, 2)).save(PNG, "PNG")


def parsed(*rows: Mapping[str, Any], columns: Columns | None = None, task: Any = None) -> list[Row]:
    parser = RowParser(columns or Columns(), task)
    return [parser(row) for row in rows]


def refusal(*rows: Mapping[str, Any], **options: Any) -> str:
    """The reason why the last of the rows cannot be used."""
    parsed(*rows[:-1], **options)
    parser = RowParser(options.get("columns", Columns()), options.get("task"))
    for row in rows[:-1]:
        parser(row)
    with pytest.raises(RowError) as caught:
        parser(rows[-1])
    return str(caught.value)


def test_a_row_has_all_its_parts() -> None:
    row = {
        "query": "q",
        "pos": ["a", "b"],
        "neg": ("c",),
        "pos_scores": [1, 0.5],
        "neg_scores": ["0.25"],
        "label": 3,
        "prompt": "p",
        "type": "ir",
    }
    assert parsed(row) == [Row("q", ("a", "b"), ("c",), (1.0, 0.5), (0.25,), "3", "p", "ir")]
    assert Row("a") == Row("a", (), (), None, None, None, None, None)


def test_one_column_of_scores_is_of_positives_or_of_all_texts() -> None:
    row = {"query": "q", "pos": ["a", "b"], "neg": ["c"]}
    assert parsed({**row, "score": [1, 2]})[0][3:5] == ((1.0, 2.0), None)
    assert parsed({**row, "score": [1, 2, 3]})[0][3:5] == ((1.0, 2.0), (3.0,))
    assert parsed({**row, "score": None})[0][3:5] == (None, None)
    assert parsed({"query": "q", "pos": "a", "score": "1e-1"})[0].positive_scores == (0.1,)
    for scores in ([1], [1, 2, 3, 4], []):
        message = refusal({**row, "score": scores})
        assert f"has {len(scores)} scores for 2 positives and 1 negatives" in message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"pos_scores": 1}, "'pos_scores' must be a list of numbers, not a number"),
        ({"pos_scores": [1, 2]}, "'pos_scores' has 2 scores for 1 positives"),
        ({"neg_scores": []}, "'neg_scores' has 0 scores for 1 negatives"),
        ({"pos_scores": ["x"]}, "'pos_scores' must be a number, not 'x'"),
        ({"pos_scores": [True]}, "must be a number, not true or false"),
        ({"pos_scores": [None]}, "must be a number, not nothing"),
        ({"pos_scores": [float("inf")]}, "'pos_scores' is inf; give a finite number"),
        ({"prompt": 5}, "'prompt' must be text, not a number"),
        ({"type": []}, "'type' must be text, not a list"),
        ({"label": 1.5}, "'label' must be a word or a whole number, not a number"),
        ({"label": ""}, "'label' is empty"),
        ({"query": b"a"}, "'query' must be text, not a bytes"),
        ({"query": "a", "pos": []}, "'pos' holds no positive"),
        ({"pos": ["a", "b", ""]}, r"'pos[2]' is empty"),
        ({"neg": ["a", 1]}, r"'neg[1]' must be text"),
        ({"pos": [["a"]]}, "'pos[0]' must be text, not a list"),
        ({"pos": {"text": "a"}}, "'pos' must be text, not an object"),
        ({"score": [1, 2, 3]}, "'score' has 3 scores for 1 positives and 1 negatives"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(row: Mapping[str, Any], words: str) -> None:
    assert words in refusal({"query": "q", "pos": ["a"], "neg": ["b"], **row})


def test_rows_of_a_text_and_a_label_need_both() -> None:
    good = {"text": "a", "label": "x"}
    assert parsed(good) == [Row("a", label="x")]
    assert parsed({"text": "a", "label": True}) == [Row("a", label="True")]
    assert parsed({"text": "a", "label": 0}) == [Row("a", label="0")]
    alone = {"sentence": "a", "label": "x"}
    assert parsed(alone, {**alone, "positive": "b"})[1] == Row("a", label="x")
    assert "'label' is empty; give the row a label" in refusal(good, {"text": "a", "label": None})
    assert "column 'label' is missing (columns: text)" in refusal(good, {"text": "a"})
    assert "column 'text' is missing (columns: label)" in refusal(good, {"label": "a"})
    assert "(columns: none)" in refusal(good, {})
    assert parsed(good, {**good, "id": 5})[1] == Row("a", label="x")


def test_rows_of_pairs_may_have_other_columns_beside() -> None:
    good = {"query": "q", "pos": "a"}
    rows = parsed(good, {**good, "neg": "b"}, {**good, "label": "x"}, {"id": 1, **good})
    assert rows[1:] == [Row("q", ("a",), ("b",)), Row("q", ("a",), label="x"), Row("q", ("a",))]
    assert "column 'pos' is missing" in refusal(good, {"query": "q"})
    assert "could both be the negative" in refusal(good, {**good, "neg": "b", "negative": "c"})
    assert "column 'text' is missing" in refusal({"text": "a"}, {"query": "b"})
    assert parsed({"text": "a"}, {"text": "b", "query": 5}) == [Row("a"), Row("b")]


def test_a_degree_is_between_0_and_1_and_other_columns_unknown() -> None:
    row = {"sentence1": "a", "sentence2": "b"}
    assert [r.positive_scores for r in parsed({**row, "label": 0}, {**row, "label": 1})] == [
        (0,),
        (1,),
    ]
    for label in (-0.1, 1.1, 2):
        message = refusal({**row, "label": 1}, {**row, "label": label})
        assert f"'label' is {label}, neither 0 or 1 nor between" in message
        assert "columns: {anchor: sentence1, positive: sentence2, score: label}" in message
    with pytest.raises(LayoutError, match="among a, b"):
        parsed({"a": 1, "b": 2})


def test_the_mark_of_media_is_no_part_of_a_text() -> None:
    assert parsed({"query": "a\ufffcb", "pos": "c", "prompt": "\ufffc"})[0][::6] == (
        "a\ufffdb",
        "\ufffd",
    )


def test_bytes_are_looked_at_once_and_kept_by_kind(tmp_path: Path) -> None:
    values = MediaValues(MediaFolder(tmp_path))
    for value in (PNG.getvalue(), {"bytes": PNG.getvalue(), "path": "x.png"}):
        media = values.medium("image", value, "image")
        assert (media.kind, Path(media.path).suffix) == ("image", ".img")
        assert values.properties_by_hash == {media.hash: MediaProperties(size=(3, 2))}
    (media,) = split_parts(values.input({"bytes": PNG.getvalue()}, "a"))
    assert isinstance(media, Media)
    assert media.kind == "image"
    clip = {"array": np.full(500, 0.5).tolist(), "sampling_rate": 1000}
    (media,) = split_parts(values.input(clip, "a"))
    assert isinstance(media, Media)
    assert (media.kind, Path(media.path).suffix) == ("audio", ".snd")
    assert values.properties_by_hash[media.hash] == MediaProperties(rate=1000, seconds=0.5)
    sound = Path(media.path).read_bytes()
    (again,) = split_parts(values.input({"bytes": sound, "path": None}, "a"))
    assert again == media
    assert MediaProperties() == MediaProperties(None, None, 0.0)


def test_a_kind_is_of_the_file_unless_it_is_named(tmp_path: Path) -> None:
    values = MediaValues(MediaFolder(tmp_path))
    with pytest.raises(DataError, match=r"no WAV|no sound"):
        values.medium("audio", {"bytes": PNG.getvalue()}, "audio")
    with pytest.raises(DataError, match=r"'a' has int as image"):
        values.medium("image", 5, "a")
    with pytest.raises(DataError, match="neither bytes nor a path"):
        values.medium("image", {"bytes": b""}, "a")
    (tmp_path / "a").write_bytes(PNG.getvalue())
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2)).save(buffer, "WEBP")
    (tmp_path / "b").write_bytes(buffer.getvalue())
    values = MediaValues(MediaFolder(tmp_path / "store", tmp_path))
    for name in ("a", "b"):
        (media,) = split_parts(values.input({"path": name, "bytes": None}, "a"))
        assert isinstance(media, Media)
        assert (media.kind, Path(media.path)) == ("image", tmp_path / name)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, r"not an object (empty)"),
        ({"video": "a"}, "not an object (video)"),
        ({"image": "a", "video": "b"}, "not an object (image, video)"),
        ({"parts": ["a"], "image": "b"}, "nothing beside it"),
        ({"parts": "a"}, "needs a list under parts"),
        ({"parts": [5]}, "has int as a part"),
        ({"array": [0.5]}, "array without a sampling_rate"),
    ],
)
def test_forms_of_media_that_are_not_known_are_named(value: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        MediaValues().input(value, "a")
    assert words in str(caught.value)
    assert "'a' " in str(caught.value)


def summed(*rows: Mapping[str, Any], **options: Any) -> tuple[FileSummary, list[Row]]:
    summary = FileSummary("a.jsonl")
    entry = DataEntry(**options)
    return summary, [row for _, row in parse_rows(enumerate(rows, 1), entry, summary)]


def decided(*rows: Mapping[str, Any], **options: Any) -> Any:
    summary, _ = summed(*rows, **options)
    return decide_data(summary, DataEntry(**options))


def pair(**more: Any) -> dict[str, Any]:
    return {"query": "q", "pos": "a", **more}


def test_rows_are_counted_by_what_they_have() -> None:
    summary, rows = summed(
        pair(score=0.5), pair(score=0.25, neg="b"), {"bad": 1}, pair(score=1, neg="c")
    )
    assert len(rows) == summary.rows == 3
    assert (summary.negatives, summary.scored, summary.labels) == (2, 3, 0)
    assert (summary.lowest, summary.highest, summary.zero_or_one) == (0.25, 1.0, False)
    assert summary.lines == {"without a label": 1, "with scores": 1}
    assert summary.pairs == {"text-text": 1}
    assert [problem.where for problem in summary.problems()] == ["a.jsonl:3"]
    assert summary.media_facts() is None
    assert FileSummary(**summary.plain()) == summary


def test_the_task_is_that_of_the_rows() -> None:
    kinds = {
        "symmetric_class": "classification",
        "symmetric_clustering": "clustering",
        "symmetric_sts": "sts",
        "ir": "retrieval",
        "retrieval": "retrieval",
        "reranking": "reranking",
        "other": "retrieval",
    }
    for kind, task in kinds.items():
        more = {"score": 0.5} if task == "sts" else {}
        assert decided(pair(type=kind, **more)).task == task
    assert decided(pair()).task == "retrieval"
    assert decided(pair(score=0.5)).task == "sts"
    assert decided(pair(score=0), pair(score=1)).task == "pair_classification"
    assert decided(pair(score=0.5, neg="b")).task == "retrieval"
    assert decided(pair(label="x")).task == "classification"
    assert decided({"text": "a"}).task == "text"
    assert decided(pair(type="ir"), pair(type="reranking")).task == "retrieval"
    assert decided(pair(score=0.5), task="reranking").task == "reranking"


def test_sides_are_alike_but_in_search_and_scores_on_the_scale() -> None:
    assert [decided(pair(), task=task).symmetric for task in ("retrieval", "reranking")] == [
        False
    ] * 2
    assert decided(pair(), task="clustering").symmetric is True
    assert decided(pair(), symmetric=True).symmetric is True
    assert decided(pair(score=0.5), symmetric=False).symmetric is False
    found = decided(pair(score=[1.0, 0.0], neg=["b"]), score_range=(0.0, 2.0))
    example = found.example(parsed(pair(score=[1.0, 0.0], neg=["b"]))[0])
    assert (example.positive_scores, example.negative_scores) == ((0.5,), (0.0,))
    assert decided(pair()).example(Row("q", ("a",))).positive_scores is None


def test_the_scale_is_given_or_safe_to_guess() -> None:
    assert decided(pair(score=0.5), pair(score=1), pair(score=0)).score_range == (0.0, 1.0)
    found = decided(pair(score=0), pair(score=5), task="sts")
    assert (found.score_range, found.notes) == ((0.0, 5.0), ())
    found = decided(pair(score=1), pair(score=4))
    assert found.score_range == (0.0, 5.0)
    assert "scores run from 1 to 4" in found.notes[0]
    assert found.scale_score(2.5) == 0.5
    found = decided(pair(score=-3), score_range=(-5.0, 5.0))
    assert (found.score_range, found.scale_score(0.0)) == ((-5.0, 5.0), 0.5)
    for scores, options in (
        ((-0.1, 1), {}),
        ((0, 5.1), {}),
        ((0, 2), {"task": "pair_classification"}),
    ):
        said = rf"from {scores[0]} to {scores[1]}.*their scale is not given"
        with pytest.raises(DataError, match=said):
            decided(*(pair(score=score) for score in scores), **options)
    for score in (0.0, 5.0):
        assert summed(pair(score=score), score_range=(0.0, 5.0))[0].rows == 1
    for score in (-0.1, 5.1):
        summary, _ = summed(pair(score=score), score_range=(0.0, 5.0))
        assert "lies outside score_range 0 to 5" in summary.problems()[0].message


def test_rows_agree_or_are_named() -> None:
    for rows, words in (
        ((pair(label="x"), pair()), r"a\.jsonl:2: this row has no label and line 1 has"),
        ((pair(), pair(score=1)), r"a\.jsonl:1: this row has no scores and line 2 has"),
        ((pair(prompt="a"), pair(prompt="b")), "different prompts"),
        ((pair(prompt="a"), pair()), "different prompts"),
    ):
        with pytest.raises(DataError, match=words):
            decided(*rows)
    assert decided(pair(prompt="a"), pair(prompt="a")).prompt == "a"
    assert decided(pair(prompt="a"), pair(prompt="b"), prompt="c").prompt == "c"
    assert decided(pair()).prompt == ""
    with pytest.raises(DataError, match="there are no rows"):
        decided()
    with pytest.raises(DataError, match="task sts needs a score for every pair"):
        decided(pair(), pair(neg="b"), task="sts")
    assert decided(pair(neg="b"), task="sts").task == "sts"


def test_places_are_even_and_stay() -> None:
    assert even_place("a", 1) == 9331952569449725121
    assert even_place("a1") != even_place("a", 1) != even_place("a", "1", "")
    found = sample_labelled([f"l{row % 3}" for row in range(30)], 16, "a")
    assert list(found) == [0, 2, 5, 6, 12, 14, 15, 17, 18, 20, 21, 23, 24, 26, 27, 29]


def test_the_key_of_a_hub_sets_first_rows_needs_no_rows(monkeypatch: Patch) -> None:
    import datasets

    asked: list[Any] = []

    def build(*words: Any, **options: Any) -> SimpleNamespace:
        asked.append((words, options))
        return SimpleNamespace(config_id="small-x", hash="12ab")

    def load(*words: Any, **options: Any) -> SimpleNamespace:
        asked.append((words, options))
        return SimpleNamespace(features=None, _fingerprint="34cd")

    monkeypatch.setattr(datasets, "load_dataset_builder", build)
    monkeypatch.setattr(datasets, "load_dataset", load)
    entry = DataEntry(hub="o/n", subset="small", split="dev", revision="v1")
    assert hub_datasets.hash_hub_rows(dataclasses.replace(entry, first=5)) == "small-x/12ab[dev]"
    assert hub_datasets.hash_hub_rows(entry) == "34cd"
    whole = {"data_dir": None, "split": "dev", "revision": "v1", "streaming": False}
    head = {"data_dir": None, "revision": "v1"}
    assert asked == [(("o/n", "small"), head), (("o/n", "small"), whole)]
    assert hub_datasets.describe_hub_entry(entry) == "o/n/small[dev]@v1"
    assert hub_datasets.describe_hub_entry(DataEntry(hub="o/n")) == "o/n[train]"


ROWS: dict[str, list[dict[str, Any]]] = {
    "find": [
        {"query": "a", "pos": ["b", "c"], "neg": ["d"]},
        {"query": "e", "pos": ["f"], "neg": []},
    ],
    "alike": [
        {"sentence1": "a", "sentence2": "b", "score": 5},
        {"sentence1": "c", "sentence2": "d", "score": 0},
    ],
    "taught": [{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [0.5], "neg_scores": [0]}],
    "kinds": [{"text": f"t{i}", "label": str(i % 2)} for i in range(4)],
    "plain": [{"text": "one"}, {"text": "zwei"}],
}


def loaded(path: Path, **options: Any) -> list[StoredDataset]:
    entry = DataEntry(path=DataRef(str(path)), **options)
    return load_datasets([entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text))


@pytest.mark.parametrize("name", ROWS)
def test_a_written_set_is_read_as_the_same_examples(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    facts = {
        "language": "de",
        "instruction": "Find it",
        "prompt": "Do: {instruction} ",
        "weight": 2.0,
        "negatives": "hard_only",
        "ind_tasks": ("one",),
    }
    (before,) = loaded(path, **facts)
    examples = [before[row] for row in range(len(before))]
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [(name, before, examples)])
    (after,) = loaded(tmp_path / "out")
    assert [after[row] for row in range(len(after))] == examples
    assert after.info == before.info
    assert (after.prompt, after.symmetric) == (before.prompt, before.symmetric)
    assert after.prompt == "Do: Find it "
    assert (after.entry.language, after.entry.ind_tasks) == ("de", ("one",))


def test_a_set_without_rows_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "find.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS["find"]))
    (before,) = loaded(path)
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [("a/b", before, [before[0]]), ("c", before, [])])
    assert [one.info.name for one in loaded(tmp_path / "out")] == ["a/b"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0-a-b.jsonl", "datasets.yaml"]


def test_a_written_set_keeps_its_whole_origin_and_names_new_scorers(tmp_path: Path) -> None:
    path = tmp_path / "taught.jsonl"
    path.write_text(json.dumps(ROWS["taught"][0]) + "\n")
    origin = DataOrigin(
        licence="mit", url="https://acme.org", written_by=("acme/writer",), scored_by=("acme/old",)
    )
    (before,) = loaded(path, source=origin)
    for scored_by, expected in (((), ("acme/old",)), (("acme/new",), ("acme/new",))):
        out = tmp_path / "-".join(("out", *expected)).replace("/", "-")
        out.mkdir()
        write_catalogue(out, [("taught", before, [before[0]])], {}, scored_by)
        (after,) = loaded(out)
        assert after.entry.source == dataclasses.replace(origin, scored_by=expected)


def test_what_a_recipe_states_of_a_source_is_added_to_a_catalogues(tmp_path: Path) -> None:
    (tmp_path / "find.jsonl").write_text(json.dumps(ROWS["find"][0]) + "\n")
    (tmp_path / "datasets.yaml").write_text(
        "train: [{name: find, file: find.jsonl, source: {licence: mit, written_by: [t5]}}]"
    )
    (found,) = loaded(tmp_path, source=DataOrigin(written_by=("t6",), url="https://acme.org"))
    assert found.entry.source == DataOrigin(
        licence="mit", url="https://acme.org", written_by=("t6",)
    )


def test_the_page_of_a_hub_dataset_is_its_address_unless_another_is_stated() -> None:
    assert DataEntry(hub="acme/pairs").origin.url == "https://huggingface.co/datasets/acme/pairs"
    stated = DataOrigin(url="https://acme.org")
    assert DataEntry(hub="acme/pairs", source=stated).origin == stated
    assert DataEntry(path=DataRef("a.jsonl")).origin == DataOrigin()
