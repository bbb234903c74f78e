"""MinHash finds the pairs that are as alike as its threshold, whatever the blocks they come in."""

from __future__ import annotations

import random

import numpy as np
import pytest
from emberge_data.steps.text_similarity import (
    MISSED_SHARE,
    MinHash,
    compute_jaccard,
    hash_characters,
    hash_words,
    list_shingles,
)
from scipy.sparse import csr_array

ROWS = 2000


def edited_sentences(count: int, seed: int) -> list[str]:
    """Sentences of made-up words, half of them another one with some words exchanged."""
    rng = random.Random(seed)
    letters = "aaabcdeeefghiiklmnooprsttuvw"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(3000)]
    found: list[list[str]] = []
    for _ in range(count):
        if found and rng.random() < 0.5:
            sentence = list(rng.choice(found))
            for _ in range(rng.randint(1, 4)):
                sentence[rng.randrange(len(sentence))] = rng.choice(vocabulary)
        else:
            sentence = rng.choices(vocabulary, k=rng.randint(6, 40))
        found.append(sentence)
    return [" ".join(sentence) for sentence in found]


def all_pairs(texts: list[str], size: int, least: float) -> dict[tuple[int, int], float]:
    """Jaccard similarities of all pairs, by counting common shingles with a product of matrices."""
    sets = [list_shingles(text, size) for text in texts]
    number = {s: i for i, s in enumerate(sorted(set().union(*sets)))}
    columns = np.array([number[s] for one in sets for s in one])
    ends = np.cumsum([0, *map(len, sets)])
    has = csr_array((np.ones(len(columns), np.int32), columns, ends), (len(texts), len(number)))
    common = (has @ has.T).tocoo()
    sizes = np.diff(ends)
    likeness = common.data / (sizes[common.row] + sizes[common.col] - common.data)
    wanted = (likeness >= least) & (common.row < common.col)
    pairs = zip(common.row[wanted].tolist(), common.col[wanted].tolist(), strict=True)
    return dict(zip(pairs, likeness[wanted].tolist(), strict=True))


def candidates(minhash: MinHash, texts: list[str]) -> set[tuple[int, int]]:
    """All pairs that share the key of a band."""
    found: set[tuple[int, int]] = set()
    for band in minhash.hash_bands(minhash.compute_signatures(texts)):
        members: dict[int, list[int]] = {}
        for place, key in enumerate(band.tolist()):
            found.update((other, place) for other in members.setdefault(key, []))
            members[key].append(place)
    return found


@pytest.mark.parametrize("threshold", [0.55, 0.8])
def test_recall_and_precision_against_all_pairs(threshold: float) -> None:
    texts, minhash = edited_sentences(ROWS, seed=1), MinHash(threshold, 4)
    true = all_pairs(texts, 4, threshold)
    found = candidates(minhash, texts)
    verified = {
        (a, b)
        for a, b in found
        if compute_jaccard(list_shingles(texts[a], 4), list_shingles(texts[b], 4)) >= threshold
    }
    recall = len(verified & true.keys()) / len(true)
    assert verified <= true.keys()
    # How many are missed on average follows from their similarities.
    missed = [(1 - s**minhash.rows) ** minhash.bands for s in true.values()]
    mean, deviation = sum(missed), sum(p * (1 - p) for p in missed) ** 0.5
    assert len(true) - len(verified) <= mean + 5 * deviation + 1
    assert recall >= 1 - MISSED_SHARE


@pytest.mark.parametrize("threshold", [0.3, 0.55, 0.8, 0.9, 0.99, 1.0])
def test_bands_miss_few_pairs_at_the_threshold(threshold: float) -> None:
    minhash = MinHash(threshold, 4)
    assert (1 - threshold**minhash.rows) ** minhash.bands <= MISSED_SHARE


def test_a_signature_does_not_depend_on_other_texts() -> None:
    texts, minhash = ["", "a", "abc", *edited_sentences(40, seed=2)], MinHash(0.8, 4)
    alone = np.concatenate([minhash.compute_signatures([text]) for text in texts])
    assert np.array_equal(minhash.compute_signatures(texts), alone)


def test_the_lower_numbers_of_two_signatures_are_those_of_both_texts_together() -> None:
    minhash = MinHash(0.8, 4)
    a, b = edited_sentences(60, seed=3)[:2]
    # Joined by three characters that no text has, so that no shingle is lost or is new beside the joint.
    joint = minhash.compute_signatures([a, b, f"{a}\x01\x02\x03{b}"])
    lower = np.minimum(joint[0], joint[1])
    assert (lower == joint[2]).mean() > 0.8
    assert (minhash.compute_signatures([a], part=1) != joint[:1]).all()


def test_runs_end_with_their_text() -> None:
    hashes, counts = hash_words([["a", "b"], list("abcdef"), [], list("cdef")], 3)
    assert counts.tolist() == [0, 4, 0, 2]
    assert set(hashes[4:].tolist()) <= set(hashes[:4].tolist())
    hashes, counts = hash_characters(["ab", "hello", ""], 4)
    assert counts.tolist() == [1, 2, 1]
    assert len(hashes) == 4
