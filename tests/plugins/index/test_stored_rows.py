"""`emberge space MODEL --texts --vectors`: which stored rows are not the model's, and why."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from emberge.cli.main import main
from emberge_index.served import stored_rows
from emberge_index.served.stored_rows import _find_interval, _list_runs

from tests.support.bench import sentence
from tests.support.vector_service import misconfigured, open_stock

_DRAW = random.Random(0)
SOME = list(dict.fromkeys(sentence(_DRAW, 8) for _ in range(210)))[:200]


@pytest.fixture
def place(berts: list[Path], tmp_path: Path) -> Path:
    """Texts, a sibling's vectors in rows 40 to 59, and the model's in all others."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in SOME))
    rows = np.asarray(open_stock(berts[0]).encode(SOME), np.float32)
    np.save(tmp_path / "right.npy", rows)
    rows[40:60] = open_stock(berts[1]).encode(SOME[40:60])
    np.save(tmp_path / "mixed.npy", rows)
    return tmp_path


def run(place: Path, model: Path, vectors: str, *words: str) -> tuple[int, dict[str, Any]]:
    out = place / "found.json"
    files = ["--texts", str(place / "texts.jsonl"), "--vectors", str(place / vectors)]
    code = main(["space", str(model), *files, "--json", str(out), *words])
    return code, json.loads(out.read_text())


