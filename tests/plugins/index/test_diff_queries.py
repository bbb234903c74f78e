"""Queries that find other documents under a new model: groups by hand, the verb and its files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.changes.changed_queries import changes_of, first_hits

from tests.support.tiny import WORDS


def test_hits_are_by_cosine_and_of_equal_ones_the_first() -> None:
    documents = np.array([[0.0, 1.0], [3.0, 0.0], [0.5, 0.0], [-1.0, 0.0]])
    assert first_hits(np.array([[2.0, 0.0]]), documents, 3).tolist() == [[1, 2, 0]]
    assert first_hits(np.array([[2.0, 0.0]]), documents).shape == (1, 4)


def test_the_gravest_change_comes_first() -> None:
    old = [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    new = [[0, 1, 2], [0, 2, 1], [0, 1, 3], [1, 0, 2], [3, 1, 2], [5, 4, 3]]
    found = changes_of(old, new)
    assert [(one.query, one.group) for one in found.all] == [
        (5, "first hit lost"),
        (4, "first hit lost"),
        (3, "first hit moved"),
        (2, "others changed"),
        (1, "order changed"),
        (0, "same"),
    ]
    assert found.overlap == pytest.approx((3 + 3 + 2 + 3 + 2 + 0) / 18)
    assert found.churn == pytest.approx(3 / 6)
    assert (found.all[1].lost, found.all[1].gained) == ((0,), (3,))


def test_the_verb_shows_and_writes_what_changes(
    bert: Path, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    files = {}
    for name, count in (("queries", 12), ("documents", 40)):
        files[name] = tmp_path / f"{name}.txt"
        lines = [" ".join(rng.choices(WORDS, k=6)) for _ in range(count)]
        files[name].write_text("\n".join(lines))
    words = [f"--{name}={path}" for name, path in files.items()]
    out = tmp_path / "diff.json", tmp_path / "diff.html"
    asked = [*words, "--json", str(out[0]), "--page", str(out[1])]
    assert main(["diff-queries", str(bert), str(berts[0]), *asked]) == 0
    found = json.loads(out[0].read_text())
    assert len(found["queries"]) == 12
    assert sum(found["groups"].values()) == 12
    worst = found["queries"][0]
    assert worst["overlap"] < 1
    assert worst["query"] in capsys.readouterr().out
    assert worst["query"] in out[1].read_text()
    assert main(["diff-queries", str(bert), str(bert), *words]) == 0
    assert "100% of the first 10 stay: 12 same" in capsys.readouterr().out


def test_files_that_cannot_be_used_are_refused_before_work(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.txt").write_text("\n")
    none = str(tmp_path / "none.txt")
    asked = ["diff-queries", str(bert), str(bert), "--queries", none, "--documents", none]
    assert main(asked) == 2
    assert "none.txt: has no text" in capsys.readouterr().err
    assert main([*asked, "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "folder that exists" in capsys.readouterr().err
