"""What a recipe may say, and what is said of a recipe that says it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError, hookimpl
from emberge.recipes import load_recipe
from emberge.recipes.parse.parse import parse_recipe

from tests.support import acme
from tests.support.reading import FILE, faults, fit, plugins, read, step


@pytest.mark.parametrize("word", ["on", "no", "12:30", "1_000", "1e"])
def test_words_mean_what_yaml_1_2_says(word: str) -> None:
    assert step(fit(f"notes: {word}")).notes == word


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-5", 1e-5),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
    ],
)
def test_numbers_truth_and_nothing_are_those_of_yaml_1_2(word: str, value: object) -> None:
    found = step(fit(f"notes: {word}")).notes
    assert found == value
    assert type(found) is type(value)


def test_anchors_and_merges_work_and_the_nearer_key_wins() -> None:
    text = """
x-common: &common {model: ./m, data: d.jsonl, learning_rate: 1}
x-other: &other {model: ./other, seed: 4}
steps:
  a:
    fit:
      <<: [*common, *other]
      learning_rate: 2
"""
    built = step(text)
    assert (built.model.text, built.learning_rate, built.seed) == ("./m", 2.0, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: the recipe is empty"),
        ("- a", "1: a recipe is a mapping with `steps`, not a list"),
        ("seed: 1", "1: a recipe needs `steps: {id: {kind: options}}`"),
        ("steps:\n\ta: 3", "2: a tab stands here; indent with spaces"),
        ("steps: [a", "1: this is not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a: 1\nseed:2\nb: 3", "2: a ':' is missing here, or the space after it"),
        ("a: 1\nb: 'x\nc: 3", "2: the quote that opens here is not closed"),
        ("steps: {a: {corpus: !!python/name:os.system 3}}", "1: the tag"),
        ("steps: &a {c: *a}", "1: the recipe is nested too deeply"),
        ("[" * 3000, "1: the recipe is nested too deeply"),
    ],
)
def test_a_yaml_error_is_reported_with_its_line(text: str, said: str) -> None:
    assert faults(text)[0].startswith(said)


def test_a_recipe_has_a_seed_steps_and_keys_of_its_own() -> None:
    recipe = read("seed: 7\nx-notes: {any: [thing, $here]}\nsteps: {c: {corpus: 3}}")
    assert (recipe.seed, recipe.path) == (7, FILE)
    (only,) = recipe.steps
    assert (only.id, only.group, only.kind, only.where) == ("c", "c", "acme:corpus", f"{FILE}:3")
    assert only.step == acme.Corpus(limit=3)
    assert read("steps: {c: {corpus: }}").seed == 0
    assert read(f"seed: {2**63 - 1}\nsteps: {{c: {{corpus: 3}}}}").seed == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed: 1\nsteps: {c: {corpus: 3}}", "1: a recipe has no 'sed'; did you mean 'seed'?"),
        ("seed: -1\nsteps: {c: {corpus: 3}}", "1: the seed needs a whole number from 0, not"),
        (f"seed: {2**63}\nsteps: {{c: {{corpus: 3}}}}", "1: the seed needs a whole number from 0"),
        ("steps: {c d: {corpus: 3}}", "1: a step's id is letters, digits, _ and -, not 'c d'"),
        ("steps: {c: {corpus: 3}, C: {corpus: 4}}", "1: 'c' and 'C' would be one folder"),
        ("steps: {c: corpus}", "1: step 'c' needs `kind: {options}`; kinds: blend, corpus"),
        ("steps: {c: {corpsu: 3}}", "1: there is no kind of step 'corpsu'; did you mean 'corpus'?"),
        ("steps: {c: {corpus: 3, fit: 4}}", "1: step 'c' is of one kind, not corpus, fit"),
        ("steps: {c: {corpus: 3, for_each: 4}}", "1: step 'c' has 'for_each' beside its kind; did"),
        ("steps: {c: {corpus: 3, limit: 4}}", "1: step 'c' has 'limit' beside its kind; is it an"),
        ("steps: {c: {corpus: 3}, d: {corpus: 3}}", "1: 'c' and 'd' are the same run; leave one"),
    ],
)
def test_an_entry_that_is_no_step_is_reported(text: str, said: str) -> None:
    assert faults(text)[0].startswith(said)


def test_problems_are_reported_once_in_the_order_of_the_file() -> None:
    text = fit("learnin_rate: 3", "precision: float8", "sampler: {bag: {ration: 0.2}}")
    text += "  b:\n    blend: {models: $a, strategy: maen}\nsede: 3\n"
    assert faults(text) == [
        "6: step 'fit' has no option 'learnin_rate'; did you mean 'learning_rate'?",
        "7: option 'precision' of step 'fit' needs one of auto, bfloat16, not the text 'float8'; "
        "did you mean 'bfloat16'?",
        "8: sampler 'bag' has no option 'ration'; did you mean 'ratio'?",
        "10: there is no merge strategy 'maen'; did you mean 'mean'?",
        "11: a recipe has no 'sede'; did you mean 'seed'?",
    ]
    text = "steps:\n  a:\n    foreach: {n: [1, 2, 3]}\n    corpus: {limit: $n, limt: 2}\n"
    assert faults(text) == ["4: step 'corpus' has no option 'limt'; did you mean 'limit'?"]
    assert faults(fit("seed: 1", "seed: 2")) == [f"7: 'seed' is written twice, first at {FILE}:6"]
    assert faults("steps: {a: {fit: {}}}") == ["1: step 'fit' needs the options 'model' and 'data'"]
    assert faults("steps: {a: {fit: {model: m}}}") == ["1: step 'fit' needs the option 'data'"]
    text = fit("sampler:", "  - bag:", "      draw: 2", "      ratio: 2", "  - shuffle")
    assert faults(text) == ["9: sampler 'bag': ratio is a share above 0 and up to 1, not 2"]


def test_set_replaces_options_and_foreach_and_nothing_else() -> None:
    text = fit("sampler: [{bag: {ratio: 0.5}}, shuffle]")
    built = step(
        text,
        "a.fit.learning_rate=2e-5",
        "a.fit.sampler.0.bag.ratio=0.25",
        "a.fit.sampler.1.shuffle.batch_size=4",
        "a.fit.loss={contrast: 0.1}",
        "a.fit.backbone.plain.pooling=cls",
    )
    assert built.learning_rate == 2e-5
    assert built.sampler[0].ratio == 0.25
    assert built.sampler[1].batch_size.default == 4
    assert built.loss.default[0].temperature == 0.1
    assert built.backbone.pooling == "cls"
    setting = "a.fit.sampler.0.bag.ratio=0.25"
    lines = read(text, setting).steps[-1].lines
    assert (lines["sampler"], lines["sampler.0.ratio"]) == (f"{FILE}:6", f"--set {setting}")
    assert read(text, "seed=5").seed == 5
    plain = fit("betas: [0.9, 0.99]", "sampler: [bag, shuffle]")
    built = step(plain, "a.fit.betas.1=0.5", "a.fit.sampler.0.bag.ratio=0.25")
    assert (built.betas, built.sampler[0].ratio) == ((0.9, 0.5), 0.25)
    text = "x-t: &t {model: ./m, data: d}\nsteps: {a: {fit: *t}, b: {fit: {<<: *t, seed: 3}}}"
    first, second = read(text, "a.fit.model=./other").steps
    assert (first.step.model.text, second.step.model.text) == ("./other", "./m")
    text = "steps: {a: {foreach: {n: [1, 2]}, corpus: $n}}"
    assert [one.id for one in read(text, "a.foreach.n=[5]").steps] == ["a.n=5"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("a.fit.seed", "write `--set step.kind.option=value`"),
        ("aa.fit.seed=3", "there is no step 'aa'; did you mean 'a'?"),
        ("x-a=3", "there is no step 'x-a'; anchors (x-…) are not set: set the options"),
        ("a=3", "nothing is called 'a'; its options are set as a.fit.…"),
        ("e.n=1.corpus=3", "'e.n'; the options of all its instances are set as e.corpus.…"),
        ("a.fit.betas.2=1", "'2' stands for a list; give an index from 0 to 1"),
        ("a.fit.model.x=1", "'x' is no part of the text './m'"),
    ],
)
def test_a_setting_that_fits_nothing_is_reported(setting: str, said: str) -> None:
    text = fit("betas: [0.9, 0.99]") + "  e: {foreach: {n: [1, 2]}, corpus: $n}\n"
    fault = faults(text, setting)[0]
    assert fault.startswith(f"--set {setting}: ")
    assert said in fault


def test_a_recipe_file_is_read_with_or_without_a_byte_order_mark_or_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes("﻿steps: {c: {corpus: 3}}".encode())
    recipe = load_recipe(path, plugins(), ["seed=2"])
    assert (recipe.path, recipe.seed, recipe.overrides) == (path, 2, ("seed=2",))
    (tmp_path / "latin.yaml").write_bytes("x-name: gr\xfcn".encode("latin-1"))
    with pytest.raises(RecipeError, match="this is not UTF-8 text"):
        load_recipe(tmp_path / "latin.yaml", plugins())


def test_a_plugin_may_read_another_tools_recipe() -> None:
    class Other:
        @hookimpl
        def read_recipe(self, text: str) -> str | None:
            return "steps: {c: {corpus: {limt: 3}}}" if text.startswith("other") else None

    both = plugins()
    both.register(Other(), "other")
    with pytest.raises(RecipeError, match=r"r.yaml \(translated\):1: step 'corpus' has no option"):
        parse_recipe("other: tool", both, path=FILE)
    assert parse_recipe("steps: {c: {corpus: 3}}", both).steps[0].step == acme.Corpus(limit=3)
