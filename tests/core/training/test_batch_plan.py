from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from emberge import Batch, Batches, DataError, DatasetInfo, Negatives, PerDataset, Pool, Sampler
from emberge.contracts import BatchPart
from emberge.encoding import TextEmbedder
from emberge.training import BatchPlan
from emberge.training.batch_texts import TextSampling, draw_batch
from emberge.training.example_table import TextSide, build_table
from emberge_boom import Bagging
from emberge_train import BatchShuffle, TwoStage

POOL = {
    DatasetInfo("find", "retrieval", 50): range(50),
    DatasetInfo("alike", "sts", 30): range(30),
    DatasetInfo("topics", "classification", 20): range(20),
}
SAMPLER = (BatchShuffle(batch_size=PerDataset(default=8)),)


def _content(plan: BatchPlan) -> list[tuple[str, int, tuple[int, ...], bool]]:
    return [(p.dataset, b.epoch, tuple(p.rows), p.in_batch) for b in plan for p in b.parts]


def test_a_plan_is_a_pure_function_of_seed_and_step() -> None:
    plan, again = (BatchPlan(POOL, SAMPLER, seed=3, epochs=3) for _ in range(2))
    assert len(plan) == 3 * (6 + 3 + 2)
    forwards = _content(plan)
    backwards = [plan[step] for step in reversed(range(plan.steps))][::-1]
    assert [tuple(b.parts[0].rows) for b in backwards] == [rows for _, _, rows, _ in forwards]
    assert _content(again) == forwards
    assert again.fingerprint == plan.fingerprint


@dataclass(frozen=True, kw_only=True)
class Backwards(BatchShuffle):
    """Another code of the same options."""

    def batches(self, pool: Pool, seed: int) -> Batches:
        return super().batches(dict(reversed(pool.items())), seed)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"epochs": 2},
        {"max_steps": 3},
        {"samplers": (BatchShuffle(batch_size=PerDataset(default=8), tail="keep"),)},
        {"samplers": (Backwards(batch_size=PerDataset(default=8)),)},
        {"pool": {**POOL, DatasetInfo("more", "sts", 8): range(8)}},
        {"pool": {info: list(rows)[::-1] for info, rows in POOL.items()}},
        {"negatives": PerDataset(default="hard_only")},
    ],
)
def test_the_fingerprint_tells_plans_apart(change: dict[str, object]) -> None:
    given = {"pool": POOL, "samplers": SAMPLER, "seed": 3, "epochs": 1}
    assert (
        BatchPlan(**{**given, **change}).fingerprint  # type: ignore[arg-type]
        != BatchPlan(**given).fingerprint  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("epochs", "steps"), [(1, 11), (0.5, 6), (1.5, 17), (0.001, 1)])
def test_part_of_an_epoch_is_its_first_batches(epochs: float, steps: int) -> None:
    plan = BatchPlan(POOL, SAMPLER, seed=3, epochs=epochs)
    assert plan.steps == steps
    assert _content(plan) == _content(BatchPlan(POOL, SAMPLER, seed=3, epochs=3))[:steps]


def test_other_rows_are_negatives_in_the_datasets_of_the_losses_unless_options_say_otherwise() -> (
    None
):
    def found(negatives: PerDataset[Negatives] | None = None) -> dict[str, bool]:
        plan = BatchPlan(POOL, SAMPLER, seed=0, negatives=negatives, in_batch_datasets={"find"})
        return {c[0]: c[3] for c in _content(plan)}

    assert found() == {"find": True, "alike": False, "topics": False}
    told: PerDataset[Negatives] = PerDataset(by_task={"sts": "in_batch"}, default="hard_only")
    assert found(told) == {"find": False, "alike": True, "topics": False}


@dataclass(frozen=True, kw_only=True)
class HardOnly(Sampler):
    """A sampler that has the last word on negatives."""

    def batches(self, pool: Pool, seed: int) -> Iterator[Batch]:
        yield Batch((BatchPart("find", [1, 2]),), stage=1, negatives="hard_only")


def test_groups_are_the_datasets_with_their_negatives() -> None:
    two_stages = BatchPlan(POOL, (TwoStage(batch_size=PerDataset(default=8)),), seed=0)
    assert set(two_stages.list_groups()) == {
        (p.dataset, p.in_batch) for b in two_stages for p in b.parts
    }
    assert set(two_stages.list_groups()) == {
        ("alike", False),
        ("find", False),
        ("find", True),
        ("topics", False),
    }
    assert BatchPlan(POOL, (HardOnly(),), seed=0).list_groups() == (("find", False),)


