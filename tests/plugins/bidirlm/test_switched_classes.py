"""Causal classes whose layers can all be switched stay bidirectional in plain loaders; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoConfig, AutoModel

from tests.support import tiny
from tests.support.as_encoder import encoder, problems
from tests.support.decoders import HYBRIDS, TALKING, decoder
from tests.support.json_files import edit
from tests.support.tolerance import EXACT, assert_same_pass

TEXTS = ["how to read a file", "Sort a LIST of numbers", "weather"]
BOTH = TextEncoder(attention="bidirectional", pooling="mean")
CLASSES = ("qwen3", "qwen3_moe", "mistral", "gemma3_text", "qwen3_vl", "qwen3_asr")


def states(model: Any, ids: list[int], there: int | None = None) -> Tensor:
    """Hidden states of one text, of which the first tokens are `there` and the others padding."""
    mask = torch.ones(1, len(ids), dtype=torch.long)
    mask[:, there or len(ids) :] = 0
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=torch.tensor([ids]), attention_mask=mask)[0][0]
    return found


def sees_the_last_token(model: Any) -> bool:
    return not torch.allclose(
        states(model, [5, 6, 7, 8])[0], states(model, [5, 6, 7, 9])[0], rtol=0, atol=EXACT
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_a_switched_class_stays_bidirectional_in_plain_loaders(kind: str, tmp_path: Path) -> None:
    exactly: dict[str, Any] = {"dtype": torch.float64}
    if kind.endswith("moe"):
        exactly["experts_implementation"] = "eager"  # the fast one knows no float64

    def plain(folder: Path) -> Any:
        model, report = AutoModel.from_pretrained(folder, output_loading_info=True, **exactly)
        assert not any(report.values())
        return model

    source = decoder(tmp_path / "m", kind)
    assert not sees_the_last_token(plain(source))
    folder, _ = encoder(source, tmp_path / "run")
    model = plain(folder)
    assert sees_the_last_token(model)
    alone, *padded = (states(model, [5, 6, 7, 8, *pads], 4)[:4] for pads in ([], [0, 0], [9, 10]))
    for found in padded:
        assert torch.allclose(found, alone, rtol=0, atol=EXACT)
    model.save_pretrained(tmp_path / "again")
    assert sees_the_last_token(plain(tmp_path / "again"))
    if kind == "qwen3_vl":
        return  # sentence-transformers opens it with an image processor alone, which needs torchvision
    opened = SentenceTransformer(str(folder), device="cpu", model_kwargs=exactly)
    assert sees_the_last_token(opened[0].auto_model)
    if kind not in TALKING:  # of those it wants sound, or messages
        ours = TextEmbedder(TextEncoder().load(folder, device="cpu", dtype="float32")).embed(TEXTS)
        theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        assert_same_pass(ours, theirs, folder)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_hybrid_is_refused_by_name_before_any_work(kind: str, tmp_path: Path) -> None:
    source = decoder(tmp_path / "m", kind)
    ((where, message),) = problems(source)
    assert where == "model"
    assert all(word in message for word in (str(source), f"'{kind}' is a hybrid", "0 ("))
    (problem,) = BOTH.describe(source).problems
    assert f"'{kind}' is a hybrid" in problem
    TextEncoder(pooling="last").load(source, device="cpu", dtype="float32")  # causal as it is
    (problem,) = TextEncoder(pooling="mean").describe(source).problems
    assert "set pooling: last" in problem
    # Half switched, as others' loaders leave it.
    edit(source, "config.json", is_causal=False)
    (problem,) = TextEncoder(pooling="last").describe(source).problems
    assert f"'{kind}' is a hybrid" in problem


def test_a_class_that_ignores_the_switch_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    source = tmp_path / "gpt"
    size = tiny.write_tokenizer(source)
    config = AutoConfig.for_model("openai-gpt", vocab_size=size, n_embd=32, n_head=4, n_layer=2)
    AutoModel.from_config(config).save_pretrained(source)
    for backbone, fix in ((BOTH, "cannot be switched"), (TextEncoder(pooling="mean"), "take")):
        if backbone is not BOTH:  # as a folder that was switched elsewhere
            edit(source, "config.json", is_causal=False)
        with pytest.raises(CheckpointError) as caught:
            backbone.load(source, device="cpu", dtype="float32")
        for word in (str(source), "OpenAIGPTModel ignores attention: bidirectional", fix):
            assert word in str(caught.value)


# ── Gemma 3, which halves its window ────────────────────────────────────────────────────────────


def first_change(model: Any) -> int:
    """The first of twelve tokens whose state changes with the last token."""
    text = [*range(5, 17)]
    changed = states(model, text) - states(model, [*text[:-1], 20])
    return int(changed.abs().amax(-1).gt(EXACT).nonzero()[0])


def gemma(folder: Path, **changes: Any) -> Path:
    return decoder(folder, "gemma3_text", num_hidden_layers=1, **changes)


def test_gemmas_window_reaches_as_far_as_worked_out(tmp_path: Path) -> None:
    """T-D2: one sliding layer, a window of 6, twelve tokens, the last of them changed."""
    source = gemma(tmp_path / "m")

    def loaded(**flags: Any) -> Any:
        config = AutoConfig.from_pretrained(source)
        for name, value in flags.items():
            setattr(config, name, value)
        return AutoModel.from_pretrained(source, config=config, dtype=torch.float64)

    folder, _ = encoder(source, tmp_path / "run")
    ours = AutoModel.from_pretrained(folder, dtype=torch.float64)
    assert first_change(ours) == 8
    ours.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["sliding_window"] == 6
    assert first_change(AutoModel.from_pretrained(tmp_path / "again", dtype=torch.float64)) == 8
    written = json.loads((source / "config.json").read_text())
    assert json.loads((folder / "config.json").read_text()) == {
        **written,
        "use_bidirectional_attention": True,
    }
    # Each of the others means another window.
    assert first_change(loaded(use_bidirectional_attention=True)) == 6
    assert first_change(loaded(is_causal=False)) == 5
    assert first_change(loaded()) == 11
    edit(folder, "config.json", is_causal=False)
    assert first_change(AutoModel.from_pretrained(folder, dtype=torch.float64)) == 7


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ({"is_causal": False, "use_bidirectional_attention": True}, "take is_causal out"),
        ({"sliding_window": 7, "use_bidirectional_attention": True}, "make it even"),
    ],
)
def test_windows_that_mean_something_else_are_refused(
    flags: dict[str, Any], fix: str, tmp_path: Path
) -> None:
    source = gemma(tmp_path / "m")
    edit(source, "config.json", **flags)
    for backbone in (TextEncoder(pooling="mean"), BOTH):
        (problem,) = backbone.describe(source).problems
        assert str(source / "config.json") in problem
        assert fix in problem
    ((where, message),) = problems(source)
    assert where == "model"
    assert fix in message


def test_gemmas_flag_counts_for_gemma_alone(tmp_path: Path) -> None:
    source = decoder(tmp_path / "m", "qwen3")
    edit(source, "config.json", use_bidirectional_attention=True)
    (problem,) = TextEncoder(pooling="mean").describe(source).problems
    assert "its attention is causal" in problem
    folder, _ = encoder(source, tmp_path / "run")
    assert json.loads((folder / "config.json").read_text())["is_causal"] is False
