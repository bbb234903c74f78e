"""Mixtures by tokens: shares of every batch within a window, by hand and on random data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from emberge import Batch, DataError, DatasetInfo, Pool, check_recipe, load_plugins, parse_recipe
from emberge.training import BatchPlan
from emberge_train.samplers.mixture import Mixture
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tiny


def texts(**lengths: Sequence[int]) -> Pool:
    """Return a pool of sets of windows with these numbers of tokens."""
    infos = {
        name: DatasetInfo(name, "text", len(one), tokens=np.asarray(one, np.int64))
        for name, one in lengths.items()
    }
    return {infos[name]: range(len(one)) for name, one in lengths.items()}


def tokens_of(batch: Batch, pool: Pool) -> Counter[str]:
    by_name = {info.name: info.tokens for info in pool}
    counted: Counter[str] = Counter()
    for part in batch.parts:
        lengths = by_name[part.dataset]
        assert lengths is not None
        counted[part.dataset] += int(lengths[np.asarray(part.rows, np.int64)].sum())
    return counted


def test_four_fifths_of_english_and_the_rest_in_equal_parts() -> None:
    """100 tokens a batch: 80 of English, 10 of each other set; windows of 10 fill them exactly."""
    pool = texts(english=[10] * 80, code=[10] * 20, mathematics=[10] * 30)
    batches = Mixture(shares={"english": 0.8}, batch_tokens=100).batches(pool, 0)
    expected = {"english": 80, "code": 10, "mathematics": 10}
    assert [tokens_of(batch, pool) for batch in batches] == [expected] * 30
    rows = Counter((p.dataset, int(row)) for b in batches for p in b.parts for row in p.rows)
    by_set = {name: [n for (one, _), n in rows.items() if one == name] for name in expected}
    assert by_set["mathematics"] == [1] * 30  # the set that takes longest is seen once
    assert sorted(by_set["code"]) == [1] * 10 + [2] * 10  # a second pass is half through
    assert sorted(by_set["english"]) == [3] * 80


def test_the_sets_of_a_group_take_turns_in_its_share() -> None:
    """Of 100 tokens a batch 80 are English and 20 of one language: windows of 20 fill no share of 10."""
    pool = texts(english=[10] * 80, web_de=[20] * 6, web_fr=[20] * 4)
    mixture = Mixture(shares={"english": 0.8, "web_*": 0.2}, batch_tokens=100)
    batches = mixture.batches(pool, 0)
    assert [tokens_of(batch, pool) for batch in batches] == [
        {"english": 80, ("web_de", "web_fr")[number % 2]: 20} for number in range(12)
    ]
    rows = Counter((p.dataset, int(row)) for b in batches for p in b.parts for row in p.rows)
    # The set that takes longest is seen once.
    assert {rows["web_de", row] for row in range(6)} == {1}
    assert sum(rows["web_fr", row] for row in range(4)) == 6


def test_a_group_without_a_set_and_a_set_of_two_groups_are_named() -> None:
    pool = texts(english=[10] * 9, web_de=[10] * 9)
    faults = {
        "code_": {"english": 0.8, "code_*": 0.2},
        "web_de": {"english": 0.2, "web_*": 0.4, "*_de": 0.4},
    }
    for named, shares in faults.items():
        with pytest.raises(DataError, match=named):
            Mixture(shares=shares, batch_tokens=10).batches(pool, 0)
        assert list(Mixture(shares=shares, batch_tokens=10).check_data(list(pool)))


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Pool, dict[str, float], int]:
    count = draw(st.integers(2, 4))
    longest = draw(st.integers(2, 20))
    batch = draw(st.integers(200, 400))
    named = draw(st.integers(0, count - 1))
    weights = draw(st.lists(st.integers(2, 8), min_size=count, max_size=count))
    shares = {f"set-{n}": weights[n] / sum(weights) for n in range(named)}
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    lengths = {
        f"set-{n}": generator.integers(1, longest, batch + 50 * n, endpoint=True).tolist()
        for n in range(count)
    }
    return texts(**lengths), shares, batch


@settings(max_examples=30, deadline=None)
@given(mixtures(), st.integers(0, 99))
def test_shares_of_tokens_are_kept_to_a_window(
    drawn: tuple[Pool, dict[str, float], int], seed: int
) -> None:
    """A window is in the batch in which its last token is.

    So before any batch of a pass a set is behind its share by less than a window, and never ahead of it.
    """
    pool, shares, size = drawn
    rest = (1 - sum(shares.values())) / (len(pool) - len(shares))
    batches = Mixture(shares=shares, batch_tokens=size).batches(pool, seed)
    for info in pool:
        assert info.tokens is not None
        quota, longest = round(shares.get(info.name, rest) * size), int(info.tokens.max())
        one_pass = int(info.tokens.sum()) // quota
        behind = 0
        for number, batch in enumerate(batches):
            behind = 0 if number % one_pass == 0 else behind
            taken = tokens_of(batch, pool)[info.name]
            assert abs(taken - quota) < longest
            behind += quota - taken
            assert 0 <= behind < longest


PAIRS = {DatasetInfo("pairs", "retrieval", 9): range(9)}
TWO = texts(english=[10] * 20, code=[10] * 20)


@pytest.mark.parametrize(
    ("shares", "batch", "pool", "place"),
    [
        ({"englisch": 0.8}, 100, TWO, "'englisch'.*did you mean 'english'"),
        ({"english": 0.5}, 100, {**TWO, **PAIRS}, "'pairs' is of the task retrieval"),
        ({"english": 0.5, "code": 0.3}, 100, TWO, "shares add up to 0.8; name all"),
        ({"english": 1.0}, 100, TWO, "shares add up to 1, and code"),
        ({"english": 0.8}, 300, TWO, "'english' has 200 tokens.* 240"),
        ({"english": 0.95}, 100, TWO, "'code': batch_tokens 5 is less than its longest"),
    ],
)
def test_shares_that_do_not_fit_the_data_are_refused(
    shares: dict[str, float], batch: int, pool: Pool, place: str
) -> None:
    with pytest.raises(DataError, match=place):
        Mixture(shares=shares, batch_tokens=batch).batches(pool, 0)


def test_a_share_of_no_dataset_is_found_before_any_work(tmp_path: Path) -> None:
    plugins = load_plugins(block=())
    tiny.transformer(tmp_path / "reader", "AutoModelForMaskedLM", "bert")
    for name in ("english", "code"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a line of words"}\n' * 9)
    recipe = """
