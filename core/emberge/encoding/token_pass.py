"""Passes of token losses over a batch's corrupted texts, chunk by chunk, each text a row or packed.

A token loss is a mean over the scored positions of the whole batch, and their number is known before the
first chunk runs. Each chunk therefore runs forward and backward once, weighted by its scored positions.
A model with a loss term of its own needs the counts of the whole batch, so all its chunks first run up to
their hidden states, as the gradient cache does for embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import UNSCORED_LABEL, TokenisedText, TokenLoss, TokenPredictor, Tokens
from emberge.encoding.chunk_runner import ChunkOutput, ChunkRunner, EncodePlan, PassResult
from emberge.encoding.chunks import (
    Features,
    count_padded_tokens,
    cut_chunks,
    find_device,
    prefetch_chunks,
    to_device,
)
from emberge.encoding.token_files import Ragged

# Number of texts that `score_texts` sorts and cuts into chunks at once.
_SCORED_AT_ONCE = 1024
# Texts of the probe of packing by row: as a text's neighbours, with padding, and alone.
_PROBE_LENGTHS = ((5, 3, 7), (6, 4), (8,))


@dataclass(frozen=True, slots=True, eq=False)
class CorruptedText:
    """Token ids of a text as changed by a loss, and the labels [t] of its tokens."""

    text: TokenisedText
    labels: NDArray[np.int64]


def corrupt_text(
    encoder: TokenPredictor, text: TokenisedText, loss: TokenLoss, seed: int
) -> CorruptedText:
    """Return a text corrupted by the loss, except for special tokens and the prompt."""
    ids = np.asarray(text.ids, np.int64)
    spared = np.array(encoder.special(ids), bool)
    spared[: text.prompt_length] = True
    changed, labels = loss.corrupt(Tokens(ids, spared, encoder.mask_id, encoder.vocabulary), seed)
    return CorruptedText(TokenisedText(changed.tolist(), text.prompt_length), labels)


def predict_and_backward(
    encoder: TokenPredictor,
    texts: Sequence[CorruptedText],
    loss: TokenLoss,
    encode_plan: EncodePlan,
    *,
    seed: int,
    weight: float = 1.0,
    auxiliary_weight: float = 1.0,
) -> PassResult:
    """Compute a loss over all ranks' texts, and add this rank's gradients, times `weight`.

    A loss term of the model's own is added, times `auxiliary_weight`. The loss of the result is this rank's
    share of both.
    """
    rows = _TokenRows.of(texts, encode_plan.packing)
    # Counts of positions are far below the integers that float64 has.
    scored_positions = encode_plan.ranks.sum_over_ranks(
        torch.tensor(float(rows.scored.sum()), dtype=torch.float64)
    ).item()
    pieces = cut_chunks(rows.lengths, encode_plan.token_budget)
    padded = count_padded_tokens(rows.lengths, pieces)

    def read_states(features: Features) -> ChunkOutput:
        states, auxiliary = encoder.states_and_auxiliary(features)
        return ChunkOutput([states], auxiliary)

    with prefetch_chunks(
        encoder, rows.texts, pieces, collate=_choose_collate(encoder, encode_plan)
    ) as chunk_features:
        runner = ChunkRunner(chunk_features, rows.lengths, read_states, encode_plan, seed)
        total = torch.zeros((), device=chunk_features.device)
        counts, kept_tokens = None, padded
        if encoder.has_auxiliary:
            for _ in runner.run_first_pass():
                pass
            counts = runner.sum_counts(texts_on_all_ranks=False)
            kept_tokens = runner.kept_tokens
        for index, piece in enumerate(pieces):
            features = chunk_features[index]
            output = runner.pop_graph(index) or runner.run(index, features)
            labels = _place_labels([label for i in piece for label in rows.labels[i]], features)
            with runner.use_seeded_autocast("head", index):
                value = loss(output.values[0], labels, encoder.logits)
            share = value * (weight * float(rows.scored[piece].sum()) / max(scored_positions, 1.0))
            if output.auxiliary is not None and counts is not None:
                share = share + output.auxiliary.term(counts) * auxiliary_weight
            if share.requires_grad:
                share.backward()  # type: ignore[no-untyped-call]
            total = total + share.detach()
    return PassResult(total, int(rows.lengths.sum()), padded, kept_tokens, counts, runner.metrics)


@dataclass(frozen=True, eq=False)
class _TokenRows:
    """The texts and labels of a batch by row, with each row's tokens and positions."""

    texts: Sequence[Sequence[TokenisedText]]
    labels: Sequence[Sequence[NDArray[np.int64]]]
    lengths: NDArray[np.int64]
    scored: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[CorruptedText], packing: int | None) -> _TokenRows:
        """Return rows of one text each, or packed to a length."""
        lengths = np.fromiter((len(t.labels) for t in texts), np.int64, len(texts))
        scored = np.fromiter(
            (np.count_nonzero(t.labels != UNSCORED_LABEL) for t in texts), np.int64, len(texts)
        )
        rows = np.arange(len(texts))[:, None] if packing is None else pack_rows(lengths, packing)
        return cls(
            [[texts[i].text for i in row] for row in rows],
            [[texts[i].labels for i in row] for row in rows],
            np.fromiter((lengths[row].sum() for row in rows), np.int64, len(rows)),
            np.fromiter((scored[row].sum() for row in rows), np.int64, len(rows)),
        )


def _choose_collate(
    encoder: TokenPredictor, encode_plan: EncodePlan
) -> Callable[[Sequence[Sequence[TokenisedText]]], Features]:
    """Return the function that collates a chunk's rows into features."""
    if encode_plan.packing is None:
        return lambda rows: encoder.collate([text for (text,) in rows])
    return encoder.pack


