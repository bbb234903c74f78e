"""The `bridge` step: the new model with a map of its query vectors to the old model's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from emberge import Artifact, ArtifactKind, CheckpointError, Preflight, Problem, Workspace

from emberge_index.translation.maps import Kind
from emberge_index.translation.probes import Side
from emberge_index.translation.translation_file import Translation
from emberge_index.translation.two_models import TwoModels, write_details


@dataclass(frozen=True, kw_only=True)
class Bridge(TwoModels):
    """The new model with a stock `Dense` after it, for queries to an index that cannot be rewritten.

    The data's queries are embedded by both models, and a map from the new model's vectors to the old model's
    is fitted: a `shift` by one constant vector (Query Drift Compensation, arXiv:2506.00037), or an
    `orthogonal` map (Procrustes: Schönemann, 1966; on queries: Drift-Adapter, arXiv:2509.23471). The map
    becomes a `Dense`, followed by a `Normalize` if the old vectors have length 1. So the folder loads in
    plain SentenceTransformers without remote code. The map is measured like that of the step `translate`, on
    queries that it was not fitted on. If the index may be rewritten, `translate` keeps more of the new
    model's gain.

    With `router` the folder has both sides: `encode_query` is the bridged new model and `encode_document` the
    old one (a stock Router, as the step `pair_encoders` writes). The folder with both sides is only for
    search: emberge can train the model of one side, but not both in one folder.

    Example:
        queries:
          bridge:
            old: ./v1
            new: ./v2
            data: ./pairs.jsonl
            kind: shift
    """

    produces: ClassVar[ArtifactKind] = "model"

    kind: Literal["shift", "orthogonal"] = "shift"
    """Form of the map."""
    texts: Side = "queries"
    """Texts to fit on."""
    router: bool = False
    """Write one folder for both sides, in which the old model embeds documents."""

    @property
    def side(self) -> Side:
        return self.texts

    @property
    def form(self) -> tuple[Kind, float | Literal["auto"], int]:
        return self.kind, 0.0, 0

    @property
    def backwards(self) -> bool:
        return True

    def check(self, context: Preflight) -> Iterator[Problem]:

        yield from super().check(context)
        folder = context.model(self.new)
        problem = None if folder is None else bridge_problem(folder)
        if problem is not None:
            yield context.problem(problem, "new")
        old = context.model(self.old) if self.router else None
        problem = None if old is None else route_problem(old)
        if problem is not None:
            yield context.problem(problem, "old")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.files import fill_once
        from emberge.model_folder import copy_model, write_router

        from emberge_index.translation.arms import measures_of, table_of

        fit = self.fit(workspace)
        measures = measures_of(fit)
        bridged = workspace.work / "bridged" if self.router else workspace.folder
        with workspace.whole_model(workspace.model(self.new)) as folder:
            write_bridged(folder, bridged, fit.translation, self.new_prompt, workspace.provenance)
        if self.router:
            prompts = {
                "query": fit.new.prompts["queries"],
                "document": fit.old.prompts["documents"],
            }
            documents = workspace.work / "documents"
            with workspace.whole_model(workspace.model(self.old)) as folder:
                fill_once(documents, lambda side: copy_model(folder, side))
            write_router(workspace.folder, bridged, documents, prompts)
        details = {**asdict(fit.translation.header), "measures": measures}
        title = f"{fit.new.name} to {fit.old.name}: {self.kind}"
        write_details(workspace.folder, details, table_of(measures, title))
        return Artifact(
            kind="model",
            parents=(fit.old.name, fit.new.name),
            details={"table": "measures.md", "translation": details},
        )


def bridge_problem(folder: Path) -> str | None:
    """Return the reason why modules cannot be appended to a model; None if they can."""
    from emberge.model_folder import Layout

    try:
        layout = Layout.read(folder)
    except CheckpointError as error:
        return str(error)
    if layout.bare:
        return f"{folder}: has no modules.json, to which a Dense is added; save it as a SentenceTransformer"
    return None


def route_problem(folder: Path) -> str | None:
    """Return the reason why a model cannot be a route of a router; None if it can."""
    from emberge.model_folder import require_routable

    try:
        require_routable(folder)
    except CheckpointError as error:
        return str(error)
    return None


def write_bridged(
    model: Path,
    out: Path,
    translation: Translation,
    prompt: str | None,
    provenance: Mapping[str, Any],
) -> None:
    """Copy a model and append `Dense`, and `Normalize` if the old vectors have length 1, to its modules.

    `prompt` replaces the model's prompt for queries. The trunk's weights do not change, and the result loads
    in plain SentenceTransformers without remote code.
    """
    from emberge.model_folder import Layout, ModuleFolder, copy_model

    header = translation.header
    copy_model(model, out)
    layout = Layout.read(out)
    next_number = 1 + len(layout.modules)
    added = [ModuleFolder("Dense", f"{next_number}_Dense")]
    if header.target.normalised:
        added.append(ModuleFolder("Normalize", f"{next_number + 1}_Normalize"))
    prompts = layout.prompts if prompt is None else {**layout.prompts, "query": prompt}
    changed = dataclasses.replace(layout, modules=(*layout.modules, *added), prompts=prompts)
    changed.write(out, header.source.dimension)
    _write_dense(out / added[0].path, translation, provenance)


def _write_dense(folder: Path, translation: Translation, provenance: Mapping[str, Any]) -> None:
    import numpy as np
    from emberge.files import write_text
    from safetensors.numpy import save_file

    matrix, offset = translation.fitted.matrix, translation.fitted.offset
    config = {
        "in_features": matrix.shape[0],
        "out_features": matrix.shape[1],
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    folder.mkdir(exist_ok=True)
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n", durable=False)
    weights = {
        "linear.weight": np.ascontiguousarray(matrix.T, np.float32),
        "linear.bias": offset.astype(np.float32),
    }
    metadata = {
        "format": "pt",
        "emberge": json.dumps(provenance, default=str),
        "translation": json.dumps(dataclasses.asdict(translation.header)),
    }
    save_file(weights, folder / "model.safetensors", metadata=metadata)
