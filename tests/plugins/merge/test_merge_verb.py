"""`emberge merge` reads its words as options of the step and of the strategy."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import yaml
from emberge import EmbergeError, RecipeError, load_plugins
from emberge.cli.arguments import parse
from emberge_merge.hooks import register_verbs
from emberge_merge.one_merge import read_merge


def given(*words: str) -> argparse.Namespace:
    """The options of the verb in these words."""
    return parse(["merge", *words], register_verbs())


@pytest.mark.parametrize(
    "words", ["./a --out merged ./b", "--out merged ./a ./b", "./a ./b --out merged"]
)
def test_models_and_options_may_be_in_any_order(words: str) -> None:
    options = given(*words.split(), "--set", "t=1")
    assert (options.models, options.out) == (["./a", "./b"], Path("merged"))
    assert options.overrides == ["t=1"], "each option counts once"


def test_an_option_is_refused_beside_a_file_that_has_its_methods_options(tmp_path: Path) -> None:
    file = tmp_path / "mergekit.yml"
    file.write_text("models: []\n")
    words = [str(file), *["--out", "m", "--set", "seed=3", "--set", "a.b=1", "--set", "t=0.5"]]
    with pytest.raises(RecipeError, match="says what is merged and how; leave out --set t"):
        read_merge(given(*words), load_plugins(block=["*"]))
    for names in (["seed=3"], [" seed =3"], ["a.b=1"]):
        options = given(str(file), "--out", "m", "--set", *names)
        with pytest.raises(EmbergeError) as caught:  # no plugin reads the file here
            read_merge(options, load_plugins(block=["*"]))
        assert "leave out" not in str(caught.value)


SET: dict[str, dict[str, object]] = {
    "./a ./b --set missing=average_present --set rules=[{filter:~pooler,strategy:~linear}]": {
        "missing": "average_present",
        "rules": [{"filter": "pooler", "strategy": "linear"}],
    },
    "./a ./b --strategy slerp --set t=0.3 --set dtype=float64": {
        "strategy": {"slerp": {"t": 0.3}},
        "dtype": "float64",
    },
    # Both have the option `keep`, and the strategy was named.
    "./a ./b --base ./c --strategy keep_base --set by=linear --set keep=0.5": {
        "base": "./c",
        "strategy": {"keep_base": {"by": "linear", "keep": 0.5}},
    },
    "--set models=[{model:~./a,part:~text},./b] --set tokenizer=./b": {
        "models": [{"model": "./a", "part": "text"}, "./b"],
        "tokenizer": "./b",
    },
    "./a ./b --set strategy=slerp --set t=0.5 --weight 1,2": {
        "models": [{"model": "./a", "weight": 1.0}, {"model": "./b", "weight": 2.0}],
        "strategy": {"slerp": {"t": 0.5}},
    },
}


@pytest.mark.parametrize("words", SET)
def test_every_option_of_the_step_can_be_set(words: str) -> None:
    options = given(*(w.replace("~", " ") for w in words.split()), "--out", "m")
    recipe = yaml.safe_load(read_merge(options, load_plugins()).text)
    assert recipe["steps"]["merged"]["merge"] == {"models": ["./a", "./b"], **SET[words]}


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "--set mising=strict": "did you mean 'missing'",
        "--set t=0.3": "step 'merge' has no option 't'",
        "--dtype float32 --set out_dtype=float16": "'out_dtype' is given twice",
        "--set models=[./c]": "'models' is given twice",
        "--set t": "--set t: write it as option=value",
        "--weight x,y": "weights are numbers",
        "--strategy slerp --set tt=0.3": "'slerp' has no option 'tt'",
    }.items(),
)
def test_unknown_options_and_options_given_twice_are_refused(words: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read_merge(given("./a", "./b", *words.split(), "--out", "m"), load_plugins())
