"""Layers chosen by measurement: those whose removal changes a model's embeddings of texts least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from emberge import Backbone, CheckpointError, Workspace
from emberge.numerics import spread_places
from emberge.wording import count_noun

from emberge_smaller.layers import LayerStack

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextEmbedder
    from numpy.typing import NDArray

MOST_TEXTS = 256
"""Number of texts on which layers are measured, spread evenly over the distinct texts of the data."""
# Digits of a cosine that decide, so that another order of sums cannot choose other layers.
_DIGITS = 6


@dataclass(frozen=True)
class Removal:
    """Removal of one layer: the mean cosines to the whole model without it, and without each other layer."""

    layer: int
    cosine: float
    cosine_without: Mapping[str, float]


@dataclass(frozen=True)
class LayerChoice:
    """Layers that were chosen on texts, with the measurements: all cosines are means over the texts.

    `cosine` is that of the chosen layers, `even` has the layers that are spread evenly, and `removals` the
    steps of the search.
    """

    layers: tuple[int, ...]
    cosine: float
    even: tuple[int, ...]
    even_cosine: float
    removals: tuple[Removal, ...]
    texts: int

    def as_details(self, count: int) -> dict[str, Any]:
        """Return details of an artifact, as JSON: the choice among `count` layers, and a figure of it."""
        return {"chosen_layers": asdict(self), "figures": [_draw_choice(self, count)]}


def choose_best(
    stack: LayerStack,
    number: int,
    texts: Sequence[str],
    backbone: Backbone,
    workspace: Workspace,
    *,
    max_length: int | None = None,
) -> LayerChoice:
    """Return the `number` layers of a model that keep its embeddings of texts best.

    The model is loaded once. A model of L layers embeds the texts about L² / 2 - `number`² / 2 times. The
    choice is the same on every machine, except where two layers cost the same to six digits.

    Raises:
        CheckpointError: if there are not so many layers, or the backbone's encoder cannot leave layers out.
        DataError: if the texts have media that the model does not read.
    """
    even = stack.choose_even_with_last(number)
    sample = [texts[place] for place in spread_places(len(texts), MOST_TEXTS)]
    trial = _Trial.open(stack, sample, backbone, workspace, max_length)
    kept, removals = tuple(range(stack.count)), []
    total = sum(range(number + 1, stack.count + 1))
    while len(kept) > number:
        # The first layer of some models is unlike all others, which cannot take its place.
        candidates = kept[1:] if stack.begins_with_first else kept
        cosines: dict[int, float] = {}
        for layer in candidates:
            cosines[layer] = trial.measure(_leave_out(kept, layer))
            done = sum(range(len(kept) + 1, stack.count + 1)) + len(cosines)
            workspace.progress(done, total, "models", f"without layer {layer}")
        layer = max(candidates, key=lambda one: (cosines[one], -one))
        removals.append(
            Removal(layer, cosines[layer], {str(one): cosine for one, cosine in cosines.items()})
        )
        kept = _leave_out(kept, layer)
    cosine = removals[-1].cosine if removals else 1.0
    even_cosine = cosine if even == kept else trial.measure(even)
    if even_cosine > cosine:
        kept, cosine = even, even_cosine
    return LayerChoice(kept, cosine, even, even_cosine, tuple(removals), len(sample))


def _draw_choice(choice: LayerChoice, count: int) -> dict[str, Any]:
    """Return a figure of the choice: the cosine to the whole model of `count` layers, by layers left."""
    numbers = list(range(count, count - len(choice.removals) - 1, -1))
    searched = [1.0, *(removal.cosine for removal in choice.removals)]
    return {
        "title": "Layers",
        "caption": (
            f"Mean cosine of {count_noun(choice.texts, 'text')} to the embeddings of the whole model, as "
            "layers are removed one by one, before any training."
        ),
        "lines": {
            "x": "layers left",
            "y": "cosine to the whole model",
            "labels": [str(number) for number in numbers],
            "series": {
                "removed by cost": searched,
                "spread evenly": [None] * (len(numbers) - 1) + [choice.even_cosine],
            },
        },
        "table": {
            "title": "Layers removed",
            "head": ["layers left", "removed", "cosine"],
            "rows": [
                [number, removal.layer, removal.cosine]
                for number, removal in zip(numbers[1:], choice.removals, strict=True)
            ],
        },
    }


def _leave_out(layers: Sequence[int], layer: int) -> tuple[int, ...]:
    return tuple(one for one in layers if one != layer)


@dataclass(eq=False)
class _Trial:
    """A loaded model that embeds some texts with only some of its layers."""

    embedder: TextEmbedder
    tokens: Sequence[Any]
    whole: NDArray[np.float32]
    count: int

    @classmethod
    def open(
        cls,
        stack: LayerStack,
        texts: Sequence[str],
        backbone: Backbone,
        workspace: Workspace,
        max_length: int | None,
    ) -> _Trial:
        """Load the model and embed the texts with all of its layers."""
        from emberge.contracts import LayeredEncoder
        from emberge.encoding import TextEmbedder
        from emberge.numerics import unit_rows

        folder = stack.checkpoint.folder
        encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
        if not isinstance(encoder, LayeredEncoder):
            raise CheckpointError(
                f"{folder}: {type(encoder).__name__} cannot leave layers out, so none can be measured; name "
                "the layers by their numbers"
            )
        embedder = TextEmbedder(encoder, model=folder.name)
        tokens = embedder.tokenise(texts, max_length=max_length)
        return cls(embedder, tokens, unit_rows(embedder.embed_tokens(tokens)), stack.count)

    def measure(self, layers: Sequence[int]) -> float:
        """Return the mean cosine of the embeddings by these layers to those by all, to six digits."""
        import numpy as np
        from emberge.numerics import unit_rows

        others = [number for number in range(self.count) if number not in layers]
        with self.embedder.encoder.without_layers(others):  # type: ignore[attr-defined]
            rows = unit_rows(self.embedder.embed_tokens(self.tokens))
        cosines = np.einsum("nd,nd->n", rows, self.whole, dtype=np.float64)
        return round(float(cosines.mean()), _DIGITS)
