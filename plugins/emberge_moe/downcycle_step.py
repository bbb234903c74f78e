"""The `downcycle` step: experts averaged into a dense model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
)
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorSpec

from emberge_moe.dense_model import ROUTED_TYPE, has_experts, name_load
from emberge_moe.expert_tensors import AveragedTensor
from emberge_moe.routed_format import CODE, RestoredTensors, restore_tensors


@dataclass(frozen=True)
class RoutedModel:
    """A checkpoint of a routed model (dense layers replaced by routers and experts)."""

    checkpoint: Checkpoint

    @cached_property
    def dense_config(self) -> Mapping[str, Any]:
        """The config of the dense model that the checkpoint was upcycled from.

        Raises:
            CheckpointError: if the model is dense, or was not upcycled by this plugin.
        """
        config, folder = self.checkpoint.config, self.checkpoint.folder
        model_type = str(config.get("model_type"))
        if not has_experts(config):
            raise CheckpointError(
                f"{folder}: has no experts ({model_type}), so it is dense already"
            )
        dense_config = config.get("inner")
        if model_type != ROUTED_TYPE or not isinstance(dense_config, Mapping):
            raise CheckpointError(
                f"{folder}: its config does not have the dense model that it was upcycled from, so there is "
                "none to go back to; only models that emberge upcycled have it"
            )
        return dense_config

    @cached_property
    def restored(self) -> RestoredTensors:
        """The tensors under the dense model's names and shapes."""
        return restore_tensors(str(self.dense_config["model_type"]), self.checkpoint.specs)

    def average_experts(
        self, shares: Mapping[int, Sequence[float]] | None = None
    ) -> Iterator[TensorSpec]:
        """Yield the dense model's tensors, with each layer's experts averaged by their shares, or evenly."""
        yield from self.restored.other_tensors
        for layer, experts in self.restored.experts.items():
            weights = tuple(shares[layer]) if shares is not None else (1.0,) * len(experts)
            for name, spec in experts[0].items():
                parts = tuple(expert[name] for expert in experts)
                yield AveragedTensor(name, spec.shape, spec.dtype, parts=parts, weights=weights)


@dataclass(frozen=True, kw_only=True)
class Downcycle(Step):
    """Average the experts of an upcycled model into a dense model of its original type.

    This reverses sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055): the result is as small and
    fast as the original dense model, and loads with the dense class. Sums are in float64, so if the model was
    not trained in between, the result equals the original bit for bit. With `load_of`, the weight of an
    expert is its share of the routers' choices in that training.

    Example:
        trained:
          train:
            model: ./routed
            data: ./pairs.jsonl
            loss: infonce
            sampler: {batch_shuffle: {batch_size: 64}}
            backbone: routed
        dense:
          downcycle: {model: $trained, load_of: $trained}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The routed model."""
    load_of: StepRef | None = None
    """The training whose last measured load weighs the experts; by default they weigh alike."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            return
        try:
            _ = RoutedModel(Checkpoint(folder)).dense_config
        except EmbergeError as error:
            yield context.problem(str(error), "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import build_result

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            checkpoint, shares = Checkpoint(folder), None
            routed, code = RoutedModel(checkpoint), checkpoint.locate_in_trunk(CODE.name)
            if self.load_of is not None:
                shares = read_load(workspace.artifact(self.load_of)[0], routed)
            build_result(
                workspace,
                routed.average_experts(shares),
                template=checkpoint,
                key=[model.fingerprint, sorted(shares.items()) if shares is not None else None],
                files={checkpoint.locate_in_trunk("config.json"): routed.dense_config},
                complete=lambda out_folder: (out_folder / code).unlink(missing_ok=True),
            )
        details: dict[str, Any] = {
            "from": ROUTED_TYPE,
            "to": routed.dense_config["model_type"],
            "layers": sorted(routed.restored.experts),
        }
        if shares is not None:
            details["load"] = {str(layer): list(values) for layer, values in sorted(shares.items())}
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"downcycled": details},
            origin="changed",
            made_by="averaging the experts of",
        )


def read_load(folder: Path, routed: RoutedModel) -> dict[int, list[float]]:
    """Return the load of each layer's experts that the training in `folder` logged last.

    The load of an expert is the share of tokens that it got.

    Raises:
        CheckpointError: if the training logged none of this model's layers.
    """
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    latest = {row["name"]: row["value"] for row in map(json.loads, lines)}
    shares = {}
    for layer, experts in routed.restored.experts.items():
        names = [name_load(layer, expert) for expert in range(len(experts))]
        if any(name not in latest for name in names):
            raise CheckpointError(
                f"{folder}: has no load of layer {layer}; name a training of this model with the backbone "
                "routed"
            )
        shares[layer] = [latest[name] for name in names]
    return shares
