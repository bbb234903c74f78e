"""What `emberge check` sums up: tokens, GPU hours and memory, disk, access, and what it could not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from emberge import RecipeError, check_recipe, hookimpl, load_plugins, parse_recipe
from emberge.errors import AccessError
from emberge.model_folder import Checkpoint, count_parameters
from emberge.recipes import Gpu, RecipeNeeds

from tests.support import tiny

GPU = Gpu("slow", peak=1e6, share=0.5)
STEPS, BATCH, LENGTH = 10, 4, 16


class Hub:
    """A hub that keeps `me/gated` to itself and has no network for all others."""

    @hookimpl
    def locate_model(
        self,
        reference: str,
        revision: str | None,
        files: Literal["all", "metadata"],
    ) -> Path | None:
        if reference == "me/gated":
            raise AccessError("'me/gated' is gated")
        raise ConnectionError("no network")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with pairs of long texts and single texts."""
    monkeypatch.chdir(tmp_path)
    text = "words " * 200
    pairs = [{"anchor": f"{i} {text}", "positive": f"to {i} {text}"} for i in range(40)]
    singles = [{"text": f"{i} {text}"} for i in range(40)]
    for name, rows in (("pairs", pairs), ("singles", singles)):
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def needs(steps: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of the sum by label."""
    plugins = load_plugins(block=["hub"])
    plugins.register(Hub(), "the hub of this test")
    recipe = parse_recipe(json.dumps({"steps": steps}), plugins=plugins)
    report = check_recipe(recipe, plugins, sizes=True)
    lines: dict[str, list[str]] = {}
    label = ""
    for line in RecipeNeeds(recipe, report, GPU).lines[1:]:
        label = line[2:12].strip() or label
        lines.setdefault(label, []).append(line[14:])
    return lines


def training(model: str, **options: Any) -> dict[str, Any]:
    pairs = {
        "data": "./pairs.jsonl",
        "loss": "infonce",
        "sampler": {"batch_shuffle": {"batch_size": BATCH}},
        "max_steps": STEPS,
        "max_length": LENGTH,
    }
    return {"train": {"model": model, **pairs, **options}}


def hours(flops: float) -> str:
    value = flops / 1e6 / 0.5 / 3600
    return f"about {value:.2g}" if value < 100 else f"about {value:,.0f}"


def test_a_training_counts_its_tokens_and_every_pass_of_the_gradient_cache(
    place: Path, bert: Path
) -> None:
    found = needs({"a": training(str(bert))})
    size, tokens = count_parameters(Checkpoint(bert)), STEPS * BATCH * 2 * LENGTH
    assert found["tokens"] == [f"at most about {tokens:,} for training"]
    flops = 8 * tokens * size.computed
    assert found["GPU hours"][0] == f"{hours(flops)}: {hours(flops)} training"
    assert found["GPU hours"][-1] == "of one slow, at 50% of its 0 TFLOP/s"
    assert found["models"] == ["1 from outside, 1 made by steps"]
    assert found["data"] == [
        "1 set of rows and 0 tasks to score on from outside, and data of 0 steps"
    ]
    assert found["GPU memory"][0].endswith(" in step a")
    assert found["not seen"] == ["nothing"]


def test_a_loss_over_tokens_passes_forward_once(place: Path) -> None:
    model = tiny.transformer(place / "m", "AutoModelForMaskedLM")
    sampler = {"batch_shuffle": {"batch_tokens": 64}}
    found = needs({"a": training(str(model), data="./singles.jsonl", loss="mlm", sampler=sampler)})
    tokens = STEPS * 64
    assert found["tokens"] == [f"at most about {tokens} for training"]
    flops = 6 * tokens * count_parameters(Checkpoint(model)).computed
    assert found["GPU hours"][0] == f"{hours(flops)}: {hours(flops)} training"


def test_a_length_of_the_texts_themselves_counts_below_the_limit(place: Path, bert: Path) -> None:
    Path("pairs.jsonl").write_text('{"anchor": "8 letters", "positive": "8 letters"}\n' * 40)
    found = needs({"a": training(str(bert), max_length=512)})
    assert found["tokens"] == [f"at most about {STEPS * BATCH * 2 * 9 // 4} for training"]


def test_a_model_of_unknown_size_costs_by_the_billion(place: Path, bert: Path) -> None:
    chain = {"a": training("me/far"), "b": training("$a"), "c": training(str(bert))}
    found = needs(chain)
    assert found["models"][1] == "of unknown size: me/far"
    flops = 2 * 8 * STEPS * BATCH * 2 * LENGTH * 1e9
    each = "for each billion parameters of me/far"
    assert found["GPU hours"][1] == f"{hours(flops)} {each}"
    assert found["disk"][1] == f"8 GB {each}"
    assert found["GPU memory"][1] == f"16 GB {each}"
    assert found["not seen"] == ["1 model (--long lists them)"]


def test_rows_that_nobody_states_leave_the_tokens_unknown(place: Path, bert: Path) -> None:
    sets = [
        {
            "name": "far",
            "hub": "me/far",
            "task": "retrieval",
            "columns": {"anchor": "q", "positive": "p"},
        }
    ]
    Path("datasets.yaml").write_text(json.dumps({"train": sets}))
    steps = {"a": training(str(bert), data="./datasets.yaml", max_steps=None, epochs=2)}
    assert needs(steps)["tokens"] == ["not known of 1 training: the rows of its data are not known"]
    Path("datasets.yaml").write_text(json.dumps({"train": [{**sets[0], "rows": 1000}]}))
    tokens = 2 * 1000 * 2 * LENGTH
    assert needs(steps)["tokens"] == [f"at most about {tokens:,} for training"]


def test_what_is_gated_is_named(place: Path) -> None:
    found = needs({"a": training("me/gated")})
    assert found["access"] == ["'me/gated' is gated"]
    assert needs({"a": training("me/far")})["access"][0].endswith("of what could be looked at")


def test_a_config_without_weights_has_a_size(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((bert / "config.json").read_text())
    assert count_parameters(Checkpoint(tmp_path)) == count_parameters(Checkpoint(bert))


@pytest.mark.parametrize("name", ["H1OO", "-3", "nan", "0"])
def test_a_gpu_is_a_known_name_or_a_number(name: str) -> None:
    with pytest.raises(RecipeError, match="--gpu"):
        Gpu.parse(name, 0.3)


def test_a_gpu_given_by_its_number_has_it_as_its_peak() -> None:
    assert Gpu.parse("312", 0.4) == Gpu("GPU of 312 TFLOP/s", Gpu.parse("a100", 0.3).peak, 0.4)
