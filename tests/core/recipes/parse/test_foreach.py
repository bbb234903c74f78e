"""`foreach` makes instances, `$name` finds them, and steps come out in order of need."""

from __future__ import annotations

import pytest
from emberge import ModelRef

from tests.support import acme
from tests.support.reading import faults, read

MEMBERS = "  m:\n    foreach: {n: [1, 2, 3]}\n    fit: {model: ./m, data: d, seed: $n}\n"


def ids(text: str) -> list[str]:
    return [one.id for one in read(text).steps]


def members(*more: str) -> str:
    return "steps:\n" + MEMBERS + "".join(f"  {line}\n" for line in more)


def test_a_mapping_is_a_product_and_a_list_is_its_rows() -> None:
    text = "steps: {a: {foreach: {x: [1, 2], y: [p, q]}, fit: {model: $y, data: d, seed: $x}}}"
    assert ids(text) == ["a.x=1,y=p", "a.x=1,y=q", "a.x=2,y=p", "a.x=2,y=q"]
    first = read(text).steps[0]
    assert (first.group, dict(first.variables)) == ("a", {"x": 1, "y": "p"})
    text = text.replace("{x: [1, 2], y: [p, q]}", "[{x: 1, y: p}, {x: 2, y: q}]")
    assert ids(text) == ["a.x=1,y=p", "a.x=2,y=q"]
    text = text.replace("x: 1,", "x: 1, how: half ties,").replace("x: 2,", "x: 2, how: whole,")
    assert ids(text) == ["a.how=half-ties", "a.how=whole"]
    assert faults(text.replace("half ties", "whole"))[0].endswith(" $how where it belongs")


def test_numbers_stay_numbers_and_mappings_stay_mappings() -> None:
    text = """
steps:
  a:
    foreach: {rate: [1e-5, 2], sampler: [shuffle, {shuffle: {batch_size: 8}}]}
    fit: {model: m, data: d, learning_rate: $rate, sampler: $sampler}
"""
    built = [one.step for one in read(text).steps]
    assert [one.learning_rate for one in built] == [1e-5, 1e-5, 2.0, 2.0]
    assert [one.sampler[0].batch_size.default for one in built] == [32, 8, 32, 8]


def test_numbers_stay_numbers_in_text_and_a_dollar_is_two() -> None:
    text = """
steps:
  a:
    foreach: {lang: [en, de], n: [1]}
    fit: {model: m, data: data/$lang-$n.jsonl, notes: {price: $$5, '$lang': "$n $lang", end: "x$"}}
"""
    first = read(text).steps[0].step
    assert first.data[0].path.text == "data/en-1.jsonl"
    assert first.notes == {"price": "$5", "en": "1 en", "end": "x$"}
    model = read("steps: {a: {fit: {model: $$odd/folder, data: d}}}").steps[0].step.model
    assert model.step is None
    assert model.text == "./$odd/folder"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("[0.2, 1e-5, -1, true, null]", ["0.2", "1e-5", "-1", "true", "null"]),
        ("[BAAI/bge-base@v2, ./ft/legal, '../x y']", ["BAAI-bge-base-v2", "ft-legal", "x-y"]),
        ("[{a: 1}, [2], x, {x: 1}, {b: 1}, {b: 2}, {c: 1, d: 2}]", ["a", "1", "x", *"3456"]),
        (f"[{'x' * 41}, {'y' * 40}]", ["0", "y" * 40]),
    ],
)
def test_ids_are_names_that_any_file_system_takes(values: str, expected: list[str]) -> None:
    text = f"steps: {{a: {{foreach: {{v: {values}}}, fit: {{model: m, data: d, notes: $v}}}}}}"
    assert ids(text) == [f"a.v={slug}" for slug in expected]


