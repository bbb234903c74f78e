"""Similarity distillation: a loss on how similar each text is to the other texts of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, EmbeddingKind, Embeddings, Positive
from emberge.numerics import lowest_score

from emberge_train.losses.guided_loss import GuidedLoss, require_guide

if TYPE_CHECKING:
    from torch import Tensor


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

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
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
            return torch.log_softmax(scores.masked_fill(~is_other, lowest_score(scores)), dim=1)

        teacher_logs = logs(teacher)
        student_logs = logs(embeddings)
        divergences = teacher_logs.exp() * (teacher_logs - student_logs)
        return divergences.masked_fill(~is_other, 0.0).sum() / max(1, len(ids))
