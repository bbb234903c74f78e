"""Documents to embed anew first: those that are hit, else those that are strange, and the gain of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.refresh_verb import DEPTH, Hits, by_hits, strangeness_of_each
from safetensors.numpy import save_file

from tests.support.translations import expected, pairs, recipe, vectors, write_translation


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


def test_of_several_tensors_the_one_that_is_named_is_put_in_order(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(300, 24)
    np.save(tmp_path / "old.npy", given)
    save_file({"a": vectors(40, 24, seed=5), "b": given}, tmp_path / "old.safetensors")
    words = ["--by", str(tmp_path / "by"), "--out", str(tmp_path / "b.npy"), "--column", "b"]
    assert main(["refresh", str(tmp_path / "old.safetensors"), *words]) == 0
    assert np.load(tmp_path / "b.npy").tolist() == order(tmp_path)


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
    lines = (tmp_path / "out" / "made" / "curve.md").read_text().splitlines()
    assert lines[0] == f"nDCG@10: {100 * curves['old']:.2f} old, {100 * curves['new']:.2f} new."
    assert lines[2:4] == [
        "| gain kept, embedded anew | 0% | 50% | 100% |",
        "| --- | --- | --- | --- |",
    ]
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| hits", "| strange", "| random"]
    for line, gains in zip(lines[4:], curves["gain_kept"].values(), strict=True):
        cells = ["" if gain is None else f"{gain:.0%}" for gain in gains]
        assert line.split(" | ", 1)[1] == " | ".join(cells) + " |"
    details = json.loads((tmp_path / "out" / "made" / "artifact.json").read_text())["details"]
    (figure,) = details["figures"]
    assert figure["lines"]["labels"] == ["0%", "50%", "100%"]
    assert figure["lines"]["series"] == curves["gain_kept"] == details["curves"]["gain_kept"]
    assert details["table"] == "curve.md"
    assert curves["shares"] == [0, 0.5, 1]
    text = (tmp_path / "out" / "made" / "curve.json").read_text()
    assert text.startswith('{\n "shares"')
    assert main(["run", str(path), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert (tmp_path / "again" / "made" / "curve.json").read_text() == text


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"shares": [0, 1.1]}, "shares"),
        ({"shares": [-0.1]}, "shares"),
        ({"shares": []}, "shares"),
        ({"texts": "queries"}, "texts"),
    ],
)
def test_shares_and_sides_without_a_curve_are_refused(
    berts: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, object],
    place: str,
) -> None:
    path = recipe(tmp_path, "refresh", old=str(berts[0]), new=str(berts[1]), **options)
    assert main(["check", str(path)]) == 2
    assert place in capsys.readouterr().err


def test_of_documents_that_are_hit_alike_the_strangest_come_first() -> None:
    hits, strange = np.array([1.0, 0, 2, 0, 1]), np.array([3.0, 1, 0, 2, 5])
    assert by_hits(hits, strange).tolist() == [2, 4, 0, 3, 1]


def test_strangeness_is_in_units_of_the_fit(tmp_path: Path) -> None:
    made = write_translation(tmp_path / "by", 24)
    given = vectors(300, 24)
    given[7] = 0
    each = strangeness_of_each(made, [given[:100], given[100:]])
    assert each[7] == -1
    full = np.delete(given, 7, axis=0)
    assert np.delete(each, 7).mean() == pytest.approx(made.strangeness(full), rel=1e-6)
    assert strangeness_of_each(made, []).shape == (0,)


def test_many_queries_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, documents = vectors(17, 16, seed=1), vectors(30, 16, seed=2)
    whole = Hits(queries)
    whole.add(documents, 0)
    monkeypatch.setattr("emberge_index.refresh_verb.QUERIES", 5)
    parts = Hits(queries)
    parts.add(documents[:8], 0)
    parts.add(documents[8:], 8)
    np.testing.assert_allclose(parts.weights(30), whole.weights(30), rtol=1e-12)
    few = Hits(queries)
    few.add(documents[:3], 0)
    assert few.weights(3).sum() == pytest.approx(17 * (1 / np.log2([2, 3, 4])).sum())


def test_the_first_rows_are_shown_and_that_there_are_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_translation(tmp_path / "by", 24, 16)
    np.save(tmp_path / "old.npy", vectors(11, 24))
    found = order(tmp_path)
    shown = capsys.readouterr().out
    assert f"embed first: {', '.join(map(str, found[:10]))}, …" in shown
    assert "11 row numbers" in shown
    (tmp_path / "first.npy").unlink()
    np.save(tmp_path / "old.npy", vectors(10, 24))
    found = order(tmp_path)
    assert f"{found[9]}\n" in capsys.readouterr().out
    assert main(["refresh", str(tmp_path / "old.npy"), "--by", "x", "--out", "first.txt"]) == 2