@pytest.mark.parametrize(
    ("foreach", "said"),
    [
        ("3", "foreach takes `{name: [values]}` or a list of `{name: value}`, not the number 3"),
        ("{n: 1}", "foreach: 'n' needs a list of values, not the number 1"),
        ("{'a b': [1]}", "foreach: 'a b' is no name for a variable"),
        ("[{n: 1}, {k: 2}]", "foreach: this row has k, the first has n"),
        ("{n: [1, 1]}", "2: 'c.0' and 'c.1' are the same run; vary `seed`"),
        ("{n: [1], c: [2]}", "'c' is a step; name the variable differently"),
        ("{n: [1], k: [2]}", "the variable 'k' is never used; write $k where it belongs"),
        ("{n: [$q]}", "$q is neither an earlier step nor a variable of `foreach`"),
        (f"{{n: {list(range(23))}, m: {list(range(87))}}}", "2,001 combinations are more than"),
    ],
)
def test_an_impossible_foreach_is_refused(foreach: str, said: str) -> None:
    option = "fit: {model: m, data: d, learning_rate: $n}"
    assert said in faults(f"steps:\n  c:\n    foreach: {foreach}\n    {option}\n")[0]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("$limt", "is neither an earlier step nor a variable of `foreach`; did you mean '$limit'?"),
        ("x$q", "is neither an earlier step nor a variable of `foreach` (a plain dollar is"),
        ("x$limit", "$limit is a list and cannot stand inside text"),
    ],
)
def test_an_unknown_variable_is_reported_once(option: str, said: str) -> None:
    text = f"steps: {{a: {{foreach: {{limit: [[1]]}}, corpus: {{limit: {option}}}}}}}"
    (fault,) = faults(text)
    assert said in fault


def test_an_entry_of_a_list_is_repeated_for_each_instance_of_its_step() -> None:
    boom = read(members("b: {blend: {models: $m, strategy: mean}}")).steps[-1]
    assert [entry.model.text for entry in boom.step.models] == ["$m.n=1", "$m.n=2", "$m.n=3"]
    assert boom.needs == ("m.n=1", "m.n=2", "m.n=3")
    entry = "{model: $m, group: ir, weight: 0.5}"
    text = members(f"b: {{blend: {{models: [./x, {entry}], strategy: mean}}}}")
    models = read(text).steps[-1].step.models
    assert [(e.model.text, e.group) for e in models] == [
        ("./x", None),
        ("$m.n=1", "ir"),
        ("$m.n=2", "ir"),
        ("$m.n=3", "ir"),
    ]
    assert {e.weight.plain() for e in models[1:]} == {0.5}


def test_steps_are_matched_by_their_variables_in_an_entry_and_later() -> None:
    text = members(
        "o: {foreach: {n: [1, 2, 3]}, fit: {model: ./o, data: d, seed: $n}}",
        "s: {rate: {models: ./x, evaluators: board, require: [{model: $m, not_worse_than: [$o]}]}}",
    )
    claims = read(text).steps[-1].step.require
    assert [(c.model.text, [o.text for o in c.not_worse_than]) for c in claims] == [
        ("$m.n=1", ["$o.n=1"]),
        ("$m.n=2", ["$o.n=2"]),
        ("$m.n=3", ["$o.n=3"]),
    ]
    text = members(
        "b: {foreach: {n: [2, 3]}, blend: {models: [$m, ./x], base: $m, strategy: mean}}"
    )
    later = read(text).steps[3:]
    assert [one.id for one in later] == ["b.n=2", "b.n=3"]
    assert [one.step.base.text for one in later] == ["$m.n=2", "$m.n=3"]
    assert [[e.model.text for e in one.step.models] for one in later] == [
        ["$m.n=2", "./x"],
        ["$m.n=3", "./x"],
    ]


def test_no_instance_or_several_are_refused_where_one_is_needed() -> None:
    text = members("b: {foreach: {n: [true]}, blend: {models: $m, strategy: mean}}")
    assert faults(text) == ["5: no step of $m has n=True"]
    text = members("b: {blend: {models: ./x, base: $m, strategy: mean}}")
    assert faults(text) == [
        "5: option 'base' of step 'blend' takes one, and $m is 3 steps (m.n=1, m.n=2, m.n=3)"
    ]
    assert faults(text.replace("[1, 2, 3]", "[1, 2, 3, 4]"))[0].endswith("(m.n=1, m.n=2, m.n=3, …)")


