"""Settings that the machine chooses once for a training: threads, precision, size of chunks."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from emberge.contracts import Encoder, TokenisedText
from emberge.devices import choose_training_dtype
from emberge.encoding import (
    choose_token_budget,
    count_saved_bytes,
    find_device,
    forward,
    measure_activation_budget,
)
from emberge.files import make_folder, write_json
from emberge.ranks import RankGroup
from emberge.training.example_table import ExampleTable
from emberge.training.fit_options import FitOptions
from emberge.training.text_windows import WindowTable

# Share of the memory for activations that a running chunk may use; the rest is for kept activations.
RUNNING_CHUNK_MEMORY_SHARE = 0.5
# Smallest token budget. Smaller chunks would save nothing, as a longer text is a chunk by itself.
LEAST_TOKENS = 128
SETTINGS_FILE = "machine.json"


@dataclass(frozen=True)
class MachineSettings:
    """Settings that the machine chooses at the first start and keeps for all later starts.

    The token budget is `fitted` if the options set it, or if it was compared with the free memory.
    """

    threads: int
    token_budget: int
    precision: str
    fitted: bool = True

    @property
    def autocast(self) -> torch.dtype | None:
        """Number type of forward passes, if it is not that of the weights."""
        return torch.bfloat16 if self.precision == "bfloat16" else None


def choose_settings(work: Path, options: FitOptions, ranks: RankGroup) -> MachineSettings:
    """Return the settings of an earlier start, or choose them now and write them into `work`.

    The ranks of a machine share its cores, and the first rank decides for all.
    """

    def choose() -> MachineSettings:
        path = work / SETTINGS_FILE
        if path.is_file():
            return MachineSettings(**json.loads(path.read_text(encoding="utf-8")))
        precision: str = options.precision
        if precision in ("auto", "fast"):
            precision = choose_training_dtype(ranks.device, allows_bfloat16=precision == "fast")
        settings = MachineSettings(
            threads=max(1, torch.get_num_threads() // ranks.local_size),
            token_budget=options.token_budget or choose_token_budget(ranks.device, training=True),
            precision=precision,
            fitted=options.token_budget is not None,
        )
        make_folder(work)
        return _write_settings(work, settings)

    return MachineSettings(**ranks.run_on_first_rank(lambda: asdict(choose())))


def _write_settings(work: Path, settings: MachineSettings) -> MachineSettings:
    write_json(work / SETTINGS_FILE, asdict(settings))  # before any state that depends on it
    return settings


def fit_token_budget(
    work: Path,
    settings: MachineSettings,
    encoder: Encoder,
    tables: Collection[ExampleTable | WindowTable],
    ranks: RankGroup,
) -> MachineSettings:
    """Return the settings with a token budget that fits into memory, and save them; keep fitted settings.

    The budget is halved until the activations of a chunk, by those of the longest text, fit into the free
    memory. The first rank decides for all ranks. States are only saved later, so a kill changes no result.
    """

    def fit() -> MachineSettings:
        text = _find_longest(tables)
        budget = settings.token_budget
        if text is not None:
            saved = measure_activation_bytes(encoder, text, settings.autocast)
            memory = measure_activation_budget(
                encoder.module, find_device(encoder), ranks.local_size
            )
            budget = halve_to_fit(budget, saved / len(text.ids), memory)
        return _write_settings(work, replace(settings, token_budget=budget, fitted=True))

    if settings.fitted:
        return settings
    return MachineSettings(**ranks.run_on_first_rank(lambda: asdict(fit())))


def halve_to_fit(wanted: int, bytes_a_token: float, memory: int) -> int:
    """Return `wanted` tokens, halved until a chunk needs no more than its share of `memory` bytes."""
    budget = wanted
    while budget > LEAST_TOKENS and budget * bytes_a_token > memory * RUNNING_CHUNK_MEMORY_SHARE:
        budget //= 2
    return budget


def measure_activation_bytes(
    encoder: Encoder, text: TokenisedText, autocast: torch.dtype | None = None
) -> int:
    """Return the bytes that a forward pass over one text saves for its backward pass, as in training."""
    module = encoder.module
    training = module.training
    module.train()
    try:
        with count_saved_bytes(module) as saved:
            forward(encoder, [text], (), autocast)
    finally:
        module.train(training)
    return saved.count


def _find_longest(tables: Collection[ExampleTable | WindowTable]) -> TokenisedText | None:
    """Return the text with the most tokens, the first of equals; None without texts."""
    filled = [table.sequences for table in tables if len(table.sequences)]
    longest = max(filled, key=lambda sequences: int(sequences.lengths.max()), default=None)
    return None if longest is None else longest[int(np.argmax(longest.lengths))]
