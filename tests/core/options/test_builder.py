"""What the values of options become, and how a value that does not fit is refused."""

from __future__ import annotations

import pytest
from emberge import DataRef, ModelRef, PerDataset

from tests.support import acme
from tests.support.reading import FILE, blend, faults, fit, read, step


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
