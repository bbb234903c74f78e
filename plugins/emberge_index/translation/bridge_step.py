"""The `bridge` step: the new model, with queries that fit the vectors of the old one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from emberge import Artifact, ArtifactKind, Preflight, Problem, Workspace

from emberge_index.translation.maps import Kind
from emberge_index.translation.probes import Side
from emberge_index.translation.two_models import TwoModels, write_details


@dataclass(frozen=True, kw_only=True)
class Bridge(TwoModels):
    """The new model with a stock `Dense` after it, for queries to an index that cannot be touched.

    The data's queries are embedded by both models, and a map from the new model's vectors to the old one's is
    fitted: a `shift` by one constant vector (Query Drift Compensation, arXiv:2506.00037), or an `orthogonal`
    map (Procrustes: Schönemann, 1966; on queries: Drift-Adapter, arXiv:2509.23471). It becomes a `Dense`, and
    a `Normalize` where the old vectors have length 1, so that the folder loads in plain SentenceTransformers
    without remote code. Measures of queries that the map has not seen are as in the step `translate`, which
    keeps more of the new model's gain wherever the index may be rewritten.

    With `router` the folder has both sides: `encode_query` is the bridged new model and `encode_document`
    the old one (`Router.for_query_document`). Such a model is for search, and emberge trains the folder of
    one side alone.

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
    """One folder for both sides, documents by the old model."""

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
        from emberge_index.translation.bridged_model import bridge_problem

        yield from super().check(context)
        folder = context.model(self.new)
        problem = None if folder is None else bridge_problem(folder)
        if problem is not None:
            yield context.problem(problem, "new")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_index.translation.arms import measures_of, table_of
        from emberge_index.translation.bridged_model import write_bridged, write_router

        fit = self.fit(workspace)
        measured = measures_of(fit)
        bridged = workspace.work / "bridged" if self.router else workspace.folder
        with workspace.whole_model(workspace.model(self.new)) as folder:
            write_bridged(folder, bridged, fit.translation, self.new_prompt, workspace.provenance)
        if self.router:
            prompts = {
                "query": fit.new.prompts["queries"],
                "document": fit.old.prompts["documents"],
            }
            old = workspace.model(self.old)
            with workspace.whole_model(old) as folder:
                write_router(bridged, folder, workspace.folder, prompts)
        details = {**asdict(fit.translation.header), "measures": measured}
        title = f"{fit.new.name} to {fit.old.name}: {self.kind}"
        write_details(workspace.folder, details, table_of(measured, title))
        return Artifact(
            kind="model",
            parents=(fit.old.name, fit.new.name),
            details={"table": "measures.md", "translation": details},
        )