steps:
  adapted:
    train:
      model: ./reader
      data: [{path: ./english.jsonl}, {path: ./code.jsonl}]
      loss: mlm
      backbone: {text_encoder: {pooling: mean}}
      sampler: {mixture: {shares: {SHARE}}}
"""

    def faults(share: str) -> list[str]:
        text = recipe.replace("SHARE", share)
        found = check_recipe(parse_recipe(text, plugins, path=tmp_path / "r.yaml"), plugins)
        return [str(problem) for problem in found.errors]

    assert faults("english: 0.8") == []
    (fault,) = faults("englisch: 0.8")
    assert "r.yaml:9" in fault
    assert "did you mean 'english'" in fault


def test_the_papers_training_is_as_many_steps_as_it_has_tokens() -> None:
    """96 devices, 3 accumulated batches each of 8,192 tokens: 30 B tokens are 12,716 steps, 10 B 4,239."""
    size, window = 96 * 3 * 8192, 8192
    assert size == 2_359_296
    assert [math.ceil(tokens / size) for tokens in (30e9, 10e9)] == [12_716, 4_239]
    others = [f"other-{number}" for number in range(22)]  # 20 languages, mathematics and code
    counts = {"english": 0.8, **dict.fromkeys(others, 0.2 / 22)}
    pool = {
        DatasetInfo(name, "text", n, tokens=np.full(n, window)): range(n)
        for name, share in counts.items()
        for n in [math.ceil(share * 10e9 / window) + 400]
    }
    plan = BatchPlan(
        pool, [Mixture(shares={"english": 0.8}, batch_tokens=size)], seed=42, max_steps=4239
    )
    assert (len(plan), plan.starts[1] >= 4239) == (4239, True)  # no text comes twice
    for step in (0, 2000, 4238):
        taken = {part.dataset: len(part.rows) * window for part in plan[step].parts}
        assert taken.keys() == counts.keys()
        for name, share in counts.items():
            assert abs(taken[name] - share * size) <= window


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shares add up to 1\.4"):
        Mixture(shares={"a": 0.7, "b": 0.7})