def test_checkpoints_and_adapters_keep_their_step() -> None:
    text = members("b: {blend: {models: [$m.checkpoints, $m+./adapter], strategy: mean}}")
    models = [entry.model for entry in read(text).steps[-1].step.models]
    assert [m.text for m in models[:2]] == ["$m.n=1.checkpoints", "$m.n=2.checkpoints"]
    assert (models[0].step, models[0].part) == ("m.n=1", "checkpoints")
    assert models[3].text == "$m.n=1+./adapter"
    assert (models[3].step, models[3].part) == ("m.n=1", None)


def test_one_instance_is_named_by_its_id() -> None:
    text = members(
        "b: {blend: {models: [$m.n=2, $m.n=1.checkpoints], base: $m.n=3, strategy: mean}}"
    )
    step = read(text).steps[-1].step
    assert [entry.model.text for entry in step.models] == ["$m.n=2", "$m.n=1.checkpoints"]
    assert (step.base.text, step.base.step) == ("$m.n=3", "m.n=3")
    assert faults(text.replace("$m.n=2", "$m.jsonl")) == [
        "5: there is no step 'm.jsonl'; there is m.n=1"
    ]


def test_a_foreach_may_go_over_steps() -> None:
    text = """
steps:
  a: {fit: {model: ./a, data: d}}
  b: {fit: {model: ./b, data: d}}
  s: {foreach: {model: [$a, $b, ./c]}, rate: {models: $model, evaluators: board}}
"""
    assert [(one.id, one.needs) for one in read(text).steps[2:]] == [
        ("s.model=a", ("a",)),
        ("s.model=b", ("b",)),
        ("s.model=c", ()),
    ]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("blend: {models: $c, strategy: mean}", "$c makes data, and option 'model' of an entry of"),
        ("fit: {model: m, data: $e}", "and option 'path' of an entry of 'data' takes data"),
        ("fit: {model: x/$e, data: d}", "'x/$e': a step's output is written alone, as $e or"),
        ("fit: {model: $g-h-i, data: d}", "'$g-h-i': a step's output is written alone, as $g-h or"),
    ],
)
def test_a_step_is_refused_where_an_option_takes_no_step(step: str, said: str) -> None:
    text = f"steps:\n  c: {{corpus: 1}}\n  e: {{fit: {{model: m, data: d}}}}\n  f: {{{step}}}\n"
    (fault,) = faults(f"{text}  g-h: {{fit: {{model: n, data: d}}}}\n")
    assert fault.startswith("4: ")
    assert said in fault


def test_a_step_may_be_many_independent_ones() -> None:
    text = "steps: {p: {pairs: {models: [a, b, c]}}, s: {rate: {models: $p, evaluators: board}}}"
    *pairs, scores = read(text).steps
    assert [one.id for one in pairs] == ["p.0-1", "p.0-2", "p.1-2"]
    assert {one.group for one in pairs} == {"p"}
    assert pairs[1].step == acme.Pairs(models=(ModelRef("a"), ModelRef("c")))
    assert scores.needs == ("p.0-1", "p.0-2", "p.1-2")


def test_steps_come_after_what_they_need_and_rings_are_named() -> None:
    text = """
steps:
  scores: {rate: {models: [$boom, $m], evaluators: {board: {data: $corpus}}}}
  other: {corpus: 2}
  boom: {blend: {models: $m, strategy: mean}}
  m: {fit: {model: ./m, data: $corpus}}
  corpus: {corpus: 1}
"""
    assert ids(text) == ["corpus", "m", "boom", "scores", "other"]
    text = """steps:
  a: {blend: {models: $b, strategy: mean}}
  b: {blend: {models: [./x, $c], strategy: mean}}
  c: {blend: {models: $a, strategy: mean}}
  d: {blend: {models: $c, strategy: mean}}
"""
    assert faults(text) == ["2: the steps a -> b -> c -> a need one another"]
