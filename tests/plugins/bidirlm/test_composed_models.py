"""A composed model is its parts: its trunk, towers and features are those of the models it was made of."""

from __future__ import annotations

import functools
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Plugins, join_parts, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge.media import MediaFolder
from emberge.model_folder import read_trunk_settings
from emberge_encoder import TextEncoder
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer

from tests.support.specialists import AUDIO_TOKENS, ROWS, VISION_TOKENS, change_config, text_model
from tests.support.tiny import write_modules
from tests.support.tolerance import EXACT, assert_same_pass, gamma

with warnings.catch_warnings():
    # mergekit's dependencies warn about their own deprecations while they are imported.
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.api import merge_state_dicts as mergekit_merge

IMAGE, AUDIO = 262, 266
START, END, HEAR, HEARD = 260, 261, 264, 265


@functools.cache
def opened(folder: Path) -> Any:
    """A model by plain AutoModel, in float64."""
    return AutoModel.from_pretrained(folder).double()


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def trunk_of(folder: Path) -> dict[str, Tensor]:
    """A trunk's tensors by the names that all classes share below their prefixes."""
    found = weights(folder)
    (first,) = (name for name in found if name.endswith("embed_tokens.weight"))
    prefix = first.removesuffix("embed_tokens.weight")
    return {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}


def assert_same(first: Tensor, second: Tensor) -> None:
    assert first.shape == second.shape
    assert (first - second).abs().max() <= EXACT * second.abs().max()


# ── T-D5 ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["both", "seen", "heard"])
@torch.no_grad()
def test_text_goes_the_way_of_the_bidirectional_trunk(name: str, made: dict[str, Path]) -> None:
    model, trunk = opened(made[name]), opened(made["merged"])
    assert type(trunk).__name__ == "Qwen3Model"
    assert trunk.config.is_causal is False
    ids = torch.randint(0, 256, (2, 12), generator=torch.manual_seed(0))
    mask = torch.ones_like(ids)
    assert_same(
        model(input_ids=ids, attention_mask=mask).last_hidden_state,
        trunk(input_ids=ids, attention_mask=mask).last_hidden_state,
    )
    other = ids.clone()
    other[:, -1] = 7
    moved = model(input_ids=other, attention_mask=mask).last_hidden_state
    still = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert (moved[:, 0] - still[:, 0]).abs().max() > 1e-4, "the first token reads the last"


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(side: str, made: dict[str, Path]) -> None:
    model = opened(made["both"])
    ids = torch.randint(0, 256, (1, 9), generator=torch.manual_seed(1))
    alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    ends = (5, 0) if side == "left" else (0, 5)
    padded = torch.nn.functional.pad(ids, ends, value=256)
    mask = torch.nn.functional.pad(torch.ones_like(ids), ends)
    states = model(input_ids=padded, attention_mask=mask).last_hidden_state
    # Positions are turned in float32 whatever the weights are, and padding moves them.
    assert_same_pass(states[mask.bool()], alone[0], made["both"])


def pictures() -> tuple[Tensor, Tensor]:
    """Patches of two images, and their numbers by time, height and width."""
    grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
    patches = torch.randn(48, 3 * 2 * 4 * 4, generator=torch.manual_seed(2), dtype=torch.float64)
    return patches, grid


def clips() -> tuple[Tensor, Tensor]:
    """Spectra of a clip of two seconds and one of 1.3, and what of them is no padding."""
    spectra = torch.randn(2, 128, 200, generator=torch.manual_seed(3), dtype=torch.float64)
    mask = torch.ones(2, 200, dtype=torch.long)
    mask[1, 130:] = 0
    return spectra * mask[:, None], mask


@pytest.mark.parametrize("name", ["both", "seen"])
@torch.no_grad()
def test_features_of_images_are_the_vision_models(name: str, made: dict[str, Path]) -> None:
    found, expected = (
        opened(made[which]).get_image_features(*pictures()) for which in (name, "vision")
    )
    assert_same(torch.cat(tuple(found.pooler_output)), torch.cat(tuple(expected.pooler_output)))
    assert len(found.deepstack_features) == len(expected.deepstack_features) == 2
    for mine, theirs in zip(found.deepstack_features, expected.deepstack_features, strict=True):
        assert_same(
            *(torch.cat(tuple(one)) if isinstance(one, tuple) else one for one in (mine, theirs))
        )


@torch.no_grad()
def test_features_of_sound_are_the_speech_models(made: dict[str, Path]) -> None:
    expected = opened(made["audio"]).get_audio_features(*clips()).pooler_output
    assert_same(opened(made["both"]).get_audio_features(*clips()).last_hidden_state, expected)
    assert_same(opened(made["heard"]).get_audio_features(*clips()).pooler_output, expected)


def bidirectional(folder: Path, trunk: Path) -> Any:
    """A specialist with another trunk and bidirectional attention, put together by hand."""
    config = AutoConfig.from_pretrained(folder)
    config.text_config.is_causal = False
    model = AutoModel.from_pretrained(folder, config=config).double()
    model.language_model.load_state_dict({n: t.double() for n, t in trunk_of(trunk).items()})
    return model


