"""The `downcycle` step: experts averaged into a dense model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge import (
    Artifact,
    Backbone,
    DataEntry,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
    component,
)
from emberge.files import write_text
from emberge.model_folder import Checkpoint

from emberge_moe.downcycle.load import measure_load, read_load
from emberge_moe.downcycle.routed_model import RoutedModel
from emberge_moe.upcycle.routed_format import ROUTED


@dataclass(frozen=True, kw_only=True)
class Downcycle(Step):
    """Average the experts of an upcycled model into a dense model of the type that it came from.

    It is the way back from sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055): the result is as
    small and fast as before, and loads with the dense class. Sums are in float64, so a model that was not
    trained in between comes back bit for bit. `weights: load` counts each expert by the share of choices that
    fell on it, on `probe`, or in the training that `load_of` names.

    Example:
        dense:
          downcycle: {model: ./routed, weights: load, probe: ./pairs.jsonl}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The routed model."""
    weights: Literal["equal", "load"] = "equal"
    load_of: StepRef | None = None
    """The training whose last measured load counts, in place of a probe set."""
    probe: tuple[DataEntry, ...] = ()
    backbone: Backbone = component("text_encoder", pooling="last")
    """Encoder that reads the probe set."""

    def __post_init__(self) -> None:
        given = bool(self.probe) + (self.load_of is not None)
        if self.weights == "load" and given != 1:
            raise ValueError("weights: load needs either a 'probe' set or 'load_of' a training")
        if self.weights == "equal" and given:
            raise ValueError("'probe' and 'load_of' are for weights: load")

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        folder = context.whole_model(self.model)
        yield from check_datasets(context, self.probe, "probe", show=False).problems
        if folder is None:
            return
        try:
            routed = RoutedModel(Checkpoint(folder))
            kind = routed.dense_config["model_type"]
            if routed.checkpoint.has_weights:
                count = sum(spec.elements for spec in routed.averaged())
                context.note("downcycling", [f"{kind} with {count:,} parameters"])
        except EmbergeError as error:
            yield context.problem(str(error), "model")
        for message in self.backbone.describe(folder).problems if self.probe else ():
            yield context.problem(message, "backbone")

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            routed = RoutedModel(Checkpoint(folder))
            shares = self._shares(routed, workspace) if self.weights == "load" else None
            self._build(routed, shares, model.fingerprint, workspace)
        details: dict[str, Any] = {
            "from": routed.target.name,
            "to": routed.dense_config["model_type"],
            "layers": sorted(routed.restored.experts),
            "weights": self.weights,
        }
        if shares is not None:
            details["load"] = {str(layer): list(one) for layer, one in sorted(shares.items())}
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={"made_by": "averaging the experts of", "downcycled": details},
        )

    def _build(
        self,
        routed: RoutedModel,
        shares: Mapping[int, Sequence[float]] | None,
        content: str,
        workspace: Workspace,
    ) -> None:
        from emberge.merging import build_result

        checkpoint = routed.checkpoint
        build_result(
            workspace,
            routed.averaged(shares),
            template=checkpoint,
            key=[content, sorted(shares.items()) if shares is not None else None],
            files={checkpoint.in_trunk("config.json"): routed.dense_config},
            complete=lambda out: _code(out, checkpoint).unlink(missing_ok=True),
        )

    def _shares(self, routed: RoutedModel, workspace: Workspace) -> Mapping[int, Sequence[float]]:
        """Return each layer's shares of choices by expert, measured once."""
        if self.load_of is not None:
            folder, _ = workspace.artifact(self.load_of)
            return read_load(folder, routed)
        place = workspace.work / "load.json"
        if not place.is_file():
            from emberge_moe.upcycle.probe import probe_texts

            measured = measure_load(
                routed, self.backbone, probe_texts(self.probe, workspace), workspace
            )
            write_text(place, json.dumps({str(layer): one for layer, one in measured.items()}))
        found = json.loads(place.read_text(encoding="utf-8"))
        return {int(layer): one for layer, one in found.items()}


def _code(out: Path, checkpoint: Checkpoint) -> Path:
    """Return where the routed class would be in a copy of the folder."""
    return out / checkpoint.in_trunk(ROUTED.code.name)
