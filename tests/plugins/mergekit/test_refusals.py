"""What is wrong with a config is said at the user's own line, and options we lack are refused by name."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from emberge import RecipeError
from emberge.cli.main import main
from emberge_mergekit.recipe.translate import translate

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
        translate(dedent(text), FILE)
    return [str(problem).removeprefix(f"{FILE}:") for problem in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new, 1)


STOCK = "models: [{model: me/a}]\nbase_model: me/c\nmerge_method: model_stock\n"
UNSUPPORTED = {
    "2: 'override_architecture' is not supported; tensors are matched by their names here": changed(
        "me/a", "{model: {path: me/a}, override_architecture: LlamaForCausalLM}"
    ),
    "3: 'residual_weight' is not supported; mergekit does not use it either": """\
        slices:
          - sources: [{model: me/a, layer_range: [0, 4]}]
            residual_weight: 0.5
        merge_method: passthrough
        """,
    "2: modules: 'text_decoder' is not supported, as only text models are merged": """\
        modules:
          text_decoder:
            models: [{model: me/a}]
          vision_tower:
            models: [{model: me/a}]
        merge_method: passthrough
        """,
    "7: 'normalize' over depth is not supported; give it by filter": PLAIN
    + "parameters: {normalize: [true, false]}\n",
    "7: 'dtype' cannot be 'int64'; there are float32": PLAIN + "dtype: int64\n",
}


# What is wrong first, and the config.
WRONG = {
    **UNSUPPORTED,
    "3: merge method 'linear' has no parameter 'wieght'; did you mean 'weight'?": changed(
        "{weight: 0.5}", "{wieght: 0.5}"
    ),
    "7: merge method 'linear' has no parameter 't'; it has weight, normalize": PLAIN
    + "parameters: {t: 0.5}\n",
    "3: 'normalize' is one for the whole merge and is not read beside a model": changed(
        "{weight: 0.5}", "{weight: 0.5, normalize: true}"
    ),
    "7: the config has no 'merge_metod'; did you mean 'merge_method'?": PLAIN
    + "merge_metod: ties\n",
    "3: an entry of 'models' has no 'parameter'; did you mean 'parameters'?": changed(
        "    parameters", "    parameter"
    ),
    "3: an entry of 'weight' has no 'filer'; did you mean 'filter'?": changed(
        "{weight: 0.5}", "{weight: [{filer: mlp, value: 1}, {value: 0}]}"
    ),
    "7: 'tokenizer' has no 'sorce'; did you mean 'source'?": PLAIN + "tokenizer: {sorce: union}\n",
    "6: there is no merge method 'liner'; did you mean 'linear'?": changed("linear", "liner"),
    "1: a config needs 'merge_method'": changed("merge_method: linear\n", ""),
    "2: 'me/a' has no weight; give it one under 'parameters'": changed(
        "    parameters: {weight: 0.5}\n", ""
    ),
    "7: 'me/c' has no weight ('linear' weighs the base like any other model)": PLAIN
    + "base_model: me/c\n",
    "1: merge method 'ties' needs a base": changed("linear", "ties"),
    "1: merge method 'slerp' takes 2 models, the base included, and there are 3": changed(
        "linear", "slerp"
    )
    + "base_model: me/c\n",
    "1: merge method 'model_stock' takes at least 3 models, the base included": STOCK,
    "4: 'me/a' is listed twice": changed("me/b", "me/a"),
    "1: a config has one of 'models', 'slices' and 'modules', not 'models' and 'modules'": PLAIN
    + "slices: []\nmodules: {default: {models: [{model: a}]}}\n",
    "2: all sources of a slice must have the same number of layers": """\
        slices:
          - sources:
              - {model: me/a, layer_range: [0, 4]}
              - {model: me/b, layer_range: [0, 3]}
        merge_method: linear
        parameters: {weight: 1}
        """,
    "1: 'layer_range' is [first, end], the end being left out": """\
        slices: [{sources: [{model: me/a, layer_range: [4, 4]}]}]
        merge_method: passthrough
        """,
    "1: the base 'me/c' must be a source of each slice": """\
        slices: [{sources: [{model: me/a, layer_range: [0, 4]}]}]
        merge_method: ties
        base_model: me/c
        parameters: {weight: 1}
        """,
    "3: the first filter that fits wins, so a value for all tensors stands last": changed(
        "{weight: 0.5}", "{weight: [{value: 1}, {filter: mlp, value: 0}]}"
    ),
    "3: 'weight' takes a number, not 'half'": changed("0.5", "half"),
    "3: 'weight' takes a value or a list over depth, not an empty list": changed("0.5", "[]"),
    "1: the config: 'models' is written twice": PLAIN + "models: []\n",
    "8: 'tokenizer' and 'tokenizer_source' say the same; keep one": PLAIN
    + "tokenizer_source: base\ntokenizer: {source: base}\n",
    "2: 'me/a@x@y' is no model: write path@revision+adapter@revision": changed("me/a", "me/a@x@y"),
    "8: this is not YAML": PLAIN + "dtype: [\n",
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said_at_its_line(said: str) -> None:
    found = faults(WRONG[said])
    assert found[0].startswith(said), found


def test_every_fault_is_told_at_once() -> None:
    text = changed("{weight: 0.5}", "{wieght: 0.5}") + "dtpye: float32\nparameters: {normlize: 1}\n"
    assert [fault.partition(":")[0] for fault in faults(text)] == ["3", "7", "8"]


def test_configs_must_not_name_themselves_or_one_another_in_a_ring() -> None:
    def config(name: str, model: str) -> str:
        models = f"models: [{{model: {model}, parameters: {{weight: 1}}}}]"
        return f"name: {name}\n{models}\nmerge_method: linear\n"

    assert faults(config("x", "x")) == ["2: config 'x' names itself as a model"]
    assert faults("---\n".join([config("x", "y"), config("y", "x")])) == [
        "2: configs 'x' and 'y' need one another",
        "6: configs 'y' and 'x' need one another",
    ]


def test_names_of_configs_are_not_shared() -> None:
    assert faults("---\n".join([PLAIN, PLAIN]))[0].startswith("8: two configs are without a name")
    named = "name: x\n" + PLAIN
    assert faults("---\n".join([named, named]))[0].startswith("9: two configs are called 'x'")


def test_a_missing_folder_is_named_at_the_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    config.write_text(changed("me/b", "./b"))
    assert main(["check", str(config), "--offline"]) == 2
    said = capsys.readouterr().err
    assert f"{config}:4: './b': there is no such folder" in said


@pytest.mark.parametrize("name", ["./config.yml", "config.yml"])
def test_a_config_is_no_model_of_its_own(name: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    config.write_text(changed("me/b", name))
    with pytest.raises(RecipeError, match=rf"{config}:4: '{name}' is this config itself"):
        translate(config.read_text(), config)
    (tmp_path / "other.bin").touch()
    with pytest.raises(RecipeError, match=r":2: 'other.bin' is a file; a model is a folder"):
        translate(changed("me/a", "other.bin"), config)


def test_a_config_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    for verb in (["merge", str(config)], ["run", str(config)], ["check", str(config)]):
        out = ["--out", str(tmp_path / "out")] if verb[0] != "check" else []
        assert main([*verb, *out]) == 2
        assert f"{config}: there is no such" in capsys.readouterr().err


def test_a_folder_at_two_places_is_ambiguous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "there"):
        (tmp_path / place / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(RecipeError, match="'a' is a folder beside the config and another one"):
        translate(changed("me/a", "a"), tmp_path / "there" / "config.yml")


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(RecipeError, match=r"'\./a' is not on the hub and has no revision 'v2'"):
        translate(changed("me/a", "./a@v2"), tmp_path / "config.yml")
