"""A probe set: texts on which a routed model is compared with its dense one, and hidden states are taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError
from emberge.contracts import TokenEncoder

if TYPE_CHECKING:
    from emberge import Backbone, DataEntry, Workspace
    from emberge.encoding import TextEmbedder
    from torch import Tensor


SENTENCES = (
    "The committee postponed its decision until the figures had been checked.",
    "how to sort a list of dictionaries by a key",
    "Kann man die Rechnung auch in zwei Raten bezahlen?",
    "La biblioteca cierra a las ocho, salvo los viernes.",
    "def mean(values): return sum(values) / len(values)",
    "今天的会议改到下午三点。",
    "Water boils at a lower temperature on a mountain, because the pressure of the air is lower there.",
    "Où se trouve la gare la plus proche ?",
    "yes",
    "Symptoms include fever, a dry cough and tiredness; most people recover without treatment.",
    "Поезд опаздывает на двадцать минут.",
    "SELECT name, price FROM products WHERE price < 10 ORDER BY price;",
)
"""Texts of several languages and lengths, for models without a probe set of their own."""

MOST = 256


def probe_texts(data: Sequence[DataEntry], workspace: Workspace) -> list[str]:
    """Return distinct anchors and positives of the data sets, at most 256; without any the sentences."""
    if not data:
        return [*SENTENCES]
    from emberge.data import step_datasets

    datasets = step_datasets(workspace, data, limit=MOST)
    # Row by row through all of them, so that each has its share.
    rows = itertools.zip_longest(*([one[i] for i in range(len(one))] for one in datasets))
    examples = (example for row in rows for example in row if example is not None)
    texts = (text for one in examples for text in (one.anchor, *one.positives[:1]))
    return [*itertools.islice(dict.fromkeys(texts), MOST)]


def open_model(folder: Path, backbone: Backbone, workspace: Workspace) -> TextEmbedder:
    """Return an embedder of the model in a folder, computing in float32.

    Raises:
        CheckpointError: for a model that cannot be loaded, or whose encoder gives no states of tokens.
    """
    from emberge.encoding import TextEmbedder

    encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
    if not isinstance(encoder, TokenEncoder):
        raise CheckpointError(
            f"{folder}: {type(encoder).__name__} gives no hidden states of tokens (TokenEncoder); choose a "
            "backbone that does"
        )
    return TextEmbedder(encoder)


def last_states(
    folder: Path, backbone: Backbone, texts: Sequence[str], workspace: Workspace
) -> list[Tensor]:
    """Return the last hidden states of a folder's model by chunks of texts, on the CPU."""
    embedder = open_model(folder, backbone, workspace)
    return [states.cpu() for _, states in embedder.token_states(embedder.tokenise(texts))]


def largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest difference of two models' states, by the largest number in the first's."""
    pairs = zip(first, second, strict=True)
    difference = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
    return difference / max(float(states.abs().max()) for states in first)


def block_inputs(
    embedder: TextEmbedder, paths: Mapping[int, str], texts: Sequence[str]
) -> Iterator[tuple[int, Tensor]]:
    """Yield (layer, states [tokens, width]) that enter the modules at the end of these paths, by chunk.

    No text is padded, so every state is a token's.

    Raises:
        CheckpointError: when the model has no module at such a path.
    """
    modules = dict(embedder.encoder.module.named_modules())
    seen: list[tuple[int, Tensor]] = []
    hooks = []

    def remember(layer: int) -> Any:
        return lambda _, given: seen.append((layer, given[0].flatten(0, -2)))

    for layer, path in paths.items():
        found = [module for name, module in modules.items() if f".{name}".endswith(f".{path}")]
        if len(found) != 1:
            raise CheckpointError(f"the loaded model has {len(found)} modules '{path}', not one")
        hooks.append(found[0].register_forward_pre_hook(remember(layer)))
    try:
        for _ in embedder.token_states(embedder.tokenise(texts)):
            yield from seen
            seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
