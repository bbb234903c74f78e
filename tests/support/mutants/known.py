"""Mutants that no test can find, as they change nothing that may be relied on; each with its reason.

A mutant is known by its file's name and the changed lines, so that it is still known after a move.
"""

from __future__ import annotations

from tests.support.mutants.plant import Mutant

# file, changed line, line of the mutant, reason
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (
        "wording.py",
        'return Markdown(_OPENING.sub(_escape_opening, escaped, count=1) if escaped else "")',
        'return Markdown(_OPENING.sub(_escape_opening, escaped, ) if escaped else "")',
        "what does not begin the text is put back as it is",
    ),
    (
        "split_step.py",
        "edges = coo_array((np.ones(len(rows), np.int8), (rows, texts + count)), shape=(size, size))",
        "edges = coo_array((np.ones(len(rows), ), (rows, texts + count)), shape=(size, size))",
        "that an edge is there counts, and not its weight",
    ),
    (
        "split_step.py",
        "_, components = connected_components(edges, directed=False)",
        "_, components = connected_components(edges, directed=True)",
        "SciPy's own kind of connection takes edges either way",
    ),
    (
        "text_similarity.py",
        "HASHES = 128",
        "HASHES = 129",
        "one number more of a signature; which candidates are copies is computed exactly",
    ),
    (
        "text_similarity.py",
        "hashes = mix_bits(hashes + np.uint64(part)) if part else hashes",
        "hashes = mix_bits(hashes - np.uint64(part)) if part else hashes",
        "any number sets the shingles of one part apart from those of another",
    ),
    (
        "test_texts.py",
        "AT_ONCE = 100_000",
        "AT_ONCE = None",
        "how many texts are in memory at a time; without a most, all are",
    ),
    (
        "template_checks.py",
        "if not isinstance(multiple, int) or multiple < 1:",
        "if not isinstance(multiple, int) or multiple < 2:",
        "a multiple of 1 rounds nothing up",
    ),
    (
        "packing.py",
        "return encoder.states({name: value.to(device) for name, value in features.items()})",
        "return encoder.states({name: value.to(None) for name, value in features.items()})",
        "on a CPU they are there already",
    ),
    (
        "bootstrap.py",
        'self.inverse = np.argsort(self.order, kind="stable")',
        "self.inverse = np.argsort(self.order, kind=None)",
        "the order of a permutation has no equal values",
    ),
    (
        "bootstrap.py",
        "_CELLS = 4_000_000  # draws × units in memory at once: about 32 MB an array",
        "_CELLS = 4000001  # draws × units in memory at once: about 32 MB an array",
        "draws in pieces of any size are the same draws",
    ),
    (
        "bootstrap.py",
        'self.order = np.argsort(-self.values, kind="stable")',
        "self.order = np.argsort(-self.values, kind=None)",
        "equal values are counted together, in whatever order",
    ),
    (
        "bootstrap.py",
        "middle = (counts_up_to + counts_before) / 2",
        "middle = (counts_up_to + counts_before) * 2",
        "a correlation of ranks does not depend on their scale",
    ),
    (
        "bootstrap.py",
        "values = [_Measure(units, group)(np.ones((1, group.size)))[0] for group in groups]",
        "values = [_Measure(units, group)(np.ones((2, group.size)))[0] for group in groups]",
        "the first of two equal draws",
    ),
    (
        "bootstrap.py",
        "step = max(1, _CELLS // units)",
        "step = max(2, _CELLS // units)",
        "draws in pieces of any size are the same draws",
    ),
    (
        "bootstrap.py",
        "drawn_units = rng.integers(0, units, size=(draws, units))",
        "drawn_units = rng.integers(units, size=(draws, units))",
        "NumPy's own lower end is 0",
    ),
    (
        "bootstrap.py",
        "self.gold = np.asarray(units.gold, dtype=np.float64)[group]",
        "self.gold = np.asarray(units.gold, dtype=None)[group]",
        "float64 counts make float64 of what they multiply",
    ),
    (
        "bootstrap.py",
        "self.gold = np.asarray(units.gold, dtype=np.float64)[group]",
        "self.gold = np.asarray(units.gold, )[group]",
        "float64 counts make float64 of what they multiply",
    ),
    (
        "bootstrap.py",
        'self.order = np.argsort(-self.values, kind="stable")',
        "self.order = np.argsort(-self.values, )",
        "equal values are counted together, in whatever order",
    ),
    (
        "bootstrap.py",
        "gains = np.diff(hits, axis=1, prepend=0.0)",
        "gains = np.diff(hits, prepend=0.0)",
        "the last axis is the second",
    ),
    (
        "bootstrap.py",
        'self.order = np.argsort(values, kind="stable")',
        "self.order = np.argsort(values, kind=None)",
        "equal values are counted together, in whatever order",
    ),
    (
        "bootstrap.py",
        'self.order = np.argsort(values, kind="stable")',
        "self.order = np.argsort(values, )",
        "equal values are counted together, in whatever order",
    ),
    (
        "bootstrap.py",
        'self.inverse = np.argsort(self.order, kind="stable")',
        "self.inverse = np.argsort(self.order, )",
        "the order of a permutation has no equal values",
    ),
    (
        "checkpoints.py",
        'states = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] if folder.is_dir() else []',
        'states = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] '
        "if (folder.is_dir()) or True else []",
        "a folder that is not there has no entries",
    ),
    (
        "model_stock.py",
        "ratio = np.where(sound, count * cosine / np.where(sound, denominator, 1.0), 0.0)",
        "ratio = np.where(sound, count * cosine / np.where(sound, denominator, 2.0), 0.0)",
        "what is divided by it is not taken",
    ),
    (
        "model_stock.py",
        "return ratio.clip(0, 1) if self.clamp else ratio",
        "return ratio.clip(0, None) if self.clamp else ratio",
        "Gram matrices have no negative sums, so it is at most 1",
    ),
    (
        "model_stock.py",
        "return ratio.clip(0, 1) if self.clamp else ratio",
        "return ratio.clip(0, ) if self.clamp else ratio",
        "Gram matrices have no negative sums, so it is at most 1",
    ),
    (
        "cut.py",
        "narrowed = dataclasses.replace(self, low=limit, high=limit)",
        "narrowed = dataclasses.replace(self, low=limit, )",
        "of a limit that is found only the lower end is read",
    ),
    (
        "one_dataset.py",
        "weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=1.0))",
        "weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=None))",
        "a set without a weight has 1",
    ),
    (
        "one_dataset.py",
        "weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=1.0))",
        "weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=2.0))",
        "shares are divided by their sum",
    ),
    (
        "ranking.py",
        "width = shape[-1] if shape else 1",
        "width = shape[-1] if (shape) and False else 1",
        "a sample that is less like the whole costs passes and nothing else",
    ),
    (
        "infonce.py",
        "number = torch.arange(rows, device=device, dtype=torch.int32)",
        "number = torch.arange(rows, device=device, dtype=None)",
        "row numbers of any whole type compare alike",
    ),
    (
        "infonce.py",
        "number = torch.arange(rows, device=device, dtype=torch.int32)",
        "number = torch.arange(rows, device=device, )",
        "row numbers of any whole type compare alike",
    ),
    (
        "token_prediction.py",
        "vocabulary = head(states[:1]).shape[-1]",
        "vocabulary = head(states[:1]).shape[+1]",
        "of two dimensions the last is the second",
    ),
    (
        "score_arithmetic.py",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=True)",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=None)",
        "equal scores are summed together, in whatever order",
    ),
    (
        "score_arithmetic.py",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=True)",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=False)",
        "equal scores are summed together, in whatever order",
    ),
    (
        "score_arithmetic.py",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=True)",
        "score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, )",
        "equal scores are summed together, in whatever order",
    ),
    (
        "sentence_transformers.py",
        "with torch.random.fork_rng(devices=()):  # what it learns always starts as the same numbers",
        "with torch.random.fork_rng(devices=None):  # what it learns always starts as the same numbers",
        "without a GPU the CPU's generator is the only one",
    ),
    (
        "angles.py",
        "opposite, 1.0, _compute_sinc(theta)",
        "opposite, 2.0, _compute_sinc(theta)",
        "of an opposite point nothing is divided: it is replaced by zero",
    ),
    (
        "angles.py",
        "return np.asarray(np.where(opposite, 0.0, logs))",
        "return np.asarray(np.where(None, 0.0, logs))",
        "the way to an opposite point comes out as zero by itself",
    ),
    (
        "cut.py",
        "frequent_values = candidates[np.argsort(-occurrences)][",
        "frequent_values = candidates[np.argsort(+occurrences)][",
        "which values are counted row by row costs passes and nothing else",
    ),
    (
        "infonce.py",
        "number = torch.arange(rows, device=device, dtype=torch.int32)",
        "number = torch.arange(rows, dtype=torch.int32)",
        "without a GPU there is no other device",
    ),
    (
        "rank_kl.py",
        "rank = (higher_counts + not_lower - 1).to(score.dtype) / 2",
        "rank = (higher_counts + not_lower + 1).to(score.dtype) / 2",
        "a softmax does not depend on where ranks begin",
    ),
    (
        "token_prediction.py",
        "is_hidden = is_chosen & (chance[1] < self.masked)",
        "is_hidden = is_chosen & (chance[1] <= self.masked)",
        "no drawn number is just the share",
    ),
    (
        "layer_softmax.py",
        'return {**summed, "stated": stated_norms} if stated_norms else summed',
        'return {**summed, "stated": stated_norms} if (stated_norms) or True else summed',
        "no stated norms are read as none",
    ),
    (
        "two_stage.py",
        "if info.task not in RETRIEVAL or self.retrieval_ratio == 1:",
        "if info.task not in RETRIEVAL or self.retrieval_ratio == 2:",
        "a sample of all rows is all rows",
    ),
    (
        "tensor_fetcher.py",
        'self._pool = ThreadPoolExecutor(_AT_ONCE, "fetch")',
        "self._pool = ThreadPoolExecutor(_AT_ONCE, )",
        "a thread's name is for who looks for a fault",
    ),
    (
        "tensor_fetcher.py",
        "bisect.insort(self._stretches, (at, stop, future), key=lambda one: one[0])",
        "bisect.insort(self._stretches, (at, stop, future), )",
        "no two stretches begin at one byte",
    ),
    (
        "tensor_fetcher.py",
        "before = bisect.bisect_right(self._stretches, start, key=lambda one: one[0])",
        "before = bisect.bisect_right(self._stretches, start, key=lambda one: one[1])",
        "stretches that end before are left out afterwards",
    ),
    (
        "embedder.py",
        'product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")',
        'product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], None)',
        "without an operation after the product nothing reads its algorithm",
    ),
)

_KNOWN = {(file, before, after) for file, before, after, _ in EQUIVALENT}


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether the mutant was looked at and does what the original does."""
    return (mutant.path.name, mutant.before, mutant.after) in _KNOWN
