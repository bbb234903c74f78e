"""The `translate` step: a map that rewrites the vectors of an old model as vectors of a new model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

from emberge import (
    Artifact,
    ArtifactKind,
    Count,
    NumberRange,
    Requires,
    Workspace,
)

from emberge_index.translation.maps import Kind
from emberge_index.translation.probes import Side
from emberge_index.translation.two_models import TwoModels, write_details

# With a larger ridge float64 rounds the matrix to the identity, which `kind: shift` has.
MOST_RIDGE = 1e9


@dataclass(frozen=True, kw_only=True)
class Translate(TwoModels):
    """A map from an old model's vectors to a new model's, so that no document of an index is embedded again.

    The data's documents are embedded by both models. The map is fitted in closed form, in float64, after both
    means are removed. Its `kind` is:
    - `affine`: a matrix by ridge regression towards the identity, or towards zero if dimensions differ;
    - `orthogonal`: a rotation (Procrustes: Schönemann, 1966; bounds for embeddings: arXiv:2510.13406);
    - `low_rank`: the identity and a change of rank `rank`, by ridge regression of reduced rank (the low-rank
      affine adapter of Drift-Adapter, arXiv:2509.23471, in closed form and for documents, not for queries);
    - `shift`: one constant vector (Query Drift Compensation, arXiv:2506.00037);
    - `added_layer`: the linear layer that the new model has in addition to the old one, as a step `rotate`
      adds it. Nothing is fitted, and vectors are exact; the texts only confirm it.

    The result is a safetensors file with both models' fingerprints in its header; `emberge translate VECTORS
    --by DIR --out FILE` rewrites files of vectors with it. The map is measured in five folds, on texts that
    it was not fitted on: cosine to the new model's vectors, share of the new model's first ten hits, and, if
    the data has pairs, nDCG@10 and the kept share of the new model's gain. One number, the ridge, is chosen
    on the same folds.

    Example:
        map:
          translate:
            old: ./v1
            new: ./v2
            data: ./passages.jsonl
    """

    produces: ClassVar[ArtifactKind] = "file"

    kind: Kind = "affine"
    """Form of the map."""
    ridge: Literal["auto"] | Annotated[float, NumberRange(least=0, most=MOST_RIDGE)] = "auto"
    """Penalty in units of the vectors' mean variance, at most 1e9; `auto` chooses it by folds, 0 is none."""
    rank: Annotated[Count, Requires("kind", value="low_rank")] = 64
    """Rank of the change of `low_rank`."""
    texts: Side = "documents"
    """Side of a search whose vectors are to be rewritten."""

    @property
    def side(self) -> Side:
        return self.texts

    @property
    def form(self) -> tuple[Kind, float | Literal["auto"], int]:
        return self.kind, self.ridge, self.rank

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_index.translation.arms import measures_of, table_of

        fit = self.fit(workspace)
        measures = measures_of(fit)
        fit.translation.write(workspace.folder, workspace.provenance)
        details = {**asdict(fit.translation.header), "measures": measures}
        title = f"{fit.old.name} to {fit.new.name}: {self.kind}"
        write_details(workspace.folder, details, table_of(measures, title))
        return Artifact(
            kind="file",
            parents=(fit.old.name, fit.new.name),
            details={"table": "measures.md", "translation": details},
        )
