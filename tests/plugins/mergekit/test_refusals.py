"""What is wrong with a config is said at the user's own line, and options we lack are refused by name."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from emberge import RecipeError, parse_recipe
from emberge.cli.main import main

from tests.plugins.mergekit.peer import plugins

FILE = Path("config.yml")
PLAIN = """\
models:
  - model: me/a
    parameters: {weight: 0.5}
  - model: me/b
    parameters: {weight: 0.5}
merge_method: linear
"""


def faults(text: str) -> list[str]:
    """What is wrong with a config, each as `line: message`."""
    with pytest.raises(RecipeError) as caught:
        parse_recipe(dedent(text), plugins(), path=FILE)
    return [str(problem).removeprefix(f"{FILE}:") for problem in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new, 1)


# What is wrong first, and the config.
WRONG = {
    "7: 'normalize' over depth is not supported; give it by filter": PLAIN
    + "parameters: {normalize: [true, false]}\n",
    "3: merge method 'linear' has no parameter 'wieght'; did you mean 'weight'?": changed(
        "{weight: 0.5}", "{wieght: 0.5}"
    ),
    "7: merge method 'linear' has no parameter 't'; it has weight, normalize": PLAIN
    + "parameters: {t: 0.5}\n",
    "3: 'normalize' is one for the whole merge and is not read at a model": changed(
        "{weight: 0.5}", "{weight: 0.5, normalize: true}"
    ),
    "7: the config has no 'merge_metod'; did you mean 'merge_method'?": PLAIN
    + "merge_metod: ties\n",
    "6: there is no merge method 'liner'; did you mean 'linear'?": changed("linear", "liner"),
    "1: the config needs 'merge_method'": changed("merge_method: linear\n", ""),
    "2: 'me/a' has no weight; give it one under 'parameters'": changed(
        "    parameters: {weight: 0.5}\n", ""
    ),
    "1: 'me/c' has no weight; give it one": PLAIN + "base_model: me/c\n",
    "1: merge method 'ties': it needs a base; name it as base_model": changed("linear", "ties"),
    "1: 'slices' is taken for one slice with all layers of each model": """\
        slices: [{sources: [{model: me/a, layer_range: [1, 4]}]}]
        merge_method: passthrough
        """,
    "2: 'slices' is taken for one slice with all layers of each model": """\
        merge_method: passthrough
        slices:
          - sources: [{model: me/a, layer_range: [0, 4]}]
          - sources: [{model: me/b, layer_range: [0, 4]}]
        """,
    "3: 'slices' is taken for one slice with all layers of each model": """\
        merge_method: linear
        parameters: {weight: 1}
        slices:
          - sources:
              - {model: me/a, layer_range: [0, 4]}
              - {model: me/b, layer_range: [0, 3]}
        """,
    "1: merge method 'ties': Base input is not present in merge inputs": """\
        slices: [{sources: [{model: me/a, layer_range: [0, 4]}]}]
        merge_method: ties
        base_model: me/c
        parameters: {weight: 1}
        """,
    "3: 'weight': the first filter that fits wins, so a value for all tensors stands last": changed(
        "{weight: 0.5}", "{weight: [{value: 1}, {filter: mlp, value: 0}]}"
    ),
    "3: 'weight' cannot be 'half': Input should be a valid number": changed("0.5", "half"),
    "3: 'weight' is an empty list": changed("0.5", "[]"),
    "5: 'weight' is an empty list": PLAIN.replace(
        "{weight: 0.5}", "{weight: [{filter: a, value: []}]}"
    ),
    "7: 'models' is written twice, first at config.yml:1": PLAIN + "models: []\n",
    "2: models.0.model: Input should be a valid dictionary": changed("me/a", "5"),
    "3: models.0.parameters.weight takes a value, a list over depth": changed("0.5", "null"),
    "6: the tokenizer is the base's, and there is none": PLAIN + "tokenizer_source: base\n",
    "8: this is not YAML": PLAIN + "dtype: [\n",
}


@pytest.mark.parametrize("said", WRONG)
def test_a_problem_of_a_config_names_its_line(said: str) -> None:
    found = faults(WRONG[said])
    assert any(fault.startswith(said) for fault in found), found


def test_all_problems_of_a_config_are_reported_at_once() -> None:
    text = changed("{weight: 0.5}", "{wieght: 0.5}") + "dtpye: float32\nparameters: {normlize: 1}\n"
    assert [fault.partition(":")[0] for fault in faults(text)] == ["3", "7", "8"]


def test_several_configs_in_one_file_are_refused() -> None:
    assert "expected a single document" in faults("---\n".join([PLAIN, PLAIN]))[0]


def test_a_problem_after_the_translation_names_a_line_of_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    config.write_text(changed("me/b", "./b"))
    assert main(["check", str(config), "--offline"]) == 2
    said = capsys.readouterr().err
    assert f"{config} (translated):7: './b': there is no such folder" in said


def test_a_missing_config_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yml"
    for verb in (["merge", str(config)], ["run", str(config)], ["check", str(config)]):
        out = ["--out", str(tmp_path / "out")] if verb[0] != "check" else []
        assert main([*verb, *out]) == 2
        assert f"{config}: there is no such" in capsys.readouterr().err
