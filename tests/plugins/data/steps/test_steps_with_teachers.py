"""Steps in which teachers judge, run from recipes on a tiny real encoder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main

from tests.support.step_reports import assert_never_decreases, record_reports
from tests.support.tiny import WORDS

Row = Mapping[str, Any]
Run = Callable[..., list[dict[str, Any]]]


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 8)))


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a query and its positive, all texts different."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < 2 * count:
        texts[sentence(draw)] = None
    found = list(texts)
    return [{"query": q, "pos": [p]} for q, p in zip(found[::2], found[1::2], strict=True)]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def recipe(folder: Path, kind: str, teacher: Any, data: Any, **options: Any) -> Path:
    step = {kind: {"data": data, "teachers": teacher, **options}}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({"seed": 3, "steps": {"made": step}}, indent=1), "utf-8")
    return path


@pytest.fixture
def run(bert: Path, tmp_path: Path) -> Run:
    """Run a step on rows and return those it leaves."""

    def done(kind: str, rows: Sequence[Row], **options: Any) -> list[dict[str, Any]]:
        data = {"path": str(write(tmp_path / "rows.jsonl", rows)), **options.pop("entry", {})}
        teacher = options.pop("teachers", str(bert))
        path = recipe(tmp_path, kind, teacher, data, **options)
        assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
        (file,) = (tmp_path / "out" / "made").glob("*.jsonl")
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]

    return done


def refused(capsys: pytest.CaptureFixture[str], verb: str, path: Path, out: Path) -> str:
    """What a verb that ends with an error has written."""
    code = main([verb, str(path), *(["--out", str(out)] if verb == "run" else [])])
    assert code in (1, 2)
    written = capsys.readouterr()
    return " ".join((written.out + written.err).split())


def test_mined_negatives_are_other_passages_of_the_set(run: Run) -> None:
    rows = pairs(40)
    found = run("mine_hard_negatives", rows, count=5, margin=None)
    assert [(row["query"], row["pos"]) for row in found] == [
        (row["query"], row["pos"]) for row in rows
    ]
    passages = {row["pos"][0] for row in rows}
    for row in found:
        assert len(set(row["neg"])) == 5
        assert set(row["neg"]) <= passages - set(row["pos"])


def test_mining_describes_its_negatives(run: Run, tmp_path: Path) -> None:
    run("mine_hard_negatives", pairs(40), count=4, margin=None)
    table = (tmp_path / "out" / "made" / "changes.md").read_text("utf-8")
    assert "rows: 40 of 40 rows have mined negatives, 160 in all, 4 a row." in table
    assert "margin" not in table  # there is none
    (negatives,) = [line for line in table.splitlines() if "| a negative |" in line]
    (positives,) = [line for line in table.splitlines() if "| a positive |" in line]
    cells = [cell.strip() for cell in negatives.strip("|").split("|")]
    assert cells[2] == "160"
    assert positives.split("|")[3].strip() == "40"
    quantiles = [float(cell) for cell in cells[3:]]
    assert quantiles == sorted(quantiles)
    assert len(quantiles) == 5
    assert table.count("    * its document, ") == 3
    assert table.count("    * negative, ") == 9
    assert "`changes.json`" in table


def test_mining_counts_the_passages_that_margin_left_out(run: Run, tmp_path: Path) -> None:
    run("mine_hard_negatives", pairs(40), count=4, margin=0.9)
    made = tmp_path / "out" / "made"
    (line,) = [x for x in (made / "changes.md").read_text("utf-8").splitlines() if "margin" in x]
    assert line.startswith("rows: of the 160 nearest passages of all queries (ranks 1 to 4, ")
    left_out = int(line.partition("left out ")[2].split()[0])
    assert 0 < left_out <= 160
    assert line in json.loads((made / "artifact.json").read_text("utf-8"))["details"]["sentences"]


@pytest.mark.parametrize("kind", ["mine_hard_negatives", "consistency_filter"])
def test_progress_is_by_set_and_never_decreases(
    kind: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = record_reports(monkeypatch, "made")
    data = [
        {"path": str(write(tmp_path / f"{name}.jsonl", pairs(20, n)))}
        for n, name in enumerate("ab")
    ]
    path = recipe(tmp_path, kind, [str(bert), str(bert)], data)
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    assert_never_decreases(reports, 2, "stages")
    assert reports[-1][0] == 2
    notes = [note for *_, note in reports]
    assert f"teacher 2 of 2: {bert} · set 1 of 2: a" in notes
    assert "set 2 of 2: b" in notes


def test_all_positives_of_a_query_are_spared_over_rows_and_so_is_the_query_itself(run: Run) -> None:
    rows = pairs(8)
    rows[1]["query"] = rows[0]["query"]
    rows[2]["pos"] = [rows[0]["query"], rows[3]["query"]]
    found = run("mine_hard_negatives", rows, count=8, margin=None)
    passages = {text for row in rows for text in row["pos"]}
    own = {*rows[0]["pos"], *rows[1]["pos"], rows[0]["query"]}
    assert set(found[0]["neg"]) == set(found[1]["neg"]) == passages - own
    assert found[0]["neg"] == found[1]["neg"]
    assert rows[3]["query"] not in found[3]["neg"]


def test_a_text_of_the_same_label_is_no_negative_even_under_another_label_too(run: Run) -> None:
    rows = pairs(9)
    for number, row in enumerate(rows):
        row["label"] = "abc"[number % 3]
    rows[1]["pos"].append(rows[0]["pos"][0])  # of label a, and of label b too
    rows[2]["neg"] = ["a text whose label no row states"]
    found = run("mine_hard_negatives", rows, count=8, margin=None, entry={"task": "classification"})
    texts = {label: {t for r in rows if r["label"] == label for t in r["pos"]} for label in "abc"}
    everything = texts["a"] | texts["b"] | texts["c"]
    for row in found:
        assert set(row["neg"]) == everything - texts[row["label"]]


def test_a_corpus_brings_passages_in_place_of_the_negatives(run: Run, tmp_path: Path) -> None:
    rows = pairs(4)
    rows[0]["neg"] = ["the old text"]
    one = write(tmp_path / "one.jsonl", [{"_id": 1, "title": "new", "text": "table"}])
    other = write(tmp_path / "other.jsonl", [{"_id": 2, "text": "bank card"}])
    found = run("mine_hard_negatives", rows, count=5, margin=None, corpus=[str(one), str(other)])
    passages = {"new table", "bank card", *(row["pos"][0] for row in rows)}
    assert set(found[0]["neg"]) == passages - set(rows[0]["pos"])


def test_rows_with_too_few_negatives_are_kept(run: Run) -> None:
    rows = pairs(12)
    # The first query has all passages but two, so fewer than three are left for it.
    rows[0]["pos"] = [row["pos"][0] for row in rows[:10]]
    found = run("mine_hard_negatives", rows, count=3, margin=None, range=[1, 3])
    assert len(found) == 12
    assert set(found[0]["neg"]) == {rows[10]["pos"][0], rows[11]["pos"][0]}


def test_negatives_that_are_there_are_replaced_or_kept_first(run: Run) -> None:
    rows = pairs(10)
    old = [rows[4]["pos"][0], "an old text"]
    for row in rows:
        row |= {"neg": old, "neg_scores": [0.1, 0.2], "pos_scores": [0.9]}
    options = {"count": 10, "margin": None}
    passages = {row["pos"][0] for row in rows} | {"an old text"}
    kept = run("mine_hard_negatives", rows, existing="keep", **options)[0]
    assert kept["neg"][:2] == old
    assert len(kept["neg"]) == 10
    assert "neg_scores" not in kept
    replaced = run("mine_hard_negatives", rows, **options)[0]
    assert set(kept["neg"]) == set(replaced["neg"]) == passages - set(rows[0]["pos"])


@pytest.mark.slow
def test_a_second_teacher_must_agree(run: Run, bert: Path, berts: list[Path]) -> None:
    rows = pairs(30)
    one, two = str(bert), str(berts[0])
    options = {"count": 29, "margin": 0.999}
    alone = [
        run("mine_hard_negatives", rows, teachers=teacher, **options) for teacher in (one, two)
    ]
    both = run("mine_hard_negatives", rows, teachers=[one, two], **options)
    for first, second, joined in zip(*alone, both, strict=True):
        assert set(joined["neg"]) == set(first["neg"]) & set(second["neg"])
    assert any(a["neg"] != b["neg"] for a, b in zip(alone[0], both, strict=True))


def test_filtered_negatives_are_those_that_mining_would_allow(run: Run) -> None:
    rows = pairs(20)
    everything = [row["pos"][0] for row in rows]
    options = {"margin": 0.99}
    allowed = run("mine_hard_negatives", rows, count=19, **options)
    given = [
        {**row, "neg": everything, "neg_scores": [0.5] * 20, "pos_scores": [1.0]} for row in rows
    ]
    found = run("filter_negatives", given, **options)
    assert 0 < sum(len(row["neg"]) for row in found) < 19 * 20
    for row, mined in zip(found, allowed, strict=True):
        assert set(row["neg"]) == set(mined["neg"])
        assert len(row.get("neg_scores", ())) == len(row["neg"])


@pytest.mark.slow
def test_a_pair_stays_if_its_positive_is_found_again(run: Run) -> None:
    rows = pairs(30)
    for row in rows[:10]:
        row["pos"] = [row["query"]]
    rows[0]["pos"] = [rows[0]["query"], rows[1]["query"]]
    found = run("consistency_filter", rows, top_k=1)
    kept = {row["query"]: row["pos"] for row in found}
    # A text is nearest to itself; another of the row's positives does not count against it.
    for row in rows[1:10]:
        assert kept[row["query"]] == row["pos"]
    assert rows[0]["query"] in kept[rows[0]["query"]]
    assert len(kept) < 30
    everything = run("consistency_filter", rows, top_k=30, shard_size=31)
    assert everything == run("consistency_filter", rows, top_k=31, shard_size=32)
    assert len(everything) == 30


def test_smaller_shards_keep_more(run: Run) -> None:
    rows = pairs(60)
    rows[0]["pos"] = [rows[0]["query"]]
    whole = run("consistency_filter", rows, top_k=1)
    cut = run("consistency_filter", rows, top_k=1, shard_size=5)
    queries = {row["query"] for row in cut}
    assert {row["query"] for row in whole} < queries


WRONG = [
    ("mine_hard_negatives", {"margin": 1.5}, "margin"),
    ("mine_hard_negatives", {"count": 0}, "count"),
    ("mine_hard_negatives", {"range": [0, 50]}, "range"),
    ("mine_hard_negatives", {"range": [3, 5]}, "range"),
    ("mine_hard_negatives", {"corpus": "./nowhere.jsonl"}, "nowhere.jsonl"),
    ("mine_hard_negatives", {"count": 60}, "corpus"),
    ("filter_negatives", {"margin": -0.5}, "margin"),
    ("consistency_filter", {"top_k": 0}, "top_k"),
    ("consistency_filter", {"top_k": 3, "shard_size": 3}, "shard_size"),
]


@pytest.mark.parametrize(("kind", "options", "named"), WRONG)
def test_wrong_options_are_found_before_work_starts(
    kind: str,
    options: dict[str, Any],
    named: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write(tmp_path / "rows.jsonl", pairs(20))
    path = recipe(tmp_path, kind, str(bert), str(data), **options)
    found = refused(capsys, "check", path, tmp_path)
    assert "recipe.yaml:" in found
    assert named in found


def test_a_range_may_have_as_many_ranks_as_negatives_are_mined(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "rows.jsonl", pairs(20))
    for last, code in ((5, 0), (4, 2)):
        options = {"count": 3, "range": [3, last]}
        path = recipe(tmp_path, "mine_hard_negatives", str(bert), str(data), **options)
        assert main(["check", str(path)]) == code
    assert "end it at 5 or later" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kind", ["mine_hard_negatives", "filter_negatives", "consistency_filter"])
@pytest.mark.parametrize(
    ("rows", "task"),
    [
        ([{"text": "bank card"}, {"text": "new table"}], "text"),
        ([{"text": w, "label": w[0]} for w in ("bank", "bad", "table", "to")], "classification"),
        ([{"query": "bank", "pos": ["card"], "pos_scores": [1]}] * 2, "sts"),
    ],
)
def test_sets_without_positives_are_found_before_work_starts(
    kind: str,
    rows: list[Row],
    task: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = {"path": str(write(tmp_path / "rows.jsonl", rows)), "task": task}
    if task == "sts":
        data["score_range"] = [0, 1]
    path = recipe(tmp_path, kind, str(bert), data)
    found = refused(capsys, "check", path, tmp_path)
    assert "dataset 'rows'" in found
    assert "leave it out" in found


def all_alike(count: int) -> list[dict[str, Any]]:
    """Rows whose positives are texts that no encoder can tell from their queries' words."""
    return [{**row, "neg": [row["query"]]} for row in pairs(count)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("mine_hard_negatives", {"margin": 0.0}), ("filter_negatives", {"margin": 0.0})],
)
def test_a_threshold_that_nothing_passes_stops_with_the_scores_seen(
    kind: str,
    options: dict[str, Any],
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Texts of a tiny encoder with random weights are much alike: all cosines are above 0.
    data = write(tmp_path / "rows.jsonl", all_alike(20))
    path = recipe(tmp_path, kind, str(bert), str(data), **options)
    found = refused(capsys, "run", path, tmp_path / "out")
    assert "dataset 'rows'" in found
    assert "median" in found
    assert "margin" in found
    assert not (tmp_path / "out" / "made").exists()


def test_a_filter_that_keeps_no_pair_stops_with_the_scores_seen(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pairs(20)
    # Each query's own text is another row's positive, and so nearer than its own.
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        row["pos"] = [other["query"]]
    path = recipe(
        tmp_path,
        "consistency_filter",
        str(bert),
        str(write(tmp_path / "rows.jsonl", rows)),
        top_k=1,
    )
    found = refused(capsys, "run", path, tmp_path / "out")
    assert "median" in found
    assert "top_k" in found


def test_ids_of_corpora_that_clash_are_an_error_with_both_places(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", [{"_id": "a", "text": "x"}, {"_id": "b", "text": "y"}])
    other = write(tmp_path / "other.jsonl", [{"_id": "a", "text": "x"}, {"_id": "b", "text": "z"}])
    data = write(tmp_path / "rows.jsonl", pairs(20))
    path = recipe(
        tmp_path, "mine_hard_negatives", str(bert), str(data), corpus=[str(one), str(other)]
    )
    found = refused(capsys, "run", path, tmp_path / "out")
    assert "other.jsonl:2" in found
    assert "one.jsonl:2" in found
