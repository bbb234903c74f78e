"""Documents to embed anew first: those that are hit, else those that are strange, and the gain of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.refreshing.order import DEPTH, Hits

from tests.plugins.index.test_translate_step import pairs, recipe
from tests.plugins.index.translations import expected, vectors, write_translation


def order(folder: Path, *more: str) -> list[int]:
    words = ["--by", str(folder / "by"), "--out", str(folder / "first.npy"), *more]
    assert main(["refresh", str(folder / "old.npy"), *words]) == 0
    return [int(row) for row in np.load(folder / "first.npy")]


def test_hits_of_blocks_are_those_of_the_whole() -> None:
    queries, documents = vectors(7, 16, seed=1), vectors(500, 16, seed=2)
    hits = Hits(queries)
    for first in range(0, 500, 33):
        hits.add(documents[first : first + 33], first)
    wanted = np.zeros(500)
    for query in queries:
        for rank, row in enumerate(np.argsort(-(documents @ query))[:DEPTH]):
            wanted[row] += 1 / np.log2(rank + 2)
    np.testing.assert_allclose(hits.weights(500), wanted, rtol=1e-12)


def test_what_logged_queries_hit_comes_first(tmp_path: Path) -> None:
    translation = write_translation(tmp_path / "by", 24, 16)
    given = vectors(3000, 24)
    np.save(tmp_path / "old.npy", given)
    new = expected(translation, given)
    np.save(tmp_path / "log.npy", np.repeat(new[[2000, 7]], [3, 1], axis=0))
    found = order(tmp_path, "--queries", str(tmp_path / "log.npy"))
    assert found[0] == 2000
    assert found.index(7) < 2 * DEPTH
    assert sorted(found) == list(range(3000))


def test_without_a_log_the_strangest_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(3000, 24)
    given[[5, 1234]] *= -1
    np.save(tmp_path / "old.npy", given)
    assert set(order(tmp_path)[:2]) == {5, 1234}
    assert "1,234" in capsys.readouterr().out


def test_a_log_of_another_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    np.save(tmp_path / "old.npy", vectors(10, 24))
    np.save(tmp_path / "log.npy", vectors(10, 24))
    words = ["--by", str(tmp_path / "by"), "--out", str(tmp_path / "first.npy")]
    log = str(tmp_path / "log.npy")
    assert main(["refresh", str(tmp_path / "old.npy"), *words, "--queries", log]) == 2
    assert "log.npy" in capsys.readouterr().err
    assert not (tmp_path / "first.npy").exists()


def test_the_curve_ends_with_the_new_models_score(berts: list[Path], tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        "refresh",
        old=str(berts[0]),
        new=str(berts[1]),
        shares=[0, 0.5, 1],
        rows=pairs(60),
    )
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    curves = json.loads((tmp_path / "out" / "made" / "curve.json").read_text())
    assert set(curves["ndcg"]) == {"hits", "strange", "random"}
    for scores in curves["ndcg"].values():
        assert scores[0] == curves["ndcg"]["random"][0]
        assert scores[-1] == curves["new"]