@pytest.mark.parametrize(
    ("samplers", "negatives", "message"),
    [
        (
            (BatchShuffle(batch_size=PerDataset(default=8, by_dataset={"fnid": 4})),),
            PerDataset(),
            "batch_size of sampler BatchShuffle: by_dataset names 'fnid', which is no dataset of this "
            "training; did you mean 'find'",
        ),
        (
            SAMPLER,
            PerDataset(by_dataset={"alik": "in_batch"}),
            "negatives: .* did you mean 'alike'",
        ),
        ((Bagging(ratio=0.5),), PerDataset(), "only selects"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(
    samplers: tuple[Sampler, ...], negatives: PerDataset[Negatives], message: str
) -> None:
    error = NotImplementedError if isinstance(samplers[-1], Bagging) else DataError
    with pytest.raises(error, match=message):
        BatchPlan(POOL, samplers, seed=0, negatives=negatives)


def test_single_texts_have_no_scores_and_may_have_labels(tmp_path, bert) -> None:  # type: ignore[no-untyped-def]
    from emberge import Example
    from emberge_encoder import TextEncoder

    from tests.support.training_data import dataset

    rows = [Example(text, (), label=text) for text in "abc"]
    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    table = build_table(
        dataset("texts", "text", rows), encoder, (TextSide("", None),) * 2, tmp_path
    )
    table.require_columns(frozenset({"label"}), range(3), "sorting", in_batch=False)
    with pytest.raises(DataError, match="row 1 has no score"):
        table.require_columns(frozenset({"positive_score"}), range(3), "sorting", in_batch=False)


def test_rows_draw_their_texts_by_seed_epoch_and_row(tmp_path, bert) -> None:  # type: ignore[no-untyped-def]
    from emberge import Example
    from emberge_encoder import TextEncoder

    from tests.support.training_data import dataset

    rows = [
        Example(f"a{i}", tuple(f"p{i}{j}" for j in range(4)), tuple(f"n{i}{j}" for j in range(i)))
        for i in range(4)
    ]
    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    table = build_table(
        dataset("find", "retrieval", rows), encoder, (TextSide("", None),) * 2, tmp_path
    )
    plan = BatchPlan(
        {table.info: range(4)}, (BatchShuffle(batch_size=PerDataset(default=4)),), seed=0, epochs=2
    )

    def drawn(step: int, draw: TextSampling) -> dict[int, list[int]]:
        (part,) = draw_batch(plan[step], {"find": table}, draw, unique=True).parts
        return {
            int(r): [int(e) for e in es]
            for r, es in zip(part.planned.rows, part.entries, strict=True)
        }

    draw = TextSampling(positives=2, negatives=2)
    first = drawn(0, draw)
    assert first == drawn(0, draw)
    assert first != drawn(1, draw)
    for row, entries in first.items():
        start = int(table.starts[row])
        assert entries[0] == start
        positives, negatives = entries[1:3], entries[3:]
        assert len(set(positives)) == 2
        assert all(start < e <= start + 4 for e in positives)
        assert all(start + 4 < e < table.starts[row + 1] for e in negatives if e >= 0)
    assert first[0][3:] == [-1, -1]  # no negative to draw
    assert first[1][3] == first[1][4] >= 0  # one negative, repeated
    assert len(set(first[3][3:])) == 2


def test_the_same_texts_are_tokenised_once(tmp_path, bert) -> None:  # type: ignore[no-untyped-def]
    from emberge_encoder import TextEncoder

    from tests.support.training_data import retrieval

    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    data = retrieval(6)
    both = (TextSide("find it: ", 12), TextSide("", None))
    table = build_table(data, encoder, both, tmp_path)
    encoder.tokenise = None  # type: ignore[method-assign,assignment]
    again = build_table(data, encoder, both, tmp_path)  # found, not made
    assert np.array_equal(table.sequences.ids, again.sequences.ids)
    fresh = TextEncoder().load(bert, device="cpu", dtype="float32")
    (expected,) = fresh.tokenise([data[3].anchor], prompt="find it: ", max_length=12)
    anchor = table.sequences[int(table.entries[table.starts[3]])]
    assert list(anchor.ids) == list(expected.ids)
    assert anchor.prompt_length == expected.prompt_length > 0
    (positive,) = fresh.tokenise([data[3].positives[1]], prompt="", max_length=None)
    assert list(table.sequences[int(table.entries[table.starts[3] + 2])].ids) == list(positive.ids)
    assert TextEmbedder(fresh).embed(["a"]).shape == (1, 32)
