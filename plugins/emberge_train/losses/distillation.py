"""Losses that learn a teacher's embeddings, its similarities, or an old model's space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import ALL_KINDS, EmbeddingKind, Embeddings, Positive
from emberge.numerics import find_lowest_score

from emberge_train.losses.guided_loss import (
    GuidedLoss,
    compute_squared_distances,
    require_guide,
    require_guide_of_size,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EmbeddingDistillation(GuidedLoss):
    """Distance of each text's embedding from the teacher's (LEAF: Vujanic and Rueckstiess, 2025, 2509.12539).

    The loss is the mean over the batch's texts, anchors, positives and negatives alike, of a `distance`
    between the embedding x and the `guide`'s embedding g, which is the teacher:
    - `cosine`: 1 - cos(x, g), half the squared distance of the vectors scaled to length one;
    - `l2`: |x - g|², the sum over dimensions, of vectors as both models return them.

    No labels, scores or negatives are needed, and single texts (the task `text`) suffice. The vectors of both
    models must have one size. In `matryoshka`, the first numbers of a vector learn the first numbers of the
    teacher's. The student's queries can then search documents that the teacher embedded.

    Example:
        small:
          train:
            model: ./shallow
            data: {path: ./texts.jsonl, task: text}
            loss: {embedding_distillation: {guide: {model: ./teacher}}}
            sampler: batch_shuffle
    """

    distance: Literal["cosine", "l2"] = "cosine"

    @property
    def compares_with_guide(self) -> bool:
        return True

    @property
    def takes_single_texts(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings) -> Tensor:
        teacher = require_guide_of_size(embeddings, "embedding_distillation")
        total = self._compute_distances(embeddings.anchor, teacher.anchor).sum()
        candidates = self._compute_distances(embeddings.candidates, teacher.candidates)
        total = total + candidates.masked_fill(~embeddings.valid, 0.0).sum()
        return total / max(1, len(embeddings.anchor) + int(embeddings.valid.sum()))

    def _compute_distances(self, vectors: Tensor, teacher: Tensor) -> Tensor:
        if self.distance == "l2":
            return ((vectors - teacher) ** 2).sum(-1)
        return compute_squared_distances(vectors, teacher) / 2


@dataclass(frozen=True, kw_only=True)
class SimilarityDistillation(GuidedLoss):
    """Divergence from a teacher's similarities within a batch (SEED: Fang et al., 2021, arXiv:2101.04731).

    For each text i of the batch, anchors, positives and negatives alike, p is the softmax over all other
    texts j of the `guide`'s cosines cos(g_i, g_j) over `temperature`, and q that of the model's similarities
    over it. The loss is the mean over i of sum_j p_j (log p_j - log q_j). Equal texts are left out of each
    other's distributions.

    Only scores are compared, so that the sizes and spaces of both models may differ; the student does not
    learn the teacher's space. Single texts (the task `text`) suffice. By default the texts of all ranks are
    one batch.

    Example:
        small:
          train:
            model: ./narrow
            data: {path: ./texts.jsonl, task: text}
            loss: {similarity_distillation: {guide: {model: ./teacher}}}
            sampler: batch_shuffle
    """

    temperature: Positive = 0.05

    @property
    def takes_single_texts(self) -> bool:
        return True

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return ALL_KINDS - {"pair_score"}

    def __call__(self, embeddings: Embeddings) -> Tensor:
        import torch

        teacher = require_guide(embeddings, "similarity_distillation")
        anchors = torch.ones_like(embeddings.text_id[:, :1], dtype=torch.bool)
        is_text = torch.cat([anchors, embeddings.valid], dim=1)
        ids = embeddings.text_id[is_text]
        is_other = ids[:, None] != ids[None]

        def logs(batch: Embeddings) -> Tensor:
            columns = torch.cat([batch.anchor[:, None], batch.candidates], dim=1)
            texts = batch.similarity.prepared(columns[is_text])
            scores = batch.similarity.table(texts, texts) / self.temperature
            return torch.log_softmax(
                scores.masked_fill(~is_other, find_lowest_score(scores)), dim=1
            )

        teacher_logs = logs(teacher)
        student_logs = logs(embeddings)
        divergences = teacher_logs.exp() * (teacher_logs - student_logs)
        return divergences.masked_fill(~is_other, 0.0).sum() / max(1, len(ids))


@dataclass(frozen=True, kw_only=True)
class KeepSpace(GuidedLoss):
    """Distance from an old model's embeddings (Shen et al., 2020, backward-compatible, arXiv:2003.11942).

    The loss is the mean over rows of the mean over a row's positives and negatives of |x - g|² = 2 - 2 cos(x,
    g). Here x is the document's embedding by the trained model and g its embedding by the `guide`, which is
    the old model; both have length one. Documents embedded after the training are then near their old
    vectors.

    The guide uses its own prompts, and its embeddings must have the size of the trained model's. In a sum of
    losses, `weight` sets how strongly the old space is kept.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: [infonce, {keep_space: {guide: {model: ./old}, weight: 0.3}}]
            sampler: batch_shuffle
    """

    @property
    def compares_with_guide(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings) -> Tensor:
        old_embeddings = require_guide_of_size(embeddings, "keep_space")
        valid = embeddings.valid
        distances = compute_squared_distances(embeddings.candidates, old_embeddings.candidates)
        rows = distances.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))
