"""Trainings with losses over tokens: the same as a loop written by hand, on any ranks, after any kill."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import DataError, Loss, PerDataset, TokenLoss
from emberge.training import FitOptions
from emberge_boom import Bagging
from emberge_train import MLM, BatchShuffle, InfoNCE

from tests.support import tiny
from tests.support.exact import ExactEncoder
from tests.support.token_training import (
    EPSILON,
    MASKED,
    OPTIONS,
    Together,
    arguments_of,
    assert_two_ranks_are_one,
    by_hand,
    fit_tokens,
    losses_of,
    windows_of,
)
from tests.support.tolerance import EXACT, exactly, of_adamw
from tests.support.training_data import InMemory, retrieval, texts

ARCHITECTURES = {
    "bert": "AutoModelForMaskedLM",
    "xlm-roberta": "AutoModelForMaskedLM",
    "modernbert": "AutoModelForMaskedLM",
    "qwen3": "AutoModelForCausalLM",
}


def _model(root: Path, architecture: str = "bert", **config: Any) -> Path:
    return tiny.transformer(
        root / architecture, ARCHITECTURES[architecture], architecture, **config
    )


def _backbone(architecture: str = "bert", **options: Any) -> ExactEncoder:
    attention = "bidirectional" if architecture == "qwen3" else "as is"
    return ExactEncoder(pooling="mean", attention=attention, **options)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_training_is_the_loop_written_by_hand(architecture: str, tmp_path: Path) -> None:
    folder = _model(tmp_path, architecture)
    found = fit_tokens(folder, tmp_path, backbone=_backbone(architecture))
    loader = getattr(transformers, ARCHITECTURES[architecture])
    config = transformers.AutoConfig.from_pretrained(folder)
    if architecture == "qwen3":
        config.is_causal = False
    model = loader.from_pretrained(folder, config=config).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    windows = windows_of(tokenizer, texts())
    expected = by_hand(model, tokenizer, windows)
    assert found.examples == 2 * len(windows) > 2 * len(texts())
    assert losses_of(found) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0]
    again = loader.from_pretrained(tmp_path / "out", dtype=torch.float64)
    far = of_adamw(1e-3, len(expected), EPSILON, EXACT)
    ours, theirs = again.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=0, atol=far + EXACT), name


@pytest.mark.slow
def test_two_ranks_are_one_process(tmp_path: Path) -> None:
    arguments = arguments_of(_model(tmp_path), datasets=[texts(21)])
    assert_two_ranks_are_one(tmp_path, arguments)


def test_losses_are_a_weighted_sum(tmp_path: Path) -> None:
    folder = _model(tmp_path)
    options = FitOptions(**OPTIONS | {"epochs": None, "max_steps": 1})
    other = MLM(share=0.2)
    alone = [
        fit_tokens(folder, tmp_path / str(i), options=options, losses=PerDataset(default=losses))
        for i, losses in enumerate([(MASKED,), (MASKED, other), (MASKED, replaced(other, 3.0))])
    ]
    first, both, thrice = (losses_of(result)[0] for result in alone)
    assert thrice - first == exactly(3 * (both - first))


def replaced(loss: MLM, weight: float) -> MLM:
    return dataclasses.replace(loss, weight=weight)


LOSSES: PerDataset[tuple[Loss | TokenLoss, ...]] = PerDataset(
    default=(InfoNCE(),), by_task={"text": (MASKED,)}
)


def test_a_step_of_both_is_their_mean_by_rows(tmp_path: Path) -> None:
    folder = _model(tmp_path)
    given: dict[str, Any] = {"datasets": [texts(12), retrieval(16)], "losses": LOSSES}
    read, find, both = (
        losses_of(
            fit_tokens(folder, tmp_path / "+".join(n), sampler=(Together(names=n),), **given)
        )[0]
        for n in (("read",), ("find",), ("read", "find"))
    )
    assert both == exactly(read * 4 / 12 + find * 8 / 12)


def test_a_bag_counts_texts_and_not_windows(tmp_path: Path) -> None:
    data = texts(24)
    chain = (Bagging(ratio=0.3), BatchShuffle(batch_size=PerDataset(default=4)))
    result = fit_tokens(_model(tmp_path), tmp_path, datasets=[data], sampler=chain)
    assert 0 < result.rows_by_dataset["read"] < 24


def test_batches_of_tokens_are_trained(tmp_path: Path) -> None:
    sampler = BatchShuffle(batch_tokens=PerDataset(default=256), tail="keep")
    data = texts()
    result = fit_tokens(_model(tmp_path), tmp_path, datasets=[data], sampler=(sampler,))
    by_rows = fit_tokens(_model(tmp_path), tmp_path / "rows", datasets=[data])
    assert result.examples == by_rows.examples
    assert result.steps != by_rows.steps


@pytest.mark.parametrize(
    ("data", "losses", "fix"),
    [
        (texts(8), (InfoNCE(),), r"'read' \(text\) has single ones; .*by_task: \{text: …\}"),
        (retrieval(8), (MASKED,), "'find' is of the task retrieval; .*by_task: {retrieval: …}"),
        (texts(8), (MASKED, InfoNCE()), "losses over tokens and others in one sum"),
    ],
)
def test_a_loss_for_another_kind_of_data_is_refused(
    data: InMemory, losses: Any, fix: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=fix):
        fit_tokens(bert, tmp_path, datasets=[data], losses=PerDataset(default=losses))
    assert not (tmp_path / "out").exists()
