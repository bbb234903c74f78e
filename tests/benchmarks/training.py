"""A training step beside sentence-transformers': the same rows, model, loss and thread.

    python -m tests.benchmarks.training [--data ../shared/data/train] [--rounds 3] [--only mixed]

all-MiniLM-L6-v2, float32, no dropout, real pairs: of questions and passages ("retrieval", squad), or of all
sets in turn ("mixed"); no text twice, as the peer knows no equal texts. A step is forward, loss and backward,
and the peer gets its token ids for nothing. Both sides run in turn, and medians of CPU time are compared. The
loss must agree to 1e-6 and every gradient to 1e-5 of the whole gradient's length, or the command fails.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import Example, PerDataset
from emberge.encoding import EncodePlan, encode_and_backward, measure_activation_budget
from emberge.training import PlannedBatch, PlannedPart, TextSide, build_table
from emberge.training.batch_loss import Objective, compute_batch_loss
from emberge.training.batch_texts import TextSampling, draw_batch
from emberge_encoder import TextEncoder
from emberge_train import InfoNCE

from tests.support import tiny
from tests.support.places import ROOT
from tests.support.training_data import dataset

Pairs = list[tuple[str, str]]
Step = Callable[[], tuple[float, dict[str, torch.Tensor]]]
# Batch size, and the mini-batch of the peer's cached loss; None for its plain loss.
PEERS: dict[str, tuple[int, int | None]] = {"plain": (32, None), "cached": (128, 8)}


def read_pairs(data: Path, pattern: str, count: int) -> Pairs:
    """Return the first pairs of the sets in turn that share no text with earlier ones."""
    readers = [_read_set(path) for path in sorted(data.glob(pattern))]
    found: Pairs = []
    for reader in itertools.cycle(readers):
        seen = {text for pair in found for text in pair}
        found.append(next(pair for pair in reader if seen.isdisjoint(pair)))
        if len(found) == count:
            break
    return found


def _read_set(path: Path) -> Iterator[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield row["query"], row["pos"][0]


def prepare_ours(model: Path, pairs: Pairs, store: Path) -> Step:
    """Return emberge's step on the pairs, which draws the batch's texts each time."""
    encoder: Any = TextEncoder().load(model, device="cpu", dtype="float32")
    encoder.module.eval()
    rows = [Example(anchor, (positive,)) for anchor, positive in pairs]
    data = dataset("pairs", "retrieval", rows)
    tables: Any = {"pairs": build_table(data, encoder, (TextSide("", None),) * 2, store)}
    batch = PlannedBatch(0, 0, 0, (PlannedPart("pairs", np.arange(len(rows)), True),))
    objective = Objective(PerDataset(default=(InfoNCE(temperature=0.05),)), [data.info])
    budget = measure_activation_budget(encoder.module, torch.device("cpu"))
    plan = EncodePlan(2048, kept_bytes=budget, draws_random=False)

    def step() -> tuple[float, dict[str, torch.Tensor]]:
        encoder.module.zero_grad()
        drawn = draw_batch(batch, tables, TextSampling(), unique=True)
        passed = encode_and_backward(
            encoder, drawn.texts, lambda e: compute_batch_loss(drawn, e, objective), plan, seed=0
        )
        return passed.loss.item(), _read_gradients(encoder.module)

    return step


def prepare_peer(model: Path, pairs: Pairs, mini_batch: int | None) -> Step:
    """Return sentence-transformers' step on the same pairs, tokenised beforehand."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    peer = SentenceTransformer(str(model), device="cpu").eval()
    loss: Any = (
        losses.MultipleNegativesRankingLoss(peer)
        if mini_batch is None
        else losses.CachedMultipleNegativesRankingLoss(peer, mini_batch_size=mini_batch)
    )
    columns = [peer.preprocess(list(column)) for column in zip(*pairs, strict=True)]

    def step() -> tuple[float, dict[str, torch.Tensor]]:
        peer.zero_grad()
        value = loss([dict(column) for column in columns], None)
        value.backward()
        return value.item(), _read_gradients(peer)

    return step


def _read_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return gradients by the names that BERT gives its weights."""
    return {
        name[name.index(start) :]: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        for start in ("embeddings.", "encoder.")
        if f".{start}" in f".{name}" and parameter.grad is not None
    }


def require_equal(ours: Step, peer: Step) -> None:
    """Raise ValueError if the losses or the gradients of both differ."""
    (loss, gradients), (expected, others) = ours(), peer()
    length = torch.stack([gradient.norm() for gradient in others.values()]).norm()
    wrong = [n for n, g in others.items() if (gradients[n] - g).norm() > 1e-5 * length]
    if wrong or not others or abs(loss - expected) > 1e-6 * max(1, abs(expected)):
        raise ValueError(f"losses {loss} and {expected}; other gradients: {', '.join(wrong)}")


def measure(step: Step) -> float:
    """Return the seconds of CPU time of a step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> None:
    """Print a line for each kind of data and each peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "train")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a line's name, such as 'mixed, plain'")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny.minilm()
    for (task, pattern), (kind, (size, mini_batch)) in itertools.product(
        {"retrieval": "squad.jsonl.gz", "mixed": "*.jsonl.gz"}.items(), PEERS.items()
    ):
        if asked.only not in f"{task}, {kind}":
            continue
        pairs = read_pairs(asked.data, pattern, size)
        with tempfile.TemporaryDirectory() as store:
            ours = prepare_ours(model, pairs, Path(store))
            peer = prepare_peer(model, pairs, mini_batch)
            require_equal(ours, peer)
            times = [(measure(ours), measure(peer)) for _ in range(asked.rounds)]
        mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{task}, {kind}: batch {size}: ours {mine:.2f} s, sentence-transformers {theirs:.2f} s of CPU "
            f"a step; ratio {theirs / mine:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
