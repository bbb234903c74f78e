"""A check names the faults of every phase at once, and none that only another fault causes."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import Problem, RecipeError, check_recipe, run_recipe
from emberge.recipes import draft_recipe

from tests.support.steps import toy


def places(text: str, folder: Path) -> dict[str, list[str]]:
    """The lines of a recipe that a check finds at fault, each with its messages."""
    draft = draft_recipe(text, toy(), path=folder / "r.yaml")
    errors = check_recipe(draft, toy()).errors
    return {
        line: [e.message for e in errors if e.where.endswith(f":{line}")]
        for line in sorted({error.where.rpartition(":")[2] for error in errors})
    }


def only(faults: list[str]) -> str:
    (fault,) = faults
    return fault


def test_grammar_models_and_data_are_found_together(tmp_path: Path) -> None:
    text = """\
steps:
  a: {write: {wrod: x}}
  b: {write: {word: wrong}}
  c: {write: {data: ./rows.jsonl}}
  d: {write: {of: ./none}}
"""
    faults = places(text, tmp_path)
    assert "did you mean 'word'" in only(faults["2"])
    assert only(faults["3"]) == "this word is wrong"
    assert "rows.jsonl" in only(faults["4"])
    assert "none" in only(faults["5"])
    assert len(faults) == 4


def test_the_models_and_files_of_a_step_with_a_wrong_option_are_looked_for(tmp_path: Path) -> None:
    text = """\
steps:
  a:
    write:
      wrod: x
      of: ./none
      data: ./rows.jsonl
"""
    faults = places(text, tmp_path)
    assert "no option 'wrod'" in only(faults["4"])
    assert "./none" in only(faults["5"])
    assert "./rows.jsonl" in only(faults["6"])


@pytest.mark.parametrize(
    "broken", ["{wrote: {}}", "{write: {wrod: x}}", "{}", "{write: {}, foreach: {a: 3}}", "[write]"]
)
def test_what_uses_a_faulty_step_is_checked_and_not_blamed(broken: str, tmp_path: Path) -> None:
    text = f"steps:\n  a: {broken}\n  b: {{write: {{of: $a, word: wrong}}}}\n"
    text += "  c: {write: {of: [$b, $a]}}\n"
    faults = places(text, tmp_path)
    assert only(faults.pop("3")) == "this word is wrong"
    assert set(faults) == {"2"}


def test_a_ring_hides_neither_the_faults_of_its_steps_nor_of_their_users(tmp_path: Path) -> None:
    text = """\
steps:
  a: {write: {of: $b, wrod: x}}
  b: {write: {of: $a}}
  c: {write: {of: $b, word: wrong}}
  d: {write: {of: $d}}
"""
    faults = places(text, tmp_path)
    assert sorted(message.partition("'")[0] for message in faults["2"]) == [
        "step ",
        "the steps a -> b -> a need one another",
    ]
    assert only(faults["4"]) == "this word is wrong"
    assert only(faults["5"]) == "step 'd' needs its own output"
    assert len(faults) == 3


def test_a_key_written_twice_hides_no_other_fault(tmp_path: Path) -> None:
    text = "seed: 1\nseed: 2\nsteps:\n  a: {write: {of: ./none}}\n"
    assert set(places(text, tmp_path)) == {"2", "4"}


def test_a_misspelt_option_is_not_also_missing(tmp_path: Path) -> None:
    from tests.support.reading import faults

    text = "steps:\n  a: {fit: {modle: ./m, data: d.jsonl}}\n"
    assert only(faults(text)).startswith(
        "2: step 'fit' has no option 'modle'; did you mean 'model'"
    )


def test_equal_steps_are_named_beside_other_faults_but_not_where_a_variable_is_unused(
    tmp_path: Path,
) -> None:
    text = """\
steps:
  a: {write: {}}
  b: {write: {}}
  c: {foreach: {word: [x, y]}, write: {ticks: 2}}
  d: {write: {wrod: x}}
"""
    faults = places(text, tmp_path)
    assert "are the same run" in only(faults["3"])
    assert "'word' is never used" in only(faults["4"])
    assert set(faults) == {"3", "4", "5"}


def test_a_draft_with_problems_is_not_run(tmp_path: Path) -> None:
    draft = draft_recipe("steps:\n  a: {write: {}}\n  b: {write: {wrod: x}}\n", toy())
    assert [step.id for step in draft.steps] == ["a"]
    assert [step.id for step in draft.unsound] == ["b"]
    with pytest.raises(RecipeError) as caught:
        run_recipe(draft, tmp_path / "out", toy(), quiet=True)
    assert caught.value.problems == draft.problems
    assert all(isinstance(problem, Problem) for problem in draft.problems)
    assert not (tmp_path / "out").exists()
