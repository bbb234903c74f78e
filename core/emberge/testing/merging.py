"""Laws of merge strategies, for any plugin. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from emberge.contracts import Stage
from emberge.errors import CheckpointError
from emberge.merging import merge_state_dicts

# A matrix, a vector, a number, rows that are odd in number and length, and a tensor that no model changed.
_SHAPES: Mapping[str, tuple[int, ...]] = {
    "embeddings.weight": (13, 11),
    "layers.0.mlp.weight": (8, 24),
    "layers.0.norm.weight": (24,),
    "layers.1.conv.weight": (5, 3, 7),
    "layers.1.scale": (),
}
_FROZEN = "layers.1.frozen.weight"
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
    needs = any(link.base_policy == "required" for link in chain)
    based = needs if base is None else base
    first, last = chain[0].arity.start, chain[0].arity.stop - 1
    few, some, many = (
        _MergeTrial.of(chain, min(max(count, first), last), based, weights, tolerance)
        for count in (1, 3, 5)
    )
    trials = [some, many.widen()]
    if len(few.models) < len(some.models):
        trials.append(few)
    for trial in trials:
        trial.check_shapes_and_inputs()
        trial.check_determinism()
        if trial is some:
            trial.check_blocks()
        trial.check_rows()
        trial.check_finite()
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
    dtype: str = "float32"

    @classmethod
    def of(
        cls,
        chain: tuple[Stage, ...],
        count: int,
        based: bool,
        weights: Sequence[float],
        tolerance: float,
    ) -> _MergeTrial:
        generator = torch.Generator().manual_seed(20)
        base_tensors = {n: torch.randn(s, generator=generator) for n, s in _SHAPES.items()}
        models = tuple(
            {
                n: t + 0.1 * torch.randn(t.shape, generator=generator)
                for n, t in base_tensors.items()
            }
            for _ in range(count)
        )
        for model in (base_tensors, *models):
            model[_FROZEN] = torch.ones(4, 6)
        weight_per_model = (*weights, *[weights[-1]] * count)[:count]
        return cls(chain, models, base_tensors if based else None, weight_per_model, tolerance)

    def widen(self) -> _MergeTrial:
        """Return the trial in float64; the last of several models has not moved from the base."""
        models = [*self.models]
        if self.base is not None and len(models) > 2:
            models[-1] = self.base
        return replace(
            self,
            models=tuple(_convert(model, torch.float64) for model in models),
            base=None if self.base is None else _convert(self.base, torch.float64),
            tolerance=_WIDE_TOLERANCE,
            dtype="float64",
        )

    @cached_property
    def merged(self) -> Model:
        """The merge of the trial's own models."""
        return self.merge()

    def merge(
        self,
        models: Sequence[Model] | None = None,
        base: Model | None = None,
        weights: Sequence[float] | None = None,
        order: Sequence[int] | None = None,
        **settings: int,
    ) -> Model:
        """Return the merged tensors, by default of the trial's models, weights and base."""
        members = list(models or self.models)
        base_tensors = None if self.base is None else (base or self.base)
        order = order or range(len(members))
        weight_per_model = list(weights or self.weights)
        # Masks are keyed by name, so a model keeps its own at any place.
        try:
            return merge_state_dicts(
                [members[i] for i in order],
                self.chain,
                base_tensors,
                [weight_per_model[i] for i in order],
                [f"model {i}" for i in order],
                dtype=self.dtype,
                **settings,
            )
        except CheckpointError as error:
            raise AssertionError(f"finite: {error}") from None

    def _coarsen(self) -> tuple[list[Model], Model | None]:
        """Return models and base of few different numbers, most of which are equal."""
        coarse = [{n: (4 * t).round() / 4 for n, t in model.items()} for model in self.models]
        base = self.base
        return coarse, None if base is None else {n: (4 * t).round() / 4 for n, t in base.items()}

    def check_shapes_and_inputs(self) -> None:
        inputs = [*self.models, *([self.base] if self.base else [])]
        before = [{n: t.clone() for n, t in model.items()} for model in inputs]
        merged = self.merged
        for name, tensor in self.models[0].items():
            result = merged.get(name)
            shape_and_dtype = None if result is None else (result.shape, result.dtype)
            expected = tensor.shape, tensor.dtype
            assert shape_and_dtype == expected, (
                f"shapes: {name} should be {expected} and is {shape_and_dtype}"
            )
        for model, copy in zip(inputs, before, strict=True):
            for name in model:
                assert torch.equal(model[name], copy[name]), (
                    f"no mutation: an input's {name} changed"
                )

    def check_determinism(self) -> None:
        _require_equal("determinism: two runs differ", self.merge(), self.merged)

    def check_blocks(self) -> None:
        size = "blocks: the size of what is produced at once shows"
        _require_equal(size, self.merged, self.merge(block=1))
        threads = "blocks: another number of threads shows"
        _require_equal(threads, self.merged, self.merge(block=1, workers=2))
        models, base = self._coarsen()
        _require_equal(size, self.merge(models, base), self.merge(models, base, block=1))

    def check_rows(self) -> None:
        law = "blocks: measures do not add up over rows"
        self._require_close(law, self.merge(granule=1), self.merged)

    def check_finite(self) -> None:
        zeros = [{n: torch.zeros_like(t) for n, t in self.models[0].items()}] * len(self.models)
        for name, tensor in self.merge(zeros, zeros[0]).items():
            assert tensor.isfinite().all(), f"finite: merging zeros gives no numbers in {name}"
        models_with_zeros = [zeros[0], *self.models[1:]]
        for name, tensor in self.merge(models_with_zeros).items():
            assert tensor.isfinite().all(), f"finite: one model of zeros gives no numbers in {name}"

    def check_frozen(self) -> None:
        frozen = {_FROZEN: self.models[0][_FROZEN]}
        self._require_close("frozen: a tensor that no model changed changes", self.merged, frozen)
        if self.base is not None:
            unmoved = self.merge([self.base] * len(self.models))
            self._require_close("frozen: models that are the base give another", unmoved, self.base)

    def check_identity(self) -> None:
        for weights in ([1 / len(self.models)] * len(self.models), self._scale_weights()):
            merged = self.merge([self.models[0]] * len(self.models), weights=weights)
            self._require_close(
                "identity: copies of one model give another", merged, self.models[0]
            )

    def check_permutation(self) -> None:
        reversed_merge = self.merge(order=list(reversed(range(len(self.models)))))
        self._require_close(
            "permutation: the order of the models shows", reversed_merge, self.merged
        )

    def check_scale(self) -> None:
        for factor in (0.5, 8.0):
            scaled_models = [{n: t * factor for n, t in model.items()} for model in self.models]
            base_tensors = {n: t * factor for n, t in self.base.items()} if self.base else None
            expected = {n: t * factor for n, t in self.merged.items()}
            law = (
                f"scale covariance: inputs times {factor:g} do not give the result times {factor:g}"
            )
            self._require_close(law, self.merge(scaled_models, base_tensors), expected)

    def check_one_hot(self) -> None:
        weights = [1.0, *[0.0] * (len(self.models) - 1)]
        merged = self.merge(weights=weights)
        self._require_close(
            "one-hot: weights (1, 0, …) do not give the first model", merged, self.models[0]
        )

    def _scale_weights(self) -> list[float]:
        return [w / sum(self.weights) for w in self.weights]

    def _require_close(self, law: str, result: Model, expected: Model) -> None:
        for name, tensor in expected.items():
            size = float(tensor.abs().max()) or 1.0
            largest_error = float((result[name] - tensor).abs().max()) / size
            assert largest_error <= self.tolerance, (
                f"{law} ({name} is off by {largest_error:.1e} of its size)"
            )


def _convert(model: Mapping[str, Tensor], dtype: torch.dtype) -> Model:
    return {name: tensor.to(dtype) for name, tensor in model.items()}


def _require_equal(law: str, first: Model, second: Model) -> None:
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), f"{law} ({name})"