@pytest.mark.parametrize("name", ["both", "seen"])
@torch.no_grad()
def test_images_among_text_go_the_way_of_the_bidirectional_vision_model(
    name: str, made: dict[str, Path]
) -> None:
    patches, grid = pictures()
    ids = [1, 2, START, *[IMAGE] * 4, END, 5, 6, START, *[IMAGE] * 8, END, 9]
    inputs = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "pixel_values": patches,
        "image_grid_thw": grid,
    }
    kinds = (inputs["input_ids"] == IMAGE).long()
    theirs = bidirectional(made["vision"], made["merged"])
    expected = theirs(**inputs, mm_token_type_ids=kinds).last_hidden_state
    own = {"mm_token_type_ids": kinds} if name == "seen" else {}
    assert_same(opened(made[name])(**inputs, **own).last_hidden_state, expected)


@pytest.mark.parametrize("name", ["both", "heard"])
@torch.no_grad()
def test_sound_among_text_goes_the_way_of_the_bidirectional_speech_model(
    name: str, made: dict[str, Path]
) -> None:
    spectra, mask = clips()
    # 13 states a second.
    ids = [1, HEAR, *[AUDIO] * 26, HEARD, 3, HEAR, *[AUDIO] * 17, HEARD]
    inputs = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "input_features": spectra,
    }
    theirs = bidirectional(made["audio"], made["merged"])
    expected = theirs(**inputs, input_features_mask=mask).last_hidden_state
    own = "feature_attention_mask" if name == "both" else "input_features_mask"
    assert_same(opened(made[name])(**inputs, **{own: mask}).last_hidden_state, expected)


@pytest.mark.parametrize("name", ["both", "seen", "heard"])
@torch.no_grad()
def test_saved_and_loaded_again_it_is_the_same(
    name: str, made: dict[str, Path], tmp_path: Path
) -> None:
    model, info = AutoModel.from_pretrained(made[name], output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.save_pretrained(tmp_path)
    before, after = weights(made[name]), weights(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[one], after[one]) for one in before)
    again = AutoModel.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert again.config.text_config.is_causal is False
    ids = torch.arange(8)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert_same(
        again.double()(**inputs).last_hidden_state, model.double()(**inputs).last_hidden_state
    )


def test_sentence_transformers_opens_it_for_text_and_sound(
    made: dict[str, Path], tmp_path: Path
) -> None:
    folder, texts = made["heard"], ["a short text", "one that is a good deal longer"]
    stock, trunk = (SentenceTransformer(str(made[n]), device="cpu") for n in ("heard", "merged"))
    assert_same_pass(stock.encode(texts), trunk.encode(texts), folder)
    tones = [np.sin(np.arange(int(16000 * s)) / 6).astype(np.float32) for s in (1.0, 1.3)]
    media = MediaFolder(tmp_path / "media")
    inputs = [join_parts([media.add_clip(tone, 16000)]) for tone in tones]
    embedder = TextEmbedder(TextEncoder().load(folder, device="cpu", dtype="float32"))
    theirs = [stock.encode([{"array": tone, "sampling_rate": 16000}])[0] for tone in tones]
    assert np.abs(embedder.embed(inputs) - np.array(theirs)).max() <= 1e-5


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────


def thinkers_name(name: str) -> str:
    """The thinker's name of a specialist's tensor, by the rules as they are written in words."""
    merger = re.fullmatch(
        r"visual\.(merger|deepstack_merger_list\.\d+)\.(norm|linear_fc1|linear_fc2)\.(\w+)", name
    )
    if merger:
        place = merger[1].replace("deepstack_merger_list", "merger_list")
        part = {"norm": "ln_q", "linear_fc1": "mlp.0", "linear_fc2": "mlp.2"}[merger[2]]
        return f"visual.{place}.{part}.{merger[3]}"
    return name.replace("multi_modal_projector.linear_", "audio_tower.proj")


