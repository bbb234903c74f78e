"""What a recipe may say, and what is said of a recipe that says it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import DataRef, ModelRef, PerDataset, PerModel, RecipeError, hookimpl
from emberge.recipes import load_recipe
from emberge.recipes.parse.parse import parse_recipe

from tests.support import acme
from tests.support.reading import FILE, blend, faults, fit, plugins, read, step


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
        "10: there is no merge stage 'maen'; did you mean 'mean'?",
        "11: a recipe has no 'sede'; did you mean 'seed'?",
    ]
    text = "steps:\n  a:\n    foreach: {n: [1, 2, 3]}\n    corpus: {limit: $n, limt: 2}\n"
    assert faults(text) == ["4: step 'corpus' has no option 'limt'; did you mean 'limit'?"]
    assert faults(fit("seed: 1", "seed: 2")) == [f"7: 'seed' is written twice, first at {FILE}:6"]
    assert faults("steps: {a: {fit: {}}}") == ["1: step 'fit' needs the options 'model' and 'data'"]
    assert faults("steps: {a: {fit: {model: m}}}") == ["1: step 'fit' needs the option 'data'"]
    text = fit("sampler:", "  - bag:", "      draw: 2", "      ratio: 2", "  - shuffle")
    assert faults(text) == ["9: sampler 'bag': ratio is a share above 0 and up to 1, not 2"]


def test_values_become_what_their_options_take() -> None:
    rate = step(fit("learning_rate: 1")).learning_rate
    assert rate == 1.0
    assert isinstance(rate, float)
    built = step(fit("log: logs/a.txt"))
    assert built.log == FILE.parent / "logs/a.txt"
    assert built.model == ModelRef("./m")
    assert built.model.folder == FILE.parent
    assert built.data[0].path == DataRef("d.jsonl")
    text = "steps: {a: {fit: {model: m, data: [x, {path: y, columns: {anchor: q}}]}}}"
    first, second = step(text).data
    assert (first.path, second.path) == (DataRef("x"), DataRef("y"))
    assert second.columns.anchor == "q"
    assert step("steps: {a: {rate: {models: m, evaluators: board}}}").models == (ModelRef("m"),)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("learning_rate: fast", "'learning_rate' of step 'fit' needs a number, not the text"),
        ("learning_rate: .nan", "needs a number, not NaN"),
        ("max_steps: 1.5", "needs a whole number, not the number 1.5"),
        ("betas: [0.9]", "needs a list of 2 (a number, a number), not a list"),
        ("loss: {contrast: {temperature: 0}}", "needs a number above 0, not the number 0"),
        ("backbone: {plain: maen}", "mean, cls, last, not the text 'maen'; did you mean 'mean'?"),
        ("data: [{path: x, task: stss}]", "not the text 'stss'; did you mean 'sts'?"),
        (
            "data: [{path: x, splt: y}]",
            "entry of 'data' has no option 'splt'; did you mean 'split'",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_at_its_line(line: str, said: str) -> None:
    text = fit(line).replace("      data: d.jsonl\n", "") if line.startswith("data") else fit(line)
    (fault,) = faults(text)
    assert fault.startswith(("6: ", "5: "))
    assert said in fault


def test_a_choice_takes_the_alternative_that_fits() -> None:
    assert step(blend("strategy: mean", "weights: size")).weights == "size"
    assert step(blend("strategy: mean", "weights: [1, 2.5]")).weights == (1.0, 2.5)
    assert faults(blend("strategy: mean", "weights: sise")) == [
        "6: option 'weights' of step 'blend' needs one of equal, size or a number, or a list of such, "
        "not the text 'sise'; did you mean 'size'?"
    ]
    assert faults(blend("strategy: mean", "weights: [1, x]")) == [
        "6: option 'weights' of step 'blend' needs a number, not the text 'x'"
    ]


@pytest.mark.parametrize(
    "written",
    ["{bag: {ratio: 0.5}}", "{bag: 0.5}", "{acme:bag: 0.5}", "{'acme:bag': {ratio: 0.5, draw: 0}}"],
)
def test_a_component_is_a_name_with_options_or_its_first_own_options_value(written: str) -> None:
    built = step(fit(f"sampler: [{written}, shuffle]"))
    assert built.sampler == (acme.Bag(ratio=0.5), acme.Shuffle())


def test_components_have_defaults_and_a_first_option_of_their_own() -> None:
    built = step(fit())
    assert built.sampler == (acme.Shuffle(),)
    assert built.backbone == acme.Plain()
    assert built.loss == PerDataset(default=(acme.Contrast(),))
    assert step(fit("loss: {contrast: 0.1}")).loss.default == (acme.Contrast(temperature=0.1),)
    assert faults(fit("loss: {rank: 3}")) == ["6: loss 'rank' has no option for the number 3"]
    text = (
        "steps: {a: {rate: {models: m, evaluators: {board: {tasks_: [x]}, acme:board: {data: d}}}}}"
    )
    one, two = step(text).evaluators
    assert one == acme.Board(tasks_=("x",))
    assert two == acme.Board(data=(DataRef("d"),))
    built = step(fit("loss: [{contrast: {weight: 2}}, mask]"))
    assert built.loss.default == (acme.Contrast(weight=2.0), acme.Mask())
    assert faults(fit("sampler: [bag, bag]")) == [
        "6: sampler 'bag' only selects; end the chain with a sampler that makes batches"
    ]
    assert faults(fit("sampler: [shuffle, shuffle]")) == [
        "6: sampler 'shuffle' makes batches and can only stand last"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sampler: bga", "there is no sampler 'bga'; did you mean 'bag'?"),
        ("sampler: 3", "takes one component, `name` or `name: {options}`, not the number 3"),
        ("sampler: {bag: 1, shuffle: 2}", "`name: {options}`, not 'bag' and 'shuffle'"),
    ],
)
def test_a_value_that_names_no_component_is_refused(line: str, said: str) -> None:
    (fault,) = faults(fit(line))
    assert fault.startswith("6: ")
    assert said in fault


def test_a_list_is_a_chain_whose_links_may_be_chains_and_have_strategies() -> None:
    built = step(blend("strategy: [{cut: {density: 0.3}}, vote]"))
    assert built.strategy == (acme.Cut(density=PerModel(0.3)), acme.Vote())
    assert step(blend("strategy: mean")).strategy == (acme.Mean(),)
    (cut, vote) = step(blend("strategy: {ties: {normalize: false}}")).strategy
    assert cut.density == PerModel(0.2)  # the chain's default, not the link's
    assert cut.density.within == (0, 1)
    assert (vote.normalize, vote.scale.plain()) == (False, 1.0)
    (cut, vote) = step(blend("strategy: {ties: 0.7}")).strategy
    assert cut.density == PerModel(0.7)
    built = step(blend("strategy: [grouped, ties]"))
    assert [type(link).__name__ for link in built.strategy] == ["Grouped", "Cut", "Vote"]
    (grouped, _) = step(
        blend("strategy: [{grouped: {by: {vote: {normalize: false}}}}, mean]")
    ).strategy
    assert grouped.by == acme.Vote(normalize=False)
    (grouped, _) = step(blend("strategy: [{grouped: loud}, mean]")).strategy
    assert grouped.by == acme.Vote(scale=acme.PerTensor(2.0))  # a chain of one link is a strategy


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("strategy: cut", "transform 'cut' cannot end a chain; let a merge strategy follow it"),
        ("strategy: [mean, vote]", "merge strategy 'mean' ends a chain and can only stand last"),
        ("strategy: {ties: {density: 3}}", "'density' of merge strategy 'ties': 3 lies outside 0"),
        ("strategy: [{grouped: ties}, mean]", "'ties' is a chain of 2 links, and option 'by' of"),
        ("strategy: [{cut: {density: [{filtr: x, value: 1}]}}, mean]", "an entry has 'value'"),
    ],
)
def test_an_impossible_chain_is_refused(line: str, said: str) -> None:
    (fault,) = faults(blend(line))
    assert fault.startswith("5: ")
    assert said in fault


def test_options_may_differ_by_task_and_dataset() -> None:
    loss = (
        "loss: {default: contrast, by_task: {sts: [rank, mask]}, by_dataset: {stsb: {contrast: 1}}}"
    )
    built = step(fit(loss, "sampler: {shuffle: {batch_size: {by_task: {sts: 8}}}}"))
    assert built.loss.of("nq", "retrieval") == (acme.Contrast(),)
    assert built.loss.of("sickr", "sts") == (acme.Rank(), acme.Mask())
    assert built.loss.of("stsb", "sts") == (acme.Contrast(temperature=1.0),)
    assert built.sampler[0].batch_size == PerDataset(by_task={"sts": 8})
    (fault,) = faults(fit("loss: {default: contrast, by_task: {retreival: rank}}"))
    assert "there is no task kind 'retreival'; did you mean 'retrieval'" in fault


def test_the_line_of_every_option_is_kept_also_where_it_names_several_steps() -> None:
    text = fit(
        "sampler:", "  - bag:", "      ratio: 0.5", "  - shuffle", "loss:", "  contrast: 0.1"
    )
    (only,) = read(text).steps
    assert only.lines["sampler"] == f"{FILE}:6"
    assert only.lines["sampler.0"] == f"{FILE}:7"
    assert only.lines["sampler.0.ratio"] == f"{FILE}:8"
    assert only.lines["data"] == f"{FILE}:5"
    assert only.lines["loss.default.0.temperature"] == f"{FILE}:11"
    text = "steps:\n  m:\n    foreach: {n: [1, 2]}\n    fit: {model: m, data: d, seed: $n}\n"
    text += "  b:\n    blend:\n      strategy: mean\n      models:\n      - $m\n      - ./x\n"
    lines = read(text).steps[-1].lines
    assert [lines[f"models.{i}.model"] for i in range(3)] == [
        f"{FILE}:9",
        f"{FILE}:9",
        f"{FILE}:10",
    ]


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
        ("a=3", "nothing is called 'a'; its options are set as a.fit.…"),
        ("a.fit.betas.2=1", "'2' stands for a list; give an index from 0 to 1"),
        ("a.fit.model.x=1", "'x' is no part of the text './m'"),
    ],
)
def test_a_setting_that_fits_nothing_is_reported(setting: str, said: str) -> None:
    fault = faults(fit("betas: [0.9, 0.99]"), setting)[0]
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