def test_rows_of_another_model_are_counted_and_placed(
    place: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(place, berts[0], "mixed.npy", "--candidates", str(berts[1]))
    told = capsys.readouterr().out
    assert code == 4
    assert (found["rows"], found["looked_at"]) == (200, 200)
    assert found["places"] == [*range(40, 60)]
    assert (found["share"], found["interval"]) == (0.1, [0.1, 0.1])
    assert [cause["name"] for cause in found["causes"]] == ["model"]
    assert "20 rows not the model's: 10.0%\n" in told
    assert "places, from 0: 40 to 59\n" in told
    code, found = run(place, berts[0], "right.npy")
    assert (code, found["places"], found["verdict"]) == (0, [], "same")
    assert "same: all of them are the model's\n" in capsys.readouterr().out


def test_a_sample_gives_an_interval(
    place: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(place, berts[0], "mixed.npy", "--sample", "40")
    assert code == 4
    assert found["looked_at"] == 40
    assert found["places"] == [40, 45, 50, 55]
    # Wilson: 4 of 40.
    assert found["interval"] == pytest.approx([0.03958, 0.23052], abs=1e-4)
    told = capsys.readouterr().out
    assert "4 rows not the model's: 10.0% [4.0%, 23.1%] of all" in told
    assert "places, from 0: 40 to 55\n" in told
    _, found = run(place, berts[0], "mixed.npy", "--sample", "30")
    assert found["places"] == [40, 46, 53]
    assert "places, from 0: 40 to 53\n" in capsys.readouterr().out, "the sample has none between"
    code, found = run(place, berts[0], "right.npy", "--sample", "40")
    assert found["interval"] == pytest.approx([0, 0.08763], abs=1e-4)
    assert "so at most 8.8% of all are not" in capsys.readouterr().out


def test_rows_of_another_setting_are_named(place: Path, berts: list[Path]) -> None:
    rows = np.load(place / "right.npy")
    rows[100:] = misconfigured(berts[0], ["pooling"])(SOME[100:])
    np.save(place / "pooled.npy", rows)
    code, found = run(place, berts[0], "pooled.npy")
    assert code == 4
    assert set(found["places"]) <= set(range(100, 200))
    assert len(found["places"]) > 50
    assert [cause["name"] for cause in found["causes"]] == ["pooling"]


def test_the_right_candidate_is_named(
    place: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = ["--candidates", str(berts[2]), str(berts[1])]
    _, found = run(place, berts[0], "mixed.npy", *candidates)
    assert [cause["words"].partition(";")[0] for cause in found["causes"]] == [
        f"the vectors are those of {berts[1].name}"
    ]
    assert "no cause that was tried" not in capsys.readouterr().out
    run(place, berts[0], "mixed.npy", "--candidates", str(berts[2]))
    assert "no cause that was tried explains them all" in capsys.readouterr().out


def test_rows_in_several_blocks_are_compared_with_their_texts(
    place: Path, berts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_rows, "_BLOCK", 48)
    assert run(place, berts[0], "mixed.npy")[1]["places"] == [*range(40, 60)]
    assert run(place, berts[0], "mixed.npy", "--sample", "40")[1]["places"] == [40, 45, 50, 55]


def test_rows_of_queries_have_the_prompt_of_queries(
    place: Path, berts: list[Path], tmp_path: Path
) -> None:
    model = tmp_path / "prompted"
    shutil.copytree(berts[0], model)
    settings = {"prompts": {"query": "who data ", "document": "merge "}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(settings))
    np.save(place / "queries.npy", open_stock(model).encode(SOME, prompt="who data "))
    assert run(place, model, "queries.npy", "--queries")[0] == 0
    code, found = run(place, model, "queries.npy")
    assert code == 4
    assert [cause["name"] for cause in found["causes"]] == ["prompt_of_other_side"]


def test_the_form_of_all_rows_is_told(
    place: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.load(place / "right.npy")
    np.save(place / "cut.npy", rows[:, :16])
    _, found = run(place, berts[0], "cut.npy")
    assert [cause["name"] for cause in found["form"]] == ["prefix"]
    assert "all rows: prefix: vectors have the first 16 of 32 numbers" in capsys.readouterr().out
    np.save(place / "long.npy", rows * 3)
    assert [one["name"] for one in run(place, berts[0], "long.npy")[1]["form"]] == ["normalisation"]
    assert run(place, berts[0], "right.npy")[1]["form"] == []


def test_each_format_and_int8_codes_are_read(place: Path, berts: list[Path]) -> None:
    rows = np.load(place / "mixed.npy")
    pq.write_table(pa.table({"id": range(200), "v": list(rows)}), place / "mixed.parquet")
    assert run(place, berts[0], "mixed.parquet")[1]["places"] == [*range(40, 60)]
    from sentence_transformers import quantize_embeddings

    ranges = np.stack([rows.min(0), rows.max(0)])
    np.savez(place / "ranges.npz", ranges=ranges)
    np.save(place / "codes.npy", quantize_embeddings(rows, "int8", ranges=ranges))
    words = ["--ranges", str(place / "ranges.npz")]
    assert run(place, berts[0], "codes.npy", *words)[1]["places"] == [*range(40, 60)]


def test_what_cannot_be_compared_is_refused(
    place: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def told(vectors: str, *words: str, model: Path = berts[0]) -> str:
        files = ["--texts", str(place / "texts.jsonl"), "--vectors", str(place / vectors)]
        assert main(["space", str(model), *files, *words]) == 2
        return capsys.readouterr().err

    rows = np.load(place / "right.npy")
    np.save(place / "few.npy", rows[:150])
    assert "has 150 vectors, and there are 200 texts" in told("few.npy")
    rows[7, 3] = np.nan
    np.save(place / "broken.npy", rows)
    assert "row 7 is not finite" in told("broken.npy")
    rows[7], rows[50] = rows[6], np.inf
    np.save(place / "broken.npy", rows)
    assert "row 50 is not finite" in told("broken.npy", "--sample", "20")
    np.save(place / "codes.npy", np.zeros((200, 32), np.int8))
    assert "(--ranges)" in told("codes.npy")
    passport = place / "space.json"
    assert main(["space", str(berts[0]), "--json", str(passport)]) == 0
    capsys.readouterr()
    assert "is a passport without its model" in told("right.npy", model=passport)
    np.save(place / "wide.npy", np.zeros((200, 48), np.float32) + 0.1)
    files = ["--texts", str(place / "texts.jsonl"), "--vectors", str(place / "wide.npy")]
    assert main(["space", str(berts[0]), *files]) == 4
    assert run(place, berts[0], "wide.npy")[1]["form"] == []


def test_places_are_joined_and_intervals_are_wilsons() -> None:
    assert _list_runs([], 1) == []
    assert _list_runs([1, 2, 3, 9], 1) == ["1 to 3", "9"]
    assert _list_runs([1, 3, 1000], 2) == ["1 to 3", "1,000"]
    assert _find_interval(0, 10, 10) == (0, 0)
    low, high = _find_interval(10, 10, 20)
    assert (round(low, 4), high) == (0.7225, 1.0)
