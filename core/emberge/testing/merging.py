"""Laws of merge strategies, for any plugin. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import Block, Stage, as_row_shape
from emberge.merging import merge_blocks

# A matrix, a vector, a number, rows that are odd in number and length, and a tensor that no model changed.
_SHAPES: Mapping[str, tuple[int, ...]] = {
    "embeddings.weight": (13, 11),
    "layers.0.mlp.weight": (8, 24),
    "layers.0.norm.weight": (24,),
    "layers.1.conv.weight": (5, 3, 7),
    "layers.1.scale": (),
}
_UNCHANGED_NAME = "layers.1.frozen.weight"
_WIDE_TOLERANCE = 1e-6
Model = dict[str, Tensor]


def check_strategy(
    links: Stage | Sequence[Stage],
    *,
    base: bool | None = None,
    weights: Sequence[float] = (0.5, 0.3, 0.2),
    identity: bool = True,
    permutation: bool = True,
    one_hot: bool = False,
    scale: bool = True,
    tolerance: float = 2e-5,
) -> None:
    """Check a strategy, or the links of a chain, against the laws of merging, with one to five models.

    Always checked: shapes, dtypes and names do not change; inputs are not modified; two runs give the same
    bytes; the size of the blocks does not matter, also where many numbers are equal; zeros give finite
    numbers; a tensor that no model changed stays as it is. Checked unless switched off: merging copies of
    one model gives that model (`identity`), the order of (model, weight) pairs does not matter
    (`permutation`), multiplying all inputs by a factor multiplies the result by it (`scale`). Checked only
    if switched on: weights (1, 0, …) give the first model (`one_hot`).

    `base` decides whether the merge has a base; by default it has one if a link requires it. `tolerance` is
    that of float32, by the largest number of a tensor; the laws are checked in float64 too, to a millionth.

    Raises:
        AssertionError: if a law is broken; the message begins with its name.
    """
    chain = (links,) if isinstance(links, Stage) else tuple(links)
    if base is None:
        base = any(link.base_policy == "required" for link in chain)
    first, last = chain[0].arity.start, chain[0].arity.stop - 1
    few, some, many = (
        _MergeTrial.of(chain, min(max(count, first), last), base, weights, tolerance)
        for count in (1, 3, 5)
    )
    trials = [some, many.widen()]
    if len(few.models) < len(some.models):
        trials.append(few)
    for trial in trials:
        trial.check_shapes_and_inputs()
        trial.check_determinism()
        trial.check_finite()
        trial.check_blocks()
        trial.check_frozen()
        if identity:
            trial.check_identity()
        if permutation:
            trial.check_permutation()
        if scale:
            trial.check_scale()
        if one_hot:
            trial.check_one_hot()


@dataclass(frozen=True)
class _MergeTrial:
    """Chain and models on which the laws are checked."""

    chain: tuple[Stage, ...]
    models: tuple[Model, ...]
    base: Model | None
    weights: tuple[float, ...]
    tolerance: float

    @classmethod
    def of(
        cls,
        chain: tuple[Stage, ...],
        count: int,
        has_base: bool,
        weights: Sequence[float],
        tolerance: float,
    ) -> _MergeTrial:
        generator = torch.Generator().manual_seed(20)
        base = {n: torch.randn(s, generator=generator) for n, s in _SHAPES.items()}
        models = tuple(
            {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in base.items()}
            for _ in range(count)
        )
        for model in (base, *models):
            model[_UNCHANGED_NAME] = torch.ones(4, 6)
        weight_per_model = (*weights, *[weights[-1]] * count)[:count]
        return cls(chain, models, base if has_base else None, weight_per_model, tolerance)

    def widen(self) -> _MergeTrial:
        """Return the trial in float64, with all bits in use; the last of several models is the base."""
        models = [*self.models]
        if self.base is not None and len(models) > 2:
            models[-1] = self.base
        return replace(self._map(lambda t: t.double() / 3, models), tolerance=_WIDE_TOLERANCE)

    def _map(self, change: Callable[[Tensor], Tensor], models: Sequence[Model] = ()) -> _MergeTrial:
        """Return the trial with all tensors of models and base changed."""
        states = [{n: change(t) for n, t in one.items()} for one in models or self.models]
        base = None if self.base is None else {n: change(t) for n, t in self.base.items()}
        return replace(self, models=tuple(states), base=base)

    @cached_property
    def merged(self) -> Model:
        """The merged tensors of the trial."""
        return self.merge()

    def merge(
        self,
        *,
        measured_by_row: bool = False,
        merged_by_row: bool = False,
        is_reversed: bool = False,
    ) -> Model:
        """Merge the trial's models, in blocks of whole tensors or of single rows."""
        order = range(len(self.models))[:: -1 if is_reversed else 1]
        blocks, measured = (
            [block for name in self.models[0] for block in self._cut(name, by_row, order)]
            for by_row in (merged_by_row, measured_by_row)
        )
        rows: dict[str, list[Tensor]] = {}
        for block, merged in zip(blocks, merge_blocks(self.chain, blocks, measured), strict=True):
            assert isinstance(merged, Tensor), f"shapes: it must return a tensor, not {merged!r}"
            rows.setdefault(block.name, []).append(merged)
        return {name: one[0] if len(one) == 1 else torch.cat(one) for name, one in rows.items()}

    def _cut(self, name: str, by_row: bool, order: Sequence[int]) -> Iterator[Block]:
        """Yield a tensor's rows as one block or, if no link needs them whole, each row as a block."""
        tensors = torch.stack([self.models[i][name] for i in order])
        base = None if self.base is None else self.base[name]
        fields: dict[str, Any] = {
            "name": name,
            "shape": tuple(tensors.shape[1:]),
            # Masks are keyed by name, so a model keeps its own at any place.
            "models": tuple(f"model {i}" for i in order),
            "weights": [self.weights[i] for i in order],
        }
        block = Block.of(tensors, base, **fields)
        if not by_row or tensors.dim() < 3 or any(link.needs_whole(block) for link in self.chain):
            yield block
            return
        width = as_row_shape(block.shape)[1]
        for index in range(block.shape[0]):
            rows = slice(index, index + 1)
            row = None if base is None else base[rows]
            yield Block.of(tensors[:, rows], row, start=index * width, index=index, **fields)

    def check_shapes_and_inputs(self) -> None:
        inputs = [*self.models, *([self.base] if self.base else [])]
        before = [{n: t.clone() for n, t in model.items()} for model in inputs]
        merged = self.merged
        for name, tensor in self.models[0].items():
            found, expected = ((t.shape, t.dtype) for t in (merged[name], tensor))
            assert found == expected, f"shapes: {name} should be {expected} and is {found}"
            assert merged[name].isfinite().all(), f"finite: {name} has NaN or infinite values"
        for model, copy in zip(inputs, before, strict=True):
            _require_equal("no mutation: an input changed", model, copy)

    def check_determinism(self) -> None:
        _require_equal("determinism: two runs differ", self.merge(), self.merged)

    def check_blocks(self) -> None:
        coarse = self._map(lambda t: (4 * t).round() / 4)  # few different numbers
        for trial in (self, coarse):
            law = "blocks: the result depends on the size of the blocks"
            remedy = (
                "; if that is rounding: how torch sums over models depends on the shape, so add "
                "one model after another, as block.combine and sum(block.tensors) do"
            )
            _require_equal(law, trial.merged, trial.merge(merged_by_row=True), remedy)
        law = "blocks: measures do not add up over rows"
        self._require_close(law, self.merge(measured_by_row=True), self.merged)

    def check_finite(self) -> None:
        zeros = {n: torch.zeros_like(t) for n, t in self.models[0].items()}
        one_of_zeros = replace(self, models=(zeros, *self.models[1:]))
        cases = {"zeros": self._map(torch.zeros_like), "one model of zeros": one_of_zeros}
        for case, trial in cases.items():
            for name, tensor in trial.merged.items():
                assert tensor.isfinite().all(), (
                    f"finite: the result of {case} is not finite in {name}"
                )

    def check_frozen(self) -> None:
        frozen = {_UNCHANGED_NAME: self.models[0][_UNCHANGED_NAME]}
        self._require_close("frozen: a tensor that no model changed changes", self.merged, frozen)
        if self.base is not None:
            unmoved = replace(self, models=(self.base,) * len(self.models)).merged
            self._require_close(
                "frozen: the merge of copies of the base is not the base", unmoved, self.base
            )

    def check_identity(self) -> None:
        count = len(self.models)
        for weights in ([1 / count] * count, [w / sum(self.weights) for w in self.weights]):
            copies = replace(self, models=self.models[:1] * count, weights=tuple(weights))
            law = "identity: the merge of copies of one model is not that model"
            self._require_close(law, copies.merged, self.models[0])

    def check_permutation(self) -> None:
        law = "permutation: the order of the models shows"
        self._require_close(law, self.merge(is_reversed=True), self.merged)

    def check_scale(self) -> None:
        for factor in (0.5, 8.0):
            scaled = self._map(torch.tensor(factor).mul).merged
            expected = {n: t * factor for n, t in self.merged.items()}
            law = (
                f"scale covariance: inputs times {factor:g} do not give the result times {factor:g}"
            )
            self._require_close(law, scaled, expected)

    def check_one_hot(self) -> None:
        merged = replace(self, weights=(1.0, *[0.0] * (len(self.models) - 1))).merged
        law = "one-hot: weights (1, 0, …) do not give the first model"
        self._require_close(law, merged, self.models[0])

    def _require_close(self, law: str, result: Model, expected: Model) -> None:
        for name, tensor in expected.items():
            size = float(tensor.abs().max()) or 1.0
            largest_error = float((result[name] - tensor).abs().max()) / size
            assert largest_error <= self.tolerance, (
                f"{law} ({name} is off by {largest_error:.1e} of its size)"
            )


def _require_equal(law: str, first: Model, second: Model, remedy: str = "") -> None:
    for name, tensor in first.items():
        other = second[name]
        shapes = f"{list(tensor.shape)} and {list(other.shape)}"
        assert tensor.shape == other.shape, f"{law} ({name} has the shapes {shapes})"
        gap = float((tensor - other).abs().max())
        assert torch.equal(tensor, other), f"{law} ({name} differs by up to {gap:.1e}){remedy}"
