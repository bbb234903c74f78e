"""What `emberge check` warns of in a training: options that are legal and surely a mistake."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import Loss, check_recipe, load_plugins, load_recipe
from emberge_train import SimilarityDistillation
from emberge_train.losses.score_arithmetic import scale_warnings, temperature_warnings

LINES = ("model", "data", "sampler", "loss")


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a model's name, pairs with up to three hard negatives, and pairs with none."""
    (tmp_path / "model").symlink_to(bert)
    rows = [{"anchor": f"file {i}", "positive": f"read {i}"} for i in range(20)]
    many = [{**row, "negatives": ["card", "bank", "music"][: i % 4]} for i, row in enumerate(rows)]
    for name, written in (("some", many), ("none", rows)):
        text = "".join(json.dumps(row) + "\n" for row in written)
        (tmp_path / f"{name}.jsonl").write_text(text)
    labels = [{"text": f"text {i}", "label": str(i % 3)} for i in range(20)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    return tmp_path


def warnings(place: Path, *data: str, loss: Any = "infonce", **options: Any) -> dict[str, str]:
    """The warnings of a check of one training, by the option at whose line they are."""
    train = {
        "model": "./model",
        "data": [f"./{name}.jsonl" for name in data or ("some",)],
        "sampler": {"batch_shuffle": {"batch_size": 4}},
        "loss": loss,
        **options,
    }
    lines = ["steps:", "  t:", "    train:"]
    named = {}
    for option, value in train.items():
        lines.append(f"      {option}: {json.dumps(value)}")
        named[len(lines)] = option
    (place / "r.yaml").write_text("\n".join(lines))
    recipe = load_recipe(place / "r.yaml", load_plugins())
    report = check_recipe(recipe, load_plugins())
    assert report.errors == ()
    assert yaml.safe_load((place / "r.yaml").read_text())
    return {
        named[int(problem.where.rpartition(":")[2])]: problem.message
        for problem in report.of("warning")
    }


HOT, USUAL = {"infonce": {"temperature": 20}}, {"infonce": {"temperature": 0.05}}
UNSCORED = {"scale": 0.05, "unscored": True}
# Data, options, the option that is doubted, and words of the warning.
DOUBTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("some", {"packing": 256}, "packing", "take it out"),
    # A temperature of twenty, wherever it is.
    *(
        ("some", {"loss": loss}, "loss", "temperature 20:.*the temperature 0.05$")
        for loss in (
            HOT,
            [USUAL, HOT],
            {"default": "infonce", "by_task": {"sts": HOT}},
            {"default": "infonce", "by_dataset": {"some": HOT}},
            {"matryoshka": {"dims": [8, 16], "loss": HOT}},
        )
    ),
    ("some", {"loss": {"cosent": UNSCORED}}, "loss", ""),
    ("some", {"loss": {"angle": UNSCORED}}, "loss", ""),
    # More hard negatives than any row has.
    (
        "some none",
        {"hard_negatives": 50},
        "hard_negatives",
        "^hard_negatives 50:.*hard_negatives: 3",
    ),
    ("none", {"hard_negatives": 2}, "hard_negatives", "column"),
    ("labels", {"hard_negatives": 9}, "hard_negatives", ""),
]


@pytest.mark.parametrize(("data", "options", "doubted", "words"), DOUBTED)
def test_an_odd_option_is_doubted_at_its_line(
    place: Path, data: str, options: dict[str, Any], doubted: str, words: str
) -> None:
    ((option, message),) = warnings(place, *data.split(), **options).items()
    assert option == doubted
    assert re.search(words, message), message


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("some", {}),
        ("some", {"loss": USUAL, "learning_rate": 2e-5, "warmup_ratio": 0.1, "hard_negatives": 3}),
        ("none", {}),  # the default of hard negatives asks for none
        ("some none", {"hard_negatives": 3}),
        ("none", {"hard_negatives": 0}),
        ("labels", {"hard_negatives": 3}),  # drawn by label
    ],
)
def test_a_usual_training_is_not_doubted(place: Path, data: str, options: dict[str, Any]) -> None:
    assert warnings(place, *data.split(), **options) == {}


def test_temperatures_and_scales_are_told_from_one_another() -> None:
    assert temperature_warnings(1.0) == []
    assert temperature_warnings(0.02) == []
    assert scale_warnings(1.0) == []
    assert scale_warnings(20) == []
    assert "the temperature 0.05" in temperature_warnings(20)[0]
    assert "the scale 20" in scale_warnings(0.05)[0]


def test_temperatures_of_distillation_are_doubted_but_for_scores_of_logits() -> None:
    plugins = load_plugins()
    kl = next(c.type for c in plugins.components if c.name == "kl_distillation")
    assert kl().warnings() == []
    assert len(kl(temperature=20).warnings()) == 1
    assert kl(temperature=20, similarity="dot").warnings() == [], "scores of logits may be as large"
    (warning,) = SimilarityDistillation(temperature=20).warnings()
    assert warning.startswith("temperature 20:")


def test_no_loss_doubts_its_own_defaults() -> None:
    tried = 0
    for component in load_plugins(block=()).components:
        if component.kind != "loss" or not issubclass(component.type, Loss):
            continue
        fields = [f for f in dataclasses.fields(component.type) if f.init]
        bare = (dataclasses.MISSING, dataclasses.MISSING)
        if any((f.default, f.default_factory) == bare or f.metadata for f in fields):
            continue  # it cannot be made of defaults alone
        assert list(component.type().warnings()) == [], component.name
        tried += 1
    assert tried >= 5
