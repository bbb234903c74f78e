"""Queries that find other documents under a new model: groups by hand, the verb and its files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.query_changes import changes_of, groups_of, topics_of

from tests.support.tiny import WORDS


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


def clouds(*sizes: int, noise: float = 0.05) -> np.ndarray:  # type: ignore[type-arg]
    """Unit vectors about the axes, so many about each."""
    rng = np.random.default_rng(1)
    rows = np.repeat(np.eye(len(sizes)), sizes, axis=0)
    rows += noise * rng.normal(size=rows.shape)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_queries_that_are_alike_are_of_one_group() -> None:
    rows = clouds(30, 20, 10, 5)
    group = groups_of(rows, 4)
    assert (group == groups_of(rows, 4)).all()
    own = np.repeat(np.arange(4), (30, 20, 10, 5))
    assert len({(int(a), int(b)) for a, b in zip(own, group, strict=True)}) == 4
    assert set(groups_of(np.repeat(rows[:1], 7, axis=0), 3)) == {0}
    assert sorted(groups_of(rows[[0, 40, 0]], 9)) in ([0, 0, 1], [0, 1, 1])
    assert set(groups_of(rows, 1)) == {0}


def test_topics_are_named_and_the_worst_comes_first() -> None:
    """Passwords keep everything, rents half, and of the ships' queries the first has another first hit."""
    queries = [
        *("reset my password", "password of the account", "a lost password"),
        *("the rent of may", "pay rent", "is rent due", "rent rises"),
        *("a ship", "one ship"),
    ]
    rows = clouds(3, 4, 2)
    old = [[0, 1]] * 9
    new = [[0, 1]] * 3 + [[0, 2]] * 4 + [[3, 0], [0, 3]]
    ships, rents, passwords = topics_of(rows, queries, changes_of(old, new), 3)
    assert [one.words[0] for one in (ships, rents, passwords)] == ["ship", "rent", "password"]
    assert [one.size for one in (ships, rents, passwords)] == [2, 4, 3]
    assert (ships.changes.overlap, ships.changes.churn) == (0.5, 0.5)
    assert (rents.changes.overlap, rents.changes.churn) == (0.5, 0.0)
    assert passwords.changes.overlap == 1
    assert rents.central == 3 + int(np.argmax(rows[3:7] @ rows[3:7].mean(0)))


def test_a_topic_without_telling_words_has_none() -> None:
    queries = ["one", "two", "three", "four"]
    changes = changes_of([[0]] * 4, [[0]] * 4)
    (only,) = topics_of(clouds(4), queries, changes, 1)
    assert only.words == ()


def test_the_verb_groups_queries_by_topic(
    bert: Path, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    files = {}
    for name, count in (("queries", 20), ("documents", 40)):
        files[name] = tmp_path / f"{name}.txt"
        files[name].write_text("\n".join(" ".join(rng.choices(WORDS, k=6)) for _ in range(count)))
    words = [f"--{name}={path}" for name, path in files.items()]
    out = tmp_path / "made" / "diff.json", tmp_path / "diff.html"
    asked = [*words, "--topics=4", "--json", str(out[0]), "--page", str(out[1])]
    assert main(["diff-queries", str(bert), str(berts[0]), *asked]) == 0
    found = json.loads(out[0].read_text())
    topics = found["topics"]
    assert sum(one["queries"] for one in topics) == 20
    assert [one["overlap"] for one in topics] == sorted(one["overlap"] for one in topics)
    for place, topic in enumerate(topics):
        own = [one for one in found["queries"] if one["topic"] == place]
        assert len(own) == topic["queries"]
        assert np.mean([one["overlap"] for one in own]) == pytest.approx(topic["overlap"])
        assert np.mean([one["old"][0] != one["new"][0] for one in own]) == topic["churn"]
        assert topic["central"] in [one["query"] for one in own]
    shown = capsys.readouterr().out
    name = ", ".join(topics[0]["words"]) or topics[0]["central"]
    assert shown.startswith("topics, the worst first")
    assert f"{name}: " in shown
    page = out[1].read_text()
    titles = (
        *("Topics, the worst first", ">Topics<"),
        *("Old hits among the first", "Queries that change most"),
    )
    assert [title for title in titles if title not in page] == []
    assert sorted(titles, key=page.index) == [*titles]
    assert topics[0]["central"] in page
    assert main(["diff-queries", str(bert), str(berts[0]), *words, "--topics", "0"]) == 2
    assert "--topics: needs a whole number of at least 1" in capsys.readouterr().err


def test_files_that_cannot_be_used_are_refused_before_work(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.txt").write_text("\n")
    none = str(tmp_path / "none.txt")
    asked = ["diff-queries", str(bert), str(bert), "--queries", none, "--documents", none]
    assert main(asked) == 2
    assert "none.txt: has no text" in capsys.readouterr().err
    assert main([*asked, "--json", str(tmp_path / "none.txt" / "x.json")]) == 2
    said = capsys.readouterr().err
    assert "none.txt/x.json: its folder cannot be made" in said
