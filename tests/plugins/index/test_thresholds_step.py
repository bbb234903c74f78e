"""The step `thresholds`, its gate and its place in a report, run from recipes on tiny real encoders."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.threshold_map import threshold_map

from tests.support.tiny import WORDS

Recipe = Callable[..., Path]


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(draw.choices(WORDS, k=draw.randint(3, 9)))] = None
    return list(found)


@pytest.fixture
def recipe(berts: list[Path], tmp_path: Path) -> Recipe:
    """Write a recipe with a step `thresholds` between two siblings, and a report of it."""

    def written(rows: list[dict[str, Any]] | None = None, **options: Any) -> Path:
        given: dict[str, Any] = {"old": str(berts[0]), "new": str(berts[1]), **options}
        if rows is not None:
            (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            given["data"] = {"path": str(tmp_path / "rows.jsonl")}
        steps = {
            "rules": {"thresholds": given},
            "page": {"report": {"of": ["$rules"]}},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({"seed": 3, "steps": steps}, indent=1), "utf-8")
        return path

    return written


def run(path: Path, *words: str) -> int:
    return main(["run", str(path), "--out", str(path.parent / "out"), "--quiet", *words])


def test_the_map_is_that_of_the_texts_and_a_report_shows_it(
    recipe: Recipe, berts: list[Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    given = texts(60)
    assert run(recipe([{"text": one} for one in given], at=[0.9, -0.2])) == 0
    folder = tmp_path / "out" / "rules"
    found = json.loads((folder / "thresholds.json").read_text())
    old, new = (SentenceTransformer(str(one), device="cpu").encode(given) for one in berts[:2])
    wanted = threshold_map(old, new)
    for side in ("old", "new"):
        np.testing.assert_allclose(found[side], getattr(wanted, side), atol=1e-5)
    assert [one["old"] for one in found["at"]] == [0.9, -0.2]
    assert found["at"][0]["new"] == np.interp(0.9, found["old"], found["new"])
    table = (folder / "thresholds.md").read_text()
    assert f"| 0.9 | {found['at'][0]['new']:.4f} |" in table
    page = (tmp_path / "out" / "page" / "report.html").read_text()
    assert "Thresholds with equally many false positives" in page
    assert f"{found['at'][0]['new']:.4f}" in page


def test_documents_of_one_query_are_no_false_positives(recipe: Recipe, tmp_path: Path) -> None:
    found = texts(60)
    rows = [{"query": q, "pos": [a, b]} for q, a, b in zip(*[iter(found)] * 3, strict=True)]
    assert run(recipe(rows)) == 0
    made = json.loads((tmp_path / "out" / "rules" / "thresholds.json").read_text())
    assert (made["texts"], made["pairs"]) == (40, 40 * 39 // 2 - 20)


def test_the_sample_is_even_over_the_data(recipe: Recipe, tmp_path: Path) -> None:
    assert run(recipe([{"text": one} for one in texts(90)], sample=31)) == 0
    made = json.loads((tmp_path / "out" / "rules" / "thresholds.json").read_text())
    assert made["texts"] == 31


def test_a_gate_refuses_thresholds_that_move_too_far(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": one} for one in texts(60)]
    assert run(recipe(rows, at=[0.93])) == 0
    read = tmp_path / "out" / "rules" / "thresholds.json"
    (asked,) = json.loads(read.read_text())["at"]
    assert asked["known"]
    assert asked["shift"] > 1e-3
    near, far = asked["shift"] * 0.9, asked["shift"] * 1.1
    assert run(recipe(rows, at=[0.93], require={"threshold_shift": far})) == 0
    assert "- met: the threshold 0.93" in (read.parent / "thresholds.md").read_text()
    capsys.readouterr()
    summary = tmp_path / "summary.md"
    strict = recipe(rows, at=[0.93], require={"threshold_shift": near})
    assert run(strict, "--summary", str(summary)) == 3
    error = capsys.readouterr().err
    assert "step 'rules'" in error
    assert f"the threshold 0.93 becomes {asked['new']:.4f}" in error
    told = summary.read_text()
    assert "a requirement is not met" in told
    assert "NOT MET: the threshold 0.93" in told
    page = (tmp_path / "out" / "page" / "report.html").read_text()
    assert "Not met: the threshold 0.93" in page


def test_a_threshold_that_no_pair_reaches_does_not_pass_the_gate(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": one} for one in texts(60)]
    assert run(recipe(rows, at=[1.0], require={"threshold_shift": 2})) == 3
    assert "cannot be told" in capsys.readouterr().err


def test_a_threshold_below_every_pair_does_not_pass_the_gate(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": one} for one in texts(60)]
    assert run(recipe(rows, at=[-1], require={"threshold_shift": 2})) == 3
    assert "all pairs of different texts are more alike" in capsys.readouterr().err


def test_one_model_moves_no_threshold_and_is_named(
    recipe: Recipe, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": one} for one in texts(60)]
    same = {"new": str(berts[0]), "at": [0.5, 0.93], "require": {"threshold_shift": 0}}
    path = recipe(rows, **same)
    assert main(["check", str(path)]) == 0
    warned = capsys.readouterr().err
    assert "old and new are the same model" in warned
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if '"new":' in text)
    assert f"{path.name}:{line}: " in warned
    assert run(path) == 0
    made = json.loads((tmp_path / "out" / "rules" / "thresholds.json").read_text())
    assert [one["shift"] for one in made["at"]] == [0, 0]


def test_without_data_the_probe_texts_are_compared(recipe: Recipe, tmp_path: Path) -> None:
    assert run(recipe()) == 0
    made = json.loads((tmp_path / "out" / "rules" / "thresholds.json").read_text())
    assert made["texts"] > 200


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"at": [0.7, 1.5]}, "from -1 to 1"),
        ({"require": {"threshold_shift": 0.1}}, "under 'at'"),
        ({"at": [0.5], "require": {"threshold_shift": -0.1}}, "from 0 to 2"),
        ({"at": [0.5], "require": {"threshold_shit": 0.1}}, "threshold_shift"),
        ({"rows": [{"text": one} for one in texts(29)]}, "29 texts are too few"),
        ({"sample": 7}, "at least 30"),
        ({"max_length": 0}, "max_length"),
        ({"new": "./nowhere"}, "nowhere"),
    ],
)
def test_check_refuses_what_cannot_be_mapped(
    recipe: Recipe, options: dict[str, Any], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(recipe(**options))]) == 2
    assert remedy in " ".join(capsys.readouterr().err.split())


def test_equal_texts_count_once_also_where_only_the_run_sees_it(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": texts(29)[i % 29]} for i in range(2000)]
    assert run(recipe(rows)) == 2
    assert "30 texts or more" in capsys.readouterr().err


def test_a_model_whose_embeddings_are_nan_is_named(
    recipe: Recipe, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(berts[1], broken)
    tensors = load_file(broken / "model.safetensors")
    name = next(one for one in tensors if one.endswith("word_embeddings.weight"))
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    rows = [{"text": one} for one in texts(60)]
    assert run(recipe(rows, new=str(broken))) in (1, 2)
    error = capsys.readouterr().err
    assert "broken" in error
    assert "not finite" in error
    words = [str(berts[0]), str(broken), "--at", "0.5"]
    assert main(["thresholds", *words]) == 2
    error = capsys.readouterr().err
    assert "broken" in error
    assert "not finite" in error
