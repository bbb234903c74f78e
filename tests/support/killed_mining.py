"""Minings killed on the way: `python killed_mining.py MODEL ROOT DEATHS`.

Prints one JSON line for each death: the moment, and what differs from an unharmed run when the same command
has run again. Half of the deaths come before a call to the disk, half after a random time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tests.support.killed_steps import KilledRecipe
from tests.support.tiny import WORDS

RECIPE = """
steps:
  mined:
    mine_hard_negatives:
      data: {rows}
      teachers: {model}
      count: 3
      range: [1, 9]
      margin: null
"""


def rows(count: int) -> str:
    """Lines of queries with a positive each."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=6)) for _ in range(2 * count)]
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return "".join(json.dumps({"query": q, "pos": [p]}) + "\n" for q, p in pairs)


def main(model: Path, root: Path, deaths: int) -> None:
    import emberge.encoding.embedding_store as embedding_store
    from emberge_data.steps import kept_blocks

    # Several segments of embeddings and blocks of queries even here.
    embedding_store.SEGMENT, kept_blocks.BLOCK = 16, 8
    root.mkdir(parents=True)
    recipe = root / "recipe.yaml"
    (root / "rows.jsonl").write_text(rows(40), "utf-8")
    recipe.write_text(RECIPE.format(model=model, rows=root / "rows.jsonl"), "utf-8")
    runs, draw = KilledRecipe(recipe, root), random.Random(1)
    for number in range(deaths):
        print(json.dumps({**runs.die_in_turns(number, draw), **runs.run_again()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
