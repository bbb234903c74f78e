"""What `emberge check` warns of in a training: options that are legal and surely a mistake."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge import Loss, check_recipe, load_plugins, load_recipe
from emberge.training import FitOptions
from emberge_train import SimilarityDistillation
from emberge_train.losses.score_arithmetic import scale_warnings, temperature_warnings
from emberge_train.training_warnings import option_warnings

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


def test_a_usual_training_is_not_doubted(place: Path) -> None:
    assert warnings(place) == {}
    usual = {"learning_rate": 2e-5, "warmup_ratio": 0.1, "hard_negatives": 3}
    assert warnings(place, loss={"infonce": {"temperature": 0.05}}, **usual) == {}
    assert warnings(place, "none") == {}, "the default of hard negatives asks for none"


def test_packing_of_pairs_is_doubted(place: Path) -> None:
    ((option, message),) = warnings(place, packing=256).items()
    assert option == "packing"
    assert "take it out" in message


@pytest.mark.parametrize(
    ("rate", "meant"),
    [(5e5, "5e-5"), (2e5, "2e-5"), (1.5e4, "1.5e-4"), (20.0, None), (1.0, None)],
)
def test_a_rate_that_leaves_nothing_of_the_model_is_doubted(
    place: Path, rate: float, meant: str | None
) -> None:
    (message,) = warnings(place, learning_rate=rate).values()
    assert message.startswith(f"learning_rate {rate:g}:")
    assert message.endswith(f"did you mean {meant}?") if meant else "did you mean" not in message
    if meant:
        assert not list(option_warnings(FitOptions(learning_rate=float(meant))))


def test_a_rate_of_nothing_is_doubted(place: Path) -> None:
    assert set(warnings(place, learning_rate=0)) == {"learning_rate"}
    assert warnings(place, learning_rate=0.2) == {}, "tables of embeddings are trained with it"


def test_a_warm_up_that_is_most_of_the_training_is_doubted(place: Path) -> None:
    for share in (1, 0.9, 0.51):
        assert set(warnings(place, warmup_ratio=share)) == {"warmup_ratio"}
    assert warnings(place, warmup_ratio=0.5) == {}
    assert set(warnings(place, warmup_steps=60, max_steps=100)) == {"warmup_steps"}
    assert warnings(place, warmup_steps=50, max_steps=100) == {}


INFONCE = {"infonce": {"temperature": 20}}


@pytest.mark.parametrize(
    "loss",
    [
        INFONCE,
        [{"infonce": {"temperature": 0.05}}, INFONCE],
        {"default": "infonce", "by_task": {"sts": INFONCE}},
        {"default": "infonce", "by_dataset": {"some": INFONCE}},
        {"matryoshka": {"dims": [8, 16], "loss": INFONCE}},
    ],
)
def test_a_temperature_of_twenty_is_doubted_wherever_it_is(place: Path, loss: Any) -> None:
    (message,) = warnings(place, loss=loss).values()
    assert "temperature 20:" in message
    assert message.endswith("the temperature 0.05")


def test_temperatures_and_scales_are_told_from_one_another() -> None:
    assert temperature_warnings(1.0) == []
    assert temperature_warnings(0.02) == []
    assert scale_warnings(1.0) == []
    assert scale_warnings(20) == []
    assert "the temperature 0.05" in temperature_warnings(20)[0]
    assert "the scale 20" in scale_warnings(0.05)[0]


def test_losses_that_take_a_scale_or_a_temperature_are_doubted(place: Path) -> None:
    unscored = {"scale": 0.05, "unscored": True}
    for loss in ({"cosent": unscored}, {"angle": unscored}):
        assert set(warnings(place, loss=loss)) == {"loss"}
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


def test_more_hard_negatives_than_any_row_has_are_doubted(place: Path) -> None:
    (message,) = warnings(place, "some", "none", hard_negatives=50).values()
    assert message.startswith("hard_negatives 50:")
    assert "hard_negatives: 3" in message
    assert warnings(place, "some", "none", hard_negatives=3) == {}


def test_hard_negatives_of_data_without_any_are_doubted(place: Path) -> None:
    (message,) = warnings(place, "none", hard_negatives=2).values()
    assert "column" in message
    assert warnings(place, "none", hard_negatives=0) == {}


def test_negatives_that_are_drawn_by_label_count(place: Path) -> None:
    assert warnings(place, "labels", hard_negatives=3) == {}
    assert set(warnings(place, "labels", hard_negatives=9)) == {"hard_negatives"}
