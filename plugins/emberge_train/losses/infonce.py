"""InfoNCE: the positive against its hard negatives and, in retrieval, against the other rows' texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, Embeddings, Loss, Positive, Similarity, TaskKind
from emberge.numerics import find_lowest_score

if TYPE_CHECKING:
    from torch import Tensor

# Tasks in which other rows' texts are negatives (BOOM, arXiv:2602.05787, the table in its text; STS is not
# among them).
IN_BATCH_TASKS: frozenset[TaskKind] = frozenset({"retrieval", "reranking"})


@dataclass(frozen=True, eq=False)
class Candidates:
    """Texts of a batch that are compared with anchors: all anchors, positives or negatives.

    vectors [m, *e] are embeddings, prepared for comparison. For each text, row [m] is its row, text [m] its
    id, valid [m] is False for padding, and `in_own_row` [m] is True if it may be a negative of its own row.
    """

    vectors: Tensor
    row: Tensor
    text: Tensor
    valid: Tensor
    in_own_row: Tensor

    def __add__(self, other: Candidates) -> Candidates:
        import torch

        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Candidates(*(torch.cat(pair) for pair in pairs))


def list_candidates(e: Embeddings) -> tuple[Candidates, Candidates, Candidates]:
    """Return the anchors [b], positives [b · p] and negatives [b · n] of a batch."""
    import torch

    rows, slots = e.positive.shape[:2]
    number = torch.arange(rows, device=e.anchor.device, dtype=torch.int32)

    def flatten(vectors: Tensor, text: Tensor, valid: Tensor, in_own_row: bool) -> Candidates:
        row = number[:, None].expand(-1, text.shape[1]).flatten()
        return Candidates(
            e.similarity.prepared(vectors).flatten(0, 1),
            row,
            text.flatten(),
            valid.flatten(),
            torch.full_like(row, in_own_row, dtype=torch.bool),
        )

    return (
        flatten(e.anchor[:, None], e.text_id[:, :1], e.valid.new_ones(rows, 1), False),
        flatten(e.positive, e.text_id[:, 1 : 1 + slots], e.valid[:, :slots], False),
        flatten(e.negative, e.text_id[:, 1 + slots :], e.valid[:, slots:], True),
    )


@dataclass(frozen=True, eq=False)
class ScoreRules:
    """Scores of a batch, and rules that keep a text out of a row's denominator.

    Scores are `scale` times the `similarity`. texts [b, k] are the ids of texts that are not negatives of the
    row, label [b] is the row's label. A rule that is None is off.
    """

    similarity: Similarity
    scale: float
    texts: Tensor | None = None
    label: Tensor | None = None

    def log_sums(self, left: Candidates, right: Candidates) -> Tensor:
        """Return log-sum-exp [k] of the scores: per left text, over the right texts that count for it.

        A text on the left for which no text on the right counts gets a very low number with a gradient of
        zero.
        """
        return self.similarity.log_sums(
            left.vectors,
            right.vectors,
            lambda block: self.mask_excluded(left, right, block),
            self.scale,
        )

    def own_scores(self, anchors: Candidates, texts: Tensor) -> Tensor:
        """Return the scores [b, c] of anchors with texts [b, c, *e] of their rows."""
        return self.similarity.own_scores(anchors.vectors, texts) * self.scale

    def mask_excluded(self, left: Candidates, right: Candidates, block: slice) -> Tensor:
        """Return the mask [block, m] of (left, right) pairs that do not count."""
        rows = left.row[block]
        same_row = rows[:, None] == right.row[None]
        is_excluded = (same_row & ~right.in_own_row) | ~right.valid
        if self.texts is not None:
            for ids in self.texts[rows].T:
                is_excluded |= ids[:, None] == right.text[None]
        if self.label is not None:
            label = self.label[rows]
            alike = (label[:, None] == self.label[right.row][None]) & (label >= 0)[:, None]
            is_excluded |= alike & ~same_row
        return is_excluded


@dataclass(frozen=True, kw_only=True)
class InfoNCE(Loss):
    """Contrastive loss of each anchor's positives and negatives, on similarities divided by `temperature`.

    For anchor i and positive slot c: -s(i, p_ic) + log(e^s(i, p_ic) + sum over negatives e^s), averaged. The
    negatives are the row's own hard negatives. If the batch's `negatives` are `in_batch` (the default for
    retrieval and reranking, as in BOOM's table), they are also the positives and hard negatives of every
    other row (van den Oord et al., 2018, arXiv:1807.03748; BOOM, arXiv:2602.05787, equation 10). A row's own
    other positives are never its negatives (CoDiEmb, arXiv:2508.11442, equation 2).

    `own_negatives_only` excludes the hard negatives of other rows, as in equation 3 of the Nomic Embed v2
    paper (arXiv:2502.07972); the authors' code uses the hard negatives of all rows, which is the default
    here. `symmetric` adds the loss from positives to anchors and halves the sum. `contrast_anchors` also
    takes other rows' anchors as negatives. `contrast_positives` also adds the similarities between the row's
    positive and other rows' positives (Li et al., 2023, arXiv:2308.03281). All four need other rows.

    `mask_equal_text` excludes candidates whose text equals the row's anchor or one of its positives.
    `mask_equal_label` excludes candidates from rows with the anchor's label.

    Tables of scores are computed in blocks, so memory grows with the number of embeddings and not with its
    square.

    Example:
        loss: {infonce: {temperature: 0.05}}
    """

    temperature: Positive = 0.02
    """Divisor of the similarities: cosines, unless the model compares otherwise."""
    own_negatives_only: bool = False
    symmetric: bool = False
    contrast_anchors: bool = False
    contrast_positives: bool = False
    mask_equal_text: bool = False
    mask_equal_label: bool = False
    in_batch_tasks = IN_BATCH_TASKS
    kinds = ALL_KINDS

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contrast", "label"} if self.mask_equal_label else {"contrast"})

    def __call__(self, embeddings: Embeddings) -> Tensor:
        rows, slots = embeddings.positive.shape[:2]
        anchors, positives, negatives = list_candidates(embeddings)
        rules = self._make_rules(embeddings)
        positive_vectors = positives.vectors.view(rows, slots, *positives.vectors.shape[1:])
        positive_scores = rules.own_scores(anchors, positive_vectors)
        if embeddings.in_batch:
            negative_sums = self._sum_batch(anchors, positives, negatives, rules)
        else:
            negative_sums = _sum_own_negatives(anchors, negatives, rules)
        terms = _compute_terms(positive_scores, negative_sums)
        if self.symmetric and embeddings.in_batch:
            reverse_sums = rules.log_sums(positives, anchors).view(rows, slots)
            terms = (terms + _compute_terms(positive_scores, reverse_sums)) / 2
        return self._reduce(terms, embeddings)

    def _sum_batch(
        self, anchors: Candidates, positives: Candidates, negatives: Candidates, rules: ScoreRules
    ) -> Tensor:
        """Return log-sums [b, p or 1] over the negatives of each anchor, those of other rows included."""
        import torch

        candidates = positives + anchors if self.contrast_anchors else positives
        if self.own_negatives_only:
            own_sums = _sum_own_negatives(anchors, negatives, rules)
            sums = torch.logaddexp(rules.log_sums(anchors, candidates)[:, None], own_sums)
        else:
            sums = rules.log_sums(anchors, candidates + negatives)[:, None]
        if not self.contrast_positives:
            return sums
        between_positives = rules.log_sums(positives, positives).view(len(sums), -1)
        return torch.logaddexp(sums, between_positives)

    def _reduce(self, terms: Tensor, e: Embeddings) -> Tensor:
        """Return the mean of the terms [b, p] of positives that are no padding."""
        valid = e.valid[:, : terms.shape[1]]
        return terms.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)

    def _make_rules(self, e: Embeddings) -> ScoreRules:
        import torch

        texts = None
        if self.mask_equal_text:
            slots = e.positive.shape[1]
            ids, anchor = e.text_id[:, 1 : 1 + slots], e.text_id[:, :1]
            texts = torch.cat([anchor, torch.where(e.valid[:, :slots], ids, anchor)], dim=1)
        label = e.label if self.mask_equal_label else None
        return ScoreRules(e.similarity, 1 / self.temperature, texts, label)


def _compute_terms(positive: Tensor, negative_sums: Tensor) -> Tensor:
    """Return log(1 + e^(negative_sums - positive)), also exact if the exponent is far below 0."""
    import torch

    gap = negative_sums - positive
    return torch.logaddexp(torch.zeros_like(gap), gap)


def _sum_own_negatives(anchors: Candidates, negatives: Candidates, rules: ScoreRules) -> Tensor:
    """Return log-sums [b, 1] over each row's own negatives alone."""
    import torch

    rows = len(anchors.row)
    if not len(negatives.row):
        nothing = anchors.vectors.flatten(1).sum(1, keepdim=True) * 0
        return nothing + find_lowest_score(anchors.vectors)
    own_negatives = negatives.vectors.view(rows, -1, *negatives.vectors.shape[1:])
    scores = rules.own_scores(anchors, own_negatives)
    is_excluded = ~negatives.valid.view(rows, -1)
    if rules.texts is not None:
        ids = negatives.text.view(rows, -1)
        is_excluded |= (ids[:, :, None] == rules.texts[:, None]).any(-1)
    return torch.logsumexp(
        scores.masked_fill(is_excluded, find_lowest_score(scores)), dim=1, keepdim=True
    )