def tower_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a specialist beside its trunk and its head, by their bare names."""
    found = {name.removeprefix("model."): tensor for name, tensor in weights(folder).items()}
    return {n: t for n, t in found.items() if not n.startswith(("language_model.", "lm_head."))}


def test_towers_are_bit_identical(made: dict[str, Path]) -> None:
    result = weights(made["both"])
    for kind in ("vision", "audio"):
        tower = tower_of(made[kind])
        for name in sorted(tower):
            copy = result[thinkers_name(name)]
            raw = tower[name].contiguous().numpy().tobytes()
            assert copy.contiguous().numpy().tobytes() == raw, name


def test_the_trunk_is_mergekits_linear_merge(made: dict[str, Path]) -> None:
    parts = [trunk_of(made[name]) for name in ("text", "vision", "audio")]
    found = trunk_of(made["both"])
    assert found.keys() == parts[0].keys()
    words = "embed_tokens.weight"
    known = 260  # tokens that all three know come first
    cut = [{n: t[:known] if n == words else t for n, t in one.items()} for one in parts]
    theirs = mergekit_merge(cut, "linear", parameters={"weight": [1.0, 1.0, 1.0]})
    for name, tensor in theirs.items():
        mine = found[name][:known] if name == words else found[name]
        size = sum(one[name].abs() for one in cut) / 3
        # Three products, two sums and a division, in two orders.
        assert ((mine - tensor).abs() <= 2 * gamma(6) * size).all(), name


def test_tokens_of_one_specialist_bring_their_embeddings(made: dict[str, Path]) -> None:
    words = "embed_tokens.weight"
    rows = {
        name: trunk_of(made[name])[words] for name in ("encoder", "vision", "audio", "unmerged")
    }
    tokenizer = AutoTokenizer.from_pretrained(made["unmerged"])
    for token in VISION_TOKENS:
        place = tokenizer.convert_tokens_to_ids(token)
        assert torch.equal(rows["unmerged"][place], rows["vision"][place])
    for token in AUDIO_TOKENS:
        place = tokenizer.convert_tokens_to_ids(token)
        assert torch.equal(rows["unmerged"][place], rows["audio"][place])
    others = [i for i in range(ROWS) if not 260 <= i < 267]
    assert torch.equal(rows["unmerged"][others], rows["encoder"][others])


@pytest.mark.parametrize("name", ["both", "seen", "heard", "unmerged"])
def test_tokens_stay_on_their_ids(name: str, made: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made[name])
    kinds = {"seen": ["vision"], "heard": ["audio"]}.get(name, ["vision", "audio"])
    for kind in ("text", *kinds):
        for token, place in AutoTokenizer.from_pretrained(made[kind]).get_vocab().items():
            assert tokenizer.convert_tokens_to_ids(token) == place
    assert tokenizer.mask_token == "<|repo_name|>"
    text = "Wörter <|image_pad|> und mehr"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


# ── configs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "reads"), [("both", "images and sound"), ("seen", "images"), ("heard", "sound")]
)
def test_the_card_says_what_it_reads_and_what_opens_it(
    name: str, reads: str, made: dict[str, Path]
) -> None:
    card = (made[name] / "README.md").read_text("utf-8")
    assert f"for text and {reads}" in card
    assert ("needs torchvision" in card) == (name != "heard")
    assert ("torchvision" in card) == (name != "heard")


# ── with other steps ────────────────────────────────────────────────────────────────────────────


def test_modules_prompts_and_heads_of_the_text_model(
    made: dict[str, Path], tmp_path: Path, plugins: Plugins
) -> None:
    """Modules with weights, pooling and prompts come along; a head that predicts tokens does not."""
    text_model(tmp_path / "text", tie_word_embeddings=False, is_causal=False)
    write_modules(tmp_path / "text", 32, pooling="cls")
    modules = json.loads((tmp_path / "text/modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": kind})
    settings = {"prompts": {"query": "q: "}, "similarity_fn_name": "dot", "truncate_dim": 4}
    change_config(tmp_path / "text", file="config_sentence_transformers.json", **settings)
    change_config(tmp_path / "text", file="sentence_bert_config.json", max_seq_length=32)
    for name in ("LICENSE", "colbert_linear.pt"):
        (tmp_path / "text" / name).write_text(name)
    (tmp_path / "text/modules.json").write_text(json.dumps(modules))
    (tmp_path / "text/3_Dense").mkdir()
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    shape = {"in_features": 32, "out_features": 8, "bias": False, **activation}
    (tmp_path / "text/3_Dense/config.json").write_text(json.dumps(shape))
    dense = {"linear.weight": torch.randn(8, 32)}
    save_file(dense, tmp_path / "text/3_Dense/model.safetensors")
    recipe = f"steps: {{heard: {{compose: {{text: {tmp_path}/text, audio: {made['audio']}}}}}}}"
    result = run_recipe(parse_recipe(recipe, plugins), tmp_path / "out", plugins, quiet=True)[
        "heard"
    ].path
    assert torch.equal(weights(result / "3_Dense")["linear.weight"], dense["linear.weight"])
    for name in ("1_Pooling/config.json", "LICENSE", "colbert_linear.pt"):
        assert (result / name).read_bytes() == (tmp_path / "text" / name).read_bytes()
    stated = json.loads((result / "config_sentence_transformers.json").read_text())
    assert stated.items() >= settings.items()
    assert read_trunk_settings(result)["max_seq_length"] == 32
    assert not [name for name in weights(result) if "lm_head" in name]
    model = SentenceTransformer(str(result), device="cpu")
    assert model.prompts["query"] == "q: "
    text = SentenceTransformer(str(tmp_path / "text"), device="cpu")
    inputs = ["a text", "and a longer one"]
    assert_same_pass(model.encode(inputs), text.encode(inputs), result)
