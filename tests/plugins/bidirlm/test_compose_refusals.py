"""What does not fit is refused before any work, with its place and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge import CheckpointError, Plugins, RecipeError, check_recipe, load_recipe, run_recipe
from safetensors.torch import load_file, save_file

from tests.support.specialists import (
    AUDIO_TOKENS,
    VISION_TOKENS,
    change_config,
    text_model,
    vision_model,
    write_tokenizer,
)

RECIPE = """
steps:
  both:
    compose:
      text: ./text
      vision: ./vision
      audio: ./audio
"""
CLOSER = "family"


def refused(place: Path, plugins: Plugins, text: str = RECIPE) -> str:
    """What `check` has against a recipe, which then has no folder."""
    (place / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        check_recipe(load_recipe(place / "recipe.yaml", plugins), plugins).raise_errors()
    assert not (place / "out").exists()
    return str(caught.value)


def _rewritten(folder: Path, write: Callable[..., Path], **options: object) -> None:
    shutil.rmtree(folder)
    write(folder, **options)


def no_vision(place: Path) -> None:
    _rewritten(place / "vision", text_model)


def no_tower(place: Path) -> None:
    path = place / "vision" / "model.safetensors"
    kept = {n: t for n, t in load_file(path).items() if ".visual." not in n}
    save_file(kept, path, {"format": "pt"})


def other_size(place: Path) -> None:
    _rewritten(place / "vision", vision_model, intermediate_size=40)


def other_width(place: Path) -> None:
    """A config that does not go with its projector."""
    change_config(place / "audio", "audio_config", output_dim=24)


def other_base(place: Path) -> None:
    _rewritten(place / "vision", vision_model, theta=5e6)


def no_base(place: Path) -> None:
    change_config(place / "text", "rope_parameters", rope_theta=None)
    change_config(place / "vision", "text_config", rope_parameters={"rope_type": "default"})
    change_config(place / "audio", "text_config", rope_parameters={"rope_type": "default"})


def scaled(place: Path) -> None:
    for name, part in (("text", ""), ("vision", "text_config"), ("audio", "text_config")):
        config = json.loads((place / name / "config.json").read_text())
        rope = (config[part] if part else config)["rope_parameters"]
        change_config(
            place / name, part, rope_parameters={**rope, "rope_type": "linear", "factor": 2.0}
        )


def no_sections(place: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    change_config(place / "vision", "text_config", rope_parameters=rope)


def wrong_sections(place: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [3, 2, 2]}
    change_config(place / "vision", "text_config", rope_parameters=rope)


def two_tokens_on_one_id(place: Path) -> None:
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|repo_name|>", "<|ear|>")
    write_tokenizer(place / "audio", (*tokens, *VISION_TOKENS[1:], *AUDIO_TOKENS))


def unknown_token(place: Path) -> None:
    change_config(place / "vision", image_token_id=310)


def no_marks(place: Path) -> None:
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|repo_name|>")
    write_tokenizer(place / "audio", (*tokens, *VISION_TOKENS, "<|a|>", "<|b|>", "<|audio_pad|>"))


def no_image_processor(place: Path) -> None:
    (place / "vision" / "preprocessor_config.json").unlink()


def no_extractor(place: Path) -> None:
    (place / "audio" / "processor_config.json").unlink()


def causal(place: Path) -> None:
    change_config(place / "text", is_causal=True)


def windows(place: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    change_config(place / "text", use_sliding_window=True, sliding_window=4, layer_types=kinds)


def other_windows_of_sound(place: Path) -> None:
    change_config(place / "audio", "audio_config", n_window=100)


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (no_vision, 6, ["vision", "qwen3", "tower", "Qwen3-VL"]),
        (no_tower, 6, ["vision", "visual."]),
        (other_size, 5, ["./text", "./vision", "intermediate_size", "48", "40", CLOSER]),
        (other_width, 5, ["./text", "./audio", "24", "32"]),
        (other_base, 5, ["./text", "./vision", "1000000.0", "5000000.0", "rope_from"]),
        (no_base, 5, ["text", "rope_theta"]),
        (scaled, 5, ["text", "rope_type", "linear"]),
        (no_sections, 5, ["vision", "mrope_section"]),
        (wrong_sections, 5, ["vision", "mrope_section", "7", "4"]),
        (two_tokens_on_one_id, 5, ["260", "<|vision_start|>", "<|ear|>", "./audio"]),
        (unknown_token, 6, ["vision", "310", "image_token_id"]),
        (no_marks, 7, ["audio", "<|audio_start|>"]),
        (no_image_processor, 6, ["vision", "image_processor", "preprocessor_config.json"]),
        (no_extractor, 7, ["audio", "feature_extractor", "processor_config.json"]),
        (causal, 5, ["text", "as_encoder"]),
        (windows, 5, ["text", "use_sliding_window"]),
        (other_windows_of_sound, 5, ["audio", "n_window", "100", "50"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_a_way_out(
    change: Callable[[Path], None], line: int, words: list[str], place: Path, plugins: Plugins
) -> None:
    change(place)
    fault = refused(place, plugins)
    assert f"recipe.yaml:{line}" in fault
    for word in words:
        assert word in fault


@pytest.mark.parametrize(
    ("options", "word"),
    [("{text: ./text}", "vision"), ("{text: ./text, audio: ./audio, rope_from: vision}", "vision")],
)
def test_options_that_mean_nothing_are_refused(
    options: str, word: str, place: Path, plugins: Plugins
) -> None:
    assert word in refused(place, plugins, f"steps: {{both: {{compose: {options}}}}}\n")


def test_a_trunk_that_a_step_makes_is_compared_before_anything_is_written(
    place: Path, plugins: Plugins
) -> None:
    other_base(place)
    change_config(place / "text", is_causal=None)
    text = """
    steps:
      encoder: {as_encoder: {model: ./text}}
      both: {compose: {text: $encoder, vision: ./vision, audio: ./audio}}
    """
    (place / "recipe.yaml").write_text(text)
    recipe = load_recipe(place / "recipe.yaml", plugins)
    check_recipe(recipe, plugins).raise_errors()
    with pytest.raises(CheckpointError) as caught:
        run_recipe(recipe, place / "out", plugins, quiet=True)
    for word in ("$encoder", "./vision", "rope_from"):
        assert word in str(caught.value)
    assert not (place / "out" / "both").exists()
