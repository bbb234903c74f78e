"""Where a verb writes is checked before it works, and its messages have no raw errors and no empty sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.cli.arguments import parse
from emberge.cli.main import main

VERBS = {
    "diff": ["diff", "./a", "./b", "--json"],
    "run": ["run", "recipe.yaml", "--out", "out", "--summary"],
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", ["file/inside", "."])
def test_a_file_that_cannot_be_written_is_refused_before_models_are_looked_for(
    verb: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = VERBS[verb]
    assert main([*words, path]) == 2
    said = capsys.readouterr().err
    assert f"argument {words[-1]}: {path}" in said
    assert "./a" not in said


def test_a_missing_folder_of_an_output_is_made(place: Path) -> None:
    main([*VERBS["diff"], "new/folder/diff.json"])  # there are no models
    assert (place / "new/folder").is_dir()


def test_missing_words_are_named_and_after_two_dashes_none_is_an_option() -> None:
    with pytest.raises(RecipeError, match="arguments are required: RECIPE, --out"):
        parse(["run"], {})
    assert parse(["list", "--", "--kind"], {}).having == ["--kind"]


@pytest.mark.parametrize(
    "words", ["./a --out merged ./b", "--out merged ./a ./b", "./a ./b --out merged"]
)
def test_words_and_options_may_take_turns(words: str) -> None:
    options = parse(["merge", *words.split(), "--set", "t=1"], {})
    assert (options.models, options.out) == (["./a", "./b"], Path("merged"))
    assert options.overrides == ["t=1"], "each option counts once"


def test_an_option_is_refused_beside_a_file_that_has_its_methods_options(tmp_path: Path) -> None:
    from emberge import EmbergeError, load_plugins
    from emberge.cli.merge_arguments import read_merge

    file = tmp_path / "mergekit.yml"
    file.write_text("models: []\n")
    words = [
        "merge",
        str(file),
        *["--out", "m", "--set", "seed=3", "--set", "a.b=1", "--set", "t=0.5"],
    ]
    with pytest.raises(RecipeError, match=r"--set t=0\.5: .*`parameters` there"):
        read_merge(parse(words, {}), load_plugins(block=["*"]))
    for names in (["seed=3"], [" seed =3"], ["a.b=1"]):
        given = parse(["merge", str(file), "--out", "m", "--set", *names], {})
        with pytest.raises(EmbergeError) as caught:  # no plugin reads the file here
            read_merge(given, load_plugins(block=["*"]))
        assert "methods itself" not in str(caught.value)


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
    import yaml
    from emberge import load_plugins
    from emberge.cli.merge_arguments import read_merge

    given = parse(["merge", *(w.replace("~", " ") for w in words.split()), "--out", "m"], {})
    recipe = yaml.safe_load(read_merge(given, load_plugins()).text)
    options = recipe["steps"]["merged"]["merge"]
    assert options == {"models": ["./a", "./b"], **SET[words]}


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "--set mising=strict": "did you mean 'missing'",
        "--set t=0.3": "step 'merge' has no option 't'",
        "--dtype float32 --set out_dtype=float16": "'out_dtype' is given twice",
        "--set models=[./c]": "'models' is given twice",
        "--strategy slerp --set tt=0.3": "'slerp' has no option 'tt'",
    }.items(),
)
def test_an_option_that_neither_has_or_given_twice_is_refused(words: str, said: str) -> None:
    from emberge import load_plugins
    from emberge.cli.merge_arguments import read_merge

    with pytest.raises(RecipeError, match=said):
        read_merge(parse(["merge", "./a", "./b", *words.split(), "--out", "m"], {}), load_plugins())
