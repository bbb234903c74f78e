"""Settings that the machine chooses once for a training: threads, precision, size of chunks.

Chunks are as large as is fast, and smaller where memory is short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from emberge.contracts import Encoder, TokenisedText
from emberge.devices import choose_training_dtype
from emberge.encoding import (
    activation_budget,
    default_token_budget,
    device_of,
    forward,
    saved_bytes,
)
from emberge.files import make_folder, write_json
from emberge.ranks import Ranks
from emberge.training.fit_options import FitOptions
from emberge.training.tables.example_table import ExampleTable
from emberge.training.tables.text_windows import WindowTable

# Of what activations may take this much is for the chunk that runs, the rest for those that are kept.
CHUNK_SHARE = 0.5
# Smaller chunks save nothing: a text that is longer is a chunk of its own.
LEAST = 128


@dataclass(frozen=True)
class EngineSettings:
    """Settings that the machine chooses at the first start and keeps for every later one.

    The token budget is `fitted` when it was asked for by name or memory was looked at.
    """

    threads: int
    token_budget: int
    precision: str
    fitted: bool = True


def choose_engine(work: Path, device: str, options: FitOptions, beside: int = 1) -> EngineSettings:
    """Return the settings of an earlier start, or choose them now and write them into `work`.

    `beside` ranks share the machine's cores.
    """
    path = work / "engine.json"
    if path.is_file():
        return EngineSettings(**json.loads(path.read_text(encoding="utf-8")))
    precision = options.precision
    resolved = choose_training_dtype(device) if precision == "auto" else precision
    budget = options.token_budget or default_token_budget(device, training=True)
    asked = options.token_budget is not None
    engine = EngineSettings(
        max(1, torch.get_num_threads() // beside), budget, resolved, fitted=asked
    )
    make_folder(work)
    return _write_settings(work, engine)


def fit_budget(work: Path, engine: EngineSettings, fit: Callable[[int], int]) -> EngineSettings:
    """Return the settings with the budget that `fit` makes of theirs, written down; a fitted one stays.

    No state is saved before, so a kill on the way here changes nothing.
    """
    if engine.fitted:
        return engine
    return _write_settings(
        work, replace(engine, token_budget=fit(engine.token_budget), fitted=True)
    )


def _write_settings(work: Path, engine: EngineSettings) -> EngineSettings:
    path = work / "engine.json"
    write_json(path, asdict(engine))  # on the disk before any state that was computed under it
    return engine


def budgeted(
    work: Path,
    engine: EngineSettings,
    encoder: Encoder,
    tables: Collection[ExampleTable | WindowTable],
    ranks: Ranks,
) -> EngineSettings:
    """Return the settings with a token budget that fits into memory, found by the first rank for all."""
    autocast = torch.bfloat16 if engine.precision == "bfloat16" else None

    def fit(wanted: int) -> int:
        return find_fitting_budget(encoder, tables, wanted, autocast=autocast, beside=ranks.beside)

    return EngineSettings(**ranks.on_first_rank(lambda: asdict(fit_budget(work, engine, fit))))


def find_fitting_budget(
    encoder: Encoder,
    tables: Collection[ExampleTable | WindowTable],
    wanted: int,
    *,
    autocast: torch.dtype | None,
    beside: int = 1,
) -> int:
    """Return `wanted` tokens of a chunk, halved until its activations fit into the free memory.

    More than `wanted` would be no faster, and halves are few: machines with enough memory, or hardly less,
    agree and so sum alike. The longest text of all is tried; on a CPU `beside` ranks share the memory.
    """
    text = _find_longest(tables)
    if text is None:
        return wanted
    device = device_of(encoder)
    each = measure_activation_bytes(encoder, text, autocast) / len(text.ids)
    return halve_to_fit(wanted, each, activation_budget(encoder.module, device, beside))


def halve_to_fit(wanted: int, bytes_a_token: float, memory: int) -> int:
    """Return `wanted` tokens, halved until a chunk takes only its share of `memory` bytes."""
    budget = wanted
    while budget > LEAST and budget * bytes_a_token > memory * CHUNK_SHARE:
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
        with saved_bytes(module) as counter:
            forward(encoder, [text], (), autocast)
    finally:
        module.train(training)
    return counter[0]


def _find_longest(tables: Collection[ExampleTable | WindowTable]) -> TokenisedText | None:
    longest: TokenisedText | None = None
    for table in tables:
        lengths = table.sequences.lengths
        if len(lengths):
            text = table.sequences[int(np.argmax(lengths))]
            if longest is None or len(text.ids) > len(longest.ids):
                longest = text
    return longest
