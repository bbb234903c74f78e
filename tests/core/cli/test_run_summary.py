"""The summary that a job of CI shows: outcome, tables and costs, whatever the end."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from emberge.cli.main import Terminated, main

RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [%s, %s], strategy: linear}
  scores:
    evaluate:
      models: [%s, $soup]
      evaluators: {mteb: {data: data/datasets.yaml}}
      require:
      - {model: $soup, %s: %s, tasks: all, margin: %s}
"""
CATALOGUE = """
format: 1
eval:
- {name: similar, dir: similar, task: sts, domain: in, score_range: [0, 5]}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"query": f"sort the list {'again ' * i}", "pos": ["sort a list"], "pos_scores": [5.0 - i]}
        for i in range(5)
    ]
    folder = tmp_path / "data" / "similar"
    folder.mkdir(parents=True)
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "data" / "datasets.yaml").write_text(CATALOGUE)
    return tmp_path


def run(place: Path, berts: list[Path], claim: str, margin: int) -> tuple[int, str]:
    one, two, _ = berts
    (place / "gate.yaml").write_text(RECIPE % (one, two, one, claim, one, margin))
    code = main(["run", "gate.yaml", "--out", "out", "--summary", "ci/summary.md", "--quiet"])
    return code, (place / "ci" / "summary.md").read_text()


def test_an_unmet_requirement_comes_first_in_the_summary(place: Path, berts: list[Path]) -> None:
    code, text = run(place, berts, "not_worse_than", 100)
    assert code == 0
    assert text.startswith("## gate.yaml: done\n")
    assert (place / "out" / "scores" / "scores.md").read_text().strip() in text
    assert "| soup | merge:merge | done |" in text
    code, text = run(place, berts, "better_than", 100)
    assert code == 3
    assert text.startswith("## gate.yaml: a requirement is not met\n\n- step 'scores': not met: ")
    assert "NOT MET" in text
    assert "95% intervals" in text
    assert "| scores | evaluate:evaluate | done: 1 of 1 requirement not met |" in text


def test_a_stop_is_no_failure_and_a_failure_is_shown_too(
    place: Path, berts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Mock(side_effect=[Terminated, MemoryError("not enough")])
    monkeypatch.setattr("emberge_mteb.scoring.score_task", ends)
    code, text = run(place, berts, "not_worse_than", 100)
    assert code == 143
    assert text.startswith("## gate.yaml: stopped; the same command goes on from here\n\n#")
    code, text = run(place, berts, "not_worse_than", 100)
    assert code == 1
    assert text.startswith("## gate.yaml: failed")
    assert "not enough" in text
    assert "| scores.model=soup | evaluate:evaluate | failed |" in text
    assert "| soup | merge:merge | done |" in text
