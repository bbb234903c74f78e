"""Configs of several documents that name one another, merged in their order as by mergekit's own command."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.cli.main import main

from tests.plugins.mergekit.documented import filled
from tests.plugins.mergekit.peer import (
    assert_same,
    checked,
    family,
    ours,
    state_of,
    theirs_of_several,
)

STAGES = {
    "three stages, the last without a name": """
        name: first-merge
        merge_method: linear
        models: [{model: A}, {model: B}]
        parameters: {weight: 0.5}
        dtype: float32
        ---
        name: second-merge
        merge_method: slerp
        base_model: first-merge
        models: [{model: C}]
        parameters: {t: 0.5}
        dtype: float32
        ---
        merge_method: ties
        base_model: BASE
        models:
          - model: second-merge
            parameters: {density: 0.6, weight: 0.5}
          - model: B
            parameters: {density: 0.8, weight: 0.5}
    """,
    "in the wrong order, with a name that no step can have": """
        models: [{model: C}]
        merge_method: slerp
        base_model: soup-v1.5
        parameters: {t: 0.3}
        dtype: float32
        ---
        name: soup-v1.5
        models: [{model: A}, {model: B}]
        merge_method: linear
        parameters: {weight: 0.5}
    """,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return family(tmp_path_factory.mktemp("llamas"))


@pytest.mark.parametrize("case", STAGES)
def test_the_last_of_several_is_mergekits(
    case: str, models: dict[str, Path], tmp_path: Path
) -> None:
    text = filled(STAGES[case], models)
    other = theirs_of_several(text, tmp_path / "theirs")
    config = tmp_path / "config.yml"
    config.write_text(text)
    if "three stages" in case:  # each of them is a result of a run
        made = ours(text, tmp_path / "ours")
        for name in ("first-merge", "second-merge"):
            between = (made.parent / name).resolve()
            assert_same(state_of(between), state_of(tmp_path / "between" / name))
        assert_same(state_of(made), state_of(other))
        return
    assert main(["merge", str(config), "--out", str(tmp_path / "merged"), "--quiet"]) == 0
    assert_same(state_of(tmp_path / "merged"), state_of(other))


def test_several_results_are_no_one_model(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [
        filled(f"name: {name}\nmodels: [{{model: {name}}}]\nmerge_method: passthrough\n", models)
        for name in "AB"
    ]
    config = tmp_path / "config.yml"
    config.write_text("---\n".join(documents))
    assert main(["merge", str(config), "--out", str(tmp_path / "merged")]) == 2
    assert "makes several models, A, B; get them all by `emberge run" in capsys.readouterr().err


def test_a_document_that_names_what_is_not_there_is_refused(
    models: dict[str, Path], tmp_path: Path
) -> None:
    wrong_order = next(case for case in STAGES if "wrong order" in case)
    text = filled(STAGES[wrong_order], models).replace("base_model: soup-v1.5", "base_model: ./sop")
    with pytest.raises(RecipeError, match=r"config.yml:\d+: './sop': there is no such folder"):
        checked(text, tmp_path)
