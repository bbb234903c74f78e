"""Lengths and prompts of a dataset's two sides, the nearer word wins, and the texts that are encoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Embeddings, Loss, PerDataset, Similarity
from emberge.encoding import BatchEmbeddings
from emberge.ranks import RankGroup
from emberge.training import FitOptions
from emberge.training.batch_loss import Objective, compute_batch_loss
from emberge.training.batch_plan import PlannedBatch, PlannedPart
from emberge.training.batch_texts import DrawnBatch, TextSampling, draw_batch
from emberge.training.example_table import TextSide, build_tables, choose_text_sides
from emberge_encoder import TextEncoder

from tests.support.training_data import InMemory, dataset, retrieval, similarity


class Prompted:
    """What `choose_text_sides` asks of an encoder."""

    reads_queries_apart = False

    def __init__(self, **prompts: str) -> None:
        self.prompts = prompts


def both(
    data: InMemory, encoder: Prompted | None = None, **options: object
) -> tuple[TextSide, TextSide]:
    return choose_text_sides(data, encoder or Prompted(), FitOptions(**options))  # type: ignore[arg-type]


def test_lengths_may_differ_by_task_and_dataset() -> None:
    lengths = {
        "max_length": PerDataset(default=64, by_task={"sts": 32}),
        "query_length": PerDataset(by_dataset={"find": 16}),
    }
    assert [side.max_length for side in both(retrieval(), **lengths)] == [16, 64]
    assert [side.max_length for side in both(retrieval(name="other"), **lengths)] == [64, 64]
    assert [side.max_length for side in both(similarity(), **lengths)] == [32, 32]
    assert [side.max_length for side in both(similarity())] == [None, None]


def test_the_nearest_prompt_is_taken() -> None:
    model = Prompted(query="query: ", passage="passage: ")
    plain, own = retrieval(), retrieval(prompt="own: ")
    told = {
        "query_prompt": PerDataset(default="any: ", by_task={"retrieval": "task: "}),
        "document_prompt": PerDataset(by_task={"retrieval": "text: "}),
    }
    named = {"query_prompt": PerDataset(by_dataset={"find": "named: "})}
    assert [side.prompt for side in both(plain, model)] == ["query: ", "passage: "]
    assert [side.prompt for side in both(plain, model, **told)] == ["task: ", "text: "]
    assert [side.prompt for side in both(own, model, **told)] == ["own: ", "text: "]
    assert both(own, model, **named)[0].prompt == "named: "
    assert [side.prompt for side in both(similarity(), model, **told)] == ["any: ", "any: "]
    silent = both(plain, model, query_prompt=PerDataset(by_task={"retrieval": ""}))
    assert silent[0].prompt == ""


@pytest.mark.parametrize("skips_anchors", [False, True])
def test_each_rank_encodes_its_texts_and_the_loss_gets_them(
    bert: Path, tmp_path: Path, skips_anchors: bool
) -> None:
    rows = [replace(row, label=str(i % 2)) for i, row in enumerate(retrieval(8).rows)]
    data = dataset("find", "retrieval", rows)
    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    table = build_tables([data], encoder, FitOptions(), tmp_path, lambda *_: None)["find"]
    batch = PlannedBatch(0, 0, 0, (PlannedPart("find", np.arange(8), True),))

    def draw(rank: int, size: int) -> DrawnBatch:
        return draw_batch(
            batch,
            {"find": table},
            TextSampling(1, 1, 1),
            unique=False,
            skips_anchors=skips_anchors,
            ranks=RankGroup(rank=rank, size=size),
        )

    drawn = [draw(rank, 2) for rank in range(2)]
    texts = [text for one in drawn for text in one.texts]
    (part,) = drawn[0].parts
    wanted = part.entries >= 0
    wanted[:, 0] &= not skips_anchors
    assert len(texts) == int(wanted.sum())
    for at in np.argwhere(wanted):
        sequence = table.sequences[int(part.sequences[tuple(at)])]
        assert list(texts[part.positions[tuple(at)]].ids) == list(sequence.ids)

    class Product(Loss):
        def __call__(self, embeddings: Embeddings) -> torch.Tensor:
            assert embeddings.label is not None
            assert embeddings.label.tolist() == [0, 1] * 4
            return embeddings.closeness[embeddings.valid].sum()

    alone = draw(0, 1)
    leaf = torch.randn(len(alone.texts), 1, requires_grad=True)
    objective = Objective(PerDataset(default=(Product(),)), [data.info])
    kind: Any = "pair_score" if skips_anchors else "vector"
    similarity = Similarity(kind, unit=False)
    loss = compute_batch_loss(alone, BatchEmbeddings(leaf), objective, similarity)
    loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())
    assert bool((leaf.grad == 1).all()) is skips_anchors  # there each score is a text's own
