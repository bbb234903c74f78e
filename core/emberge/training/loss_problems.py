"""Reasons why losses cannot be used on a dataset, or on the encoder of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from emberge.contracts import (
    AnyLoss,
    Backbone,
    DatasetInfo,
    EncoderFacts,
    Loss,
    PerDataset,
    TokenLoss,
    cuts_windows,
    describe_kinds,
    list_losses,
)

# Columns that a loss may need, in words, with a remedy for rows that lack them.
COLUMNS_NEEDED = {
    "negative": ("negative", "add hard negatives or choose another loss"),
    "contrast": (
        "negative of its own",
        "add hard negatives, or take other rows' texts with negatives: in_batch",
    ),
    "judgement": (
        "negative of its own and no score",
        "add hard negatives, for a loss of which text fits needs texts that do not",
    ),
    "label": ("label", "name the column, or choose another loss"),
    "positive_score": ("score", "name the score column, or choose another loss for this task"),
    "negative_score": ("score of its negatives", "score them by a teacher, or choose another loss"),
}


def find_loss_problems(
    losses: PerDataset[tuple[AnyLoss, ...]], info: DatasetInfo, *, scored: bool = True
) -> Iterator[str]:
    """Yield reasons why a dataset, which is `scored` or not, cannot be trained on by its losses.

    Single texts need losses over tokens, or losses of embeddings that take single texts, but not both.
    """
    of_dataset = losses.of(info.name, info.task) or ()
    if not of_dataset:
        yield (
            f"dataset '{info.name}' has no loss for its task {info.task}; give one under default, "
            f"by_task: {{{info.task}: …}} or by_dataset"
        )
    if cuts_windows(of_dataset, info) and not all(isinstance(x, TokenLoss) for x in of_dataset):
        yield (
            f"dataset '{info.name}' (text) has losses over tokens and others in one sum; give it the ones, "
            "and the same file under another name the others"
        )
    for loss in of_dataset:
        yield from _find_fit_problems(loss, info, scored)


def _find_fit_problems(loss: AnyLoss, info: DatasetInfo, scored: bool) -> Iterator[str]:
    """Yield reasons why one loss cannot learn from a dataset."""
    name = f"loss {type(loss).__name__}"
    if isinstance(loss, TokenLoss):
        if info.task != "text":
            yield (
                f"{name} predicts tokens of single texts, and dataset '{info.name}' is of the task "
                f"{info.task}; give a loss of embeddings under by_task: {{{info.task}: …}}, or read the "
                "file as texts with task: text"
            )
        return
    if info.task == "text" and not loss.takes_single_texts:
        yield (
            f"{name} compares texts, and dataset '{info.name}' (text) has single ones; give a token loss "
            "(mlm) or embedding_distillation under by_task: {text: …}, or name its columns as pairs"
        )
    for need in sorted(loss.needs - COLUMNS_NEEDED.keys()):
        offered = ", ".join(COLUMNS_NEEDED)
        yield f"{name} needs '{need}', which trainings do not offer; they offer {offered}"
    if "positive_score" in loss.needs and not scored:
        yield (
            f"{name} needs scores, which dataset '{info.name}' ({info.task}) does not have; choose "
            "another under by_task"
        )


def find_prediction_problems(
    losses: Sequence[AnyLoss], backbone: Backbone, checkpoint: Path
) -> Iterator[str]:
    """Yield reasons why a backbone's encoder of a checkpoint cannot predict tokens for losses over tokens.

    There are no reasons without losses over tokens, or for an encoder that cannot be loaded at all.
    """
    over_tokens = [loss for loss in losses if isinstance(loss, TokenLoss)]
    facts = backbone.describe(checkpoint, predicts_tokens=True) if over_tokens else EncoderFacts()
    if not over_tokens or facts.problems:
        return
    prediction = facts.prediction
    if prediction is None:
        yield f"{type(backbone).__name__} predicts no tokens; choose a backbone that does"
        return
    yield from prediction.problems
    if not all(loss.causal for loss in over_tokens):
        yield from prediction.hidden
    if any(loss.causal for loss in over_tokens):
        yield from prediction.causal


def find_embedding_problems(
    losses: PerDataset[tuple[AnyLoss, ...]], facts: EncoderFacts
) -> Iterator[str]:
    """Yield reasons why losses cannot be used on the embeddings of an encoder: their kind, or their size."""
    embedding_kind, checked = facts.similarity.kind, list[Loss]()
    for loss in list_losses(losses):
        if not isinstance(loss, Loss) or loss in checked:
            continue
        checked.append(loss)
        name = type(loss).__name__
        if embedding_kind not in loss.kinds:
            yield (
                f"loss {name} reads {describe_kinds(loss.kinds)}, and the model gives "
                f"{describe_kinds({embedding_kind})}; take a loss that asks for similarities, such as "
                "infonce, or another backbone"
            )
        elif facts.dimension is not None:
            yield from (f"loss {name}: {text}" for text in loss.check(facts.dimension))
