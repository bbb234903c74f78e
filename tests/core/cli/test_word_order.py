"""Words of a verb may come in any order; messages name every missing word, and `--` ends the options."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.cli.arguments import parse


def test_all_missing_words_are_named() -> None:
    with pytest.raises(RecipeError, match="arguments are required: RECIPE, --out"):
        parse(["run"], {})


def test_words_after_two_dashes_are_no_options() -> None:
    options = parse(["list", "--", "--long"], {})
    assert (options.having, options.long) == (["--long"], False)


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
        "--out",
        "m",
        "--set",
        "seed=3",
        "--set",
        "a.b=1",
        "--set",
        "t=0.5",
    ]
    with pytest.raises(RecipeError, match=r"--set t=0\.5: .*`parameters` there"):
        read_merge(parse(words, {}), load_plugins(block=["*"]))
    for names in (["seed=3"], [" seed =3"], ["a.b=1"]):
        given = parse(["merge", str(file), "--out", "m", "--set", *names], {})
        with pytest.raises(EmbergeError) as caught:  # no plugin reads the file here
            read_merge(given, load_plugins(block=["*"]))
        assert "methods itself" not in str(caught.value)
