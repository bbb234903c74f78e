"""Trainings with losses over tokens: their settings, the same written by hand, and on two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import Batch, DatasetInfo, PerDataset, Pool, Sampler, Tokens, make_seed
from emberge.contracts import BatchPart
from emberge.training import FitOptions, FitResult
from emberge_train import MLM, BatchShuffle
from safetensors.torch import load_file

from tests.support import ranked_fit
from tests.support.exact import ExactEncoder
from tests.support.fitting import run_fit
from tests.support.ranked_fit import Training
from tests.support.tolerance import EXACT, exactly, of_adamw
from tests.support.training_data import InMemory, texts

MASKED = MLM(share=0.4, masked=0.8, random=0.1)
EPSILON = 1e-4
OPTIONS: dict[str, Any] = {
    **{"epochs": 2, "learning_rate": 1e-3, "schedule": "constant", "warmup_ratio": 0.0},
    **{"weight_decay": 0.0, "max_grad_norm": None, "adam_epsilon": EPSILON, "dropout": False},
    **{"token_budget": 150, "logging_steps": 1},
}


def arguments_of(model: Path, **given: Any) -> dict[str, Any]:
    """What a training with a loss over tokens is given, but for its folders."""
    return {
        "backbone": ExactEncoder(pooling="mean"),
        "checkpoint": model,
        "datasets": [texts()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8), tail="keep"),),
        "losses": PerDataset(default=(MASKED,)),
        "options": FitOptions(**OPTIONS),
        "seed": 0,
        **given,
    }


def fit_tokens(model: Path, root: Path, **given: Any) -> FitResult:
    """Train that model into the folder `out` of `root`."""
    return run_fit(**arguments_of(model, **given), folder=root / "out", work=root / "work")


def losses_of(result: FitResult) -> list[float]:
    """The loss of each step."""
    return [loss for _, loss in result.step_losses]


@dataclass(frozen=True, kw_only=True)
class Together(Sampler):
    """One batch with rows of every dataset named."""

    names: tuple[str, ...]

    def batches(self, pool: Pool, seed: int) -> list[Batch]:
        parts = {
            info.name: BatchPart(info.name, range(4 if info.task == "text" else 8)) for info in pool
        }
        return [Batch(tuple(parts[name] for name in self.names))]


def windows_of(tokenizer: Any, data: InMemory) -> list[list[int]]:
    """Cut by hand: 62 tokens between the two special ones."""
    found = []
    for row in range(len(data)):
        ids = tokenizer(data[row].anchor, add_special_tokens=False)["input_ids"]
        found += [
            [tokenizer.cls_token_id, *ids[cut : cut + 62], tokenizer.sep_token_id]
            for cut in range(0, len(ids), 62)
        ]
    return found


def _batches(windows: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the rows of each step, as the sampler draws them."""
    sampler = BatchShuffle(batch_size=PerDataset(default=8), tail="keep")
    pool = {DatasetInfo("read", "text", windows): range(windows)}
    step = 0
    for epoch in range(2):
        for batch in sampler.batches(pool, make_seed(0, "epoch", epoch)):
            yield step, [int(row) for row in batch.parts[0].rows]
            step += 1


def by_hand(
    model: Any,
    tokenizer: Any,
    windows: list[list[int]],
    own: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[float]:
    """Train with transformers' own loss over a whole padded batch, and a term of the model's own.

    `own` returns that of the pass before, given its mask.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPSILON, weight_decay=0.0)
    special = np.asarray(tokenizer.all_special_ids)
    losses = []
    for step, rows in _batches(len(windows)):
        corrupted = []
        for row in rows:
            ids = np.asarray(windows[row], np.int64)
            text = Tokens(ids, np.isin(ids, special), tokenizer.mask_token_id, len(tokenizer))
            seed = make_seed(0, "corruption", step, "read", 0, row)
            corrupted.append(tuple(map(torch.from_numpy, MASKED.corrupt(text, seed))))
        ids, labels = (
            torch.nn.utils.rnn.pad_sequence([c[i] for c in corrupted], True, fill)
            for i, fill in enumerate((0, -100))
        )
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(c[0]) for c in corrupted], True, 0)
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if own is not None:
            loss = loss + own(mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def assert_two_ranks_are_one(root: Path, arguments: Mapping[str, Any]) -> None:
    """Train on one rank and on two: losses and weights agree but for the rounding of float64."""
    (one,), (two,) = (
        ranked_fit.run(
            [Training(root / f"{ranks}", arguments, exact=True)], root / f"{ranks}.pkl", ranks
        )
        for ranks in (1, 2)
    )
    assert two["losses"] == exactly(one["losses"])
    first, second = (load_file(root / f"{ranks}/out/model.safetensors") for ranks in (1, 2))
    far = of_adamw(1e-3, len(one["losses"]), EPSILON, EXACT)
    for name, tensor in first.items():
        assert torch.allclose(second[name], tensor, rtol=0, atol=far + EXACT), name
