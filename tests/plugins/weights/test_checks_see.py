"""A check names sets that do not exist, and counts what it could not look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import load_plugins, parse_recipe
from emberge.cli.main import main
from emberge.recipes import check_recipe

CHOICE = """steps:
  probe:
    probe_sets: {}
  found:
    find_weights:
      models: [./a, ./b]
      data: {path: $probe, SET}
"""
WRONG = {
    "only: [probe_papers], split: test": "",
    "only: [papers], split: test": "no evaluation set 'papers'; did you mean 'probe_papers'",
    "only: [probe_languages], split: test": "is of kind classification",
    "split: test": "is of kind classification",
    "only: [probe_papers]": "makes no development sets; write split: test",
}


def faults(text: str) -> list[str]:
    recipe = parse_recipe(text, load_plugins(), path=Path("r.yaml"))
    return [str(one) for one in check_recipe(recipe, load_plugins(), deep=False).errors]


@pytest.mark.parametrize("entry", WRONG)
def test_sets_of_a_step_that_is_yet_to_run_are_checked_by_name_and_kind(entry: str) -> None:
    found = [one for one in faults(CHOICE.replace("SET", entry)) if "./" not in one]
    assert len(found) == bool(WRONG[entry])
    assert all(one.startswith("r.yaml:7: ") and WRONG[entry] in one for one in found)


def test_a_check_counts_what_was_not_looked_at_and_lists_it_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "steps:\n"
        "  a:\n    merge: {models: [me/one, me/two], strategy: linear}\n"
        "  b:\n    merge: {models: [me/one, me/three], strategy: linear}\n"
        "  c:\n    train:\n      model: me/one\n      data: {hub: me/texts, task: retrieval}\n"
        "      backbone: text_encoder\n      loss: infonce\n      sampler: batch_shuffle\n"
    )
    assert main(["check", str(path), "--offline"]) == 0
    said = capsys.readouterr()
    assert "4 inputs could not be looked at from here; --long lists them\n" in said.out
    assert "me/one" not in said.err
    assert main(["check", str(path), "--offline", "--long"]) == 0
    said = capsys.readouterr()
    assert len([line for line in said.err.splitlines() if "'me/one'" in line]) == 1
    assert "and 2 other places" in said.err