def _place_labels(labels: Sequence[NDArray[np.int64]], features: Mapping[str, Tensor]) -> Tensor:
    """Return the labels of a batch of features [b, t], UNSCORED_LABEL at padding."""
    ids = features["input_ids"]
    flat = to_device(torch.from_numpy(np.concatenate(labels)), ids.device)
    mask = features.get("attention_mask")
    if mask is None:
        return flat.view(ids.shape)
    placed = torch.full_like(ids, UNSCORED_LABEL)
    placed[mask.bool()] = flat
    return placed


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Losses of texts: `nats` [n] are sums over the `scored` [n] positions of each text."""

    nats: NDArray[np.float64]
    scored: NDArray[np.int64]


def score_texts(
    encoder: TokenPredictor,
    texts: Ragged,
    loss: TokenLoss,
    *,
    seed_of: Callable[[int], int],
    token_budget: int,
) -> TokenScores:
    """Return the losses of texts, computed in chunks of `token_budget` tokens.

    The seed of a text's corruption depends on its position in the list, so the corruption is the same for
    every model with the same tokens.
    """
    nats, scored = np.zeros(len(texts)), np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), _SCORED_AT_ONCE):
        span = slice(start, min(start + _SCORED_AT_ONCE, len(texts)))
        numbers = range(span.start, span.stop)
        corrupted_texts = [corrupt_text(encoder, texts[i], loss, seed_of(i)) for i in numbers]
        scored[span] = [int((c.labels != UNSCORED_LABEL).sum()) for c in corrupted_texts]
        nats[span] = scored[span] * _compute_mean_losses(
            encoder, corrupted_texts, loss, token_budget
        )
    return TokenScores(nats, scored)


def _compute_mean_losses(
    encoder: TokenPredictor,
    corrupted_texts: Sequence[CorruptedText],
    loss: TokenLoss,
    token_budget: int,
) -> NDArray[np.float64]:
    """Return the mean loss [n] over the scored positions of each text."""
    means = np.zeros(len(corrupted_texts))
    pieces = cut_chunks([len(text.labels) for text in corrupted_texts], token_budget)
    with (
        torch.no_grad(),
        prefetch_chunks(encoder, [c.text for c in corrupted_texts], pieces) as features,
    ):
        for number, piece in enumerate(pieces):
            batch = features[number]
            states, mask = encoder.states(batch), batch.get("attention_mask")
            for row, index in enumerate(piece):
                text_states = states[row] if mask is None else states[row][mask[row].bool()]
                labels = to_device(
                    torch.from_numpy(corrupted_texts[index].labels), text_states.device
                )
                means[index] = float(loss(text_states[None], labels[None], encoder.logits))
    return means


def pack_rows(lengths: Sequence[int] | NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
    """Pack texts into rows of at most `length` tokens by first-fit, longest text first.

    A longer text is a row of its own. Ties keep their order.
    """
    sizes = np.asarray(lengths, np.int64)
    rows: list[list[int]] = []
    free_tokens = np.zeros(len(sizes), np.int64)
    for text in np.argsort(-sizes, kind="stable"):
        fitting_rows = np.flatnonzero(free_tokens[: len(rows)] >= sizes[text])
        row = int(fitting_rows[0]) if len(fitting_rows) else len(rows)
        if row == len(rows):
            rows.append([])
            free_tokens[row] = length
        rows[row].append(int(text))
        free_tokens[row] -= sizes[text]
    return [np.asarray(row, np.int64) for row in rows]


def find_packing_problem(encoder: TokenPredictor) -> str:
    """Return the difference between a few texts' states if packed and if single, in words; "" if none."""
    model_name = type(getattr(encoder.module, "trunk", encoder.module)).__name__
    training = encoder.module.training
    encoder.module.eval()
    try:
        distance = _measure_distance(encoder)
    # What a model does that takes no positions, or other shapes than it expects.
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        line = (str(error).strip().splitlines() or [repr(error)])[0]
        return f"{model_name} cannot compute packed texts: {line}; take packing out"
    finally:
        encoder.module.train(training)
    if distance <= 1:
        return ""
    return (
        f"{model_name} computes texts of a packed row otherwise than single ones, as if they saw each other; "
        "take packing out"
    )


def _measure_distance(encoder: TokenPredictor) -> float:
    """Return the distance between packed and single texts' states, relative to the allowed rounding error."""
    token_ids = iter(np.arange(1, 1 + sum(map(sum, _PROBE_LENGTHS))) % encoder.vocabulary)
    rows = [
        [TokenisedText([int(next(token_ids)) for _ in range(size)]) for size in sizes]
        for sizes in _PROBE_LENGTHS
    ]
    with torch.no_grad():
        packed_batch = _compute_states(encoder, encoder.pack(rows))
        distance = 0.0
        for row, texts in enumerate(rows):
            start = 0
            for text in texts:
                single_states = _compute_states(encoder, encoder.collate([text]))[0]
                packed_states = packed_batch[row, start : start + len(text.ids)]
                start += len(text.ids)
                rounding_error = math.sqrt(torch.finfo(single_states.dtype).eps) * float(
                    single_states.abs().max()
                )
                distance = max(
                    distance,
                    float((packed_states - single_states).abs().max()) / max(rounding_error, 1e-30),
                )
    return distance


def _compute_states(encoder: TokenPredictor, features: Features) -> Tensor:
    device = find_device(encoder)
    return encoder.states({name: value.to(device) for name, value in features.items()})
