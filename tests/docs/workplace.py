"""A reader's folder: the models, data and media that pages name, tiny and real."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from emberge.media import MediaFolder

from tests.support import tiny
from tests.support.handbook import write_handbook
from tests.support.media_models import RATE, drawing, tone

# Folders of a page that a long block before would have left, by what stands there instead.
LEFT = {
    "docs/tutorials/merge.md": {
        "out/members.draw=1": "ft-legal",
        "out/members.draw=2": "ft-faq",
        "out/members.draw=3": "ft-code",
    },
    "docs/howto/slurm.md": {
        "out/0/member": "ft-legal",
        "out/1/member": "ft-faq",
        "out/2/member": "ft-code",
    },
}
CATALOGUE = """\
format: 1
train:
- {name: pairs, file: ../many.jsonl, task: retrieval}
eval:
- {name: similar, dir: eval/similar, task: sts, domain: in, score_range: [0, 5]}
- {name: far, dir: eval/far, task: sts, domain: out, score_range: [0, 5]}
"""
TEXTS = """\
format: 1
train:
- {name: english, file: english.jsonl, task: text}
- {name: code, file: code.jsonl, task: text}
"""


def write_models(root: Path, bert: Path, siblings: list[Path], omni: Path) -> None:
    """Link the models by the names that pages have for them."""
    for name, model in (
        ("base", bert),
        ("encoder", bert),
        *zip(("ft-legal", "ft-faq", "ft-code"), siblings, strict=True),
        ("omni", omni),
        ("vision", omni),
        *zip(("v1", "v2"), siblings, strict=False),
    ):
        (root / name).symlink_to(model)
    for name, write in (
        ("sparse", tiny.splade),
        ("late", tiny.colbert),
        ("reranker", tiny.reranker),
    ):
        write(root / name)


def write_data(root: Path) -> None:
    """Write pairs, texts, images and clips, and a catalogue."""
    words = tiny.WORDS
    pairs = [
        {"query": f"find the {one}", "pos": [f"{one} of {two}"], "neg": [f"a {two}"]}
        for one, two in zip(words, reversed(words), strict=True)
    ]
    _write(root / "pairs.jsonl", pairs)
    _write(root / "many.jsonl", pairs * 4)
    customers = [{**pair, "customer": f"customer-{i % 12}"} for i, pair in enumerate(pairs * 4)]
    _write(root / "customers.jsonl", customers)
    _write(root / "texts.jsonl", pairs)
    _write(root / "passages.jsonl", [{"text": pair["pos"][0]} for pair in pairs])
    for number, name in enumerate(("one", "two")):
        drawing(number).save(root / f"{name}.png")
        clip = MediaFolder(root / "clips").add_clip(tone(440 + 220 * number), RATE)
        Path(clip.path).rename(root / f"{name}.wav")
    _write(root / "images.jsonl", [{"image": f"{n}.png", "caption": n} for n in ("one", "two")])
    _write(root / "sounds.jsonl", [{"audio": f"{n}.wav", "caption": n} for n in ("one", "two")])
    write_handbook(root / "handbook", documents=24)
    (root / "data").mkdir()
    (root / "data" / "datasets.yaml").write_text(CATALOGUE)
    for name in ("similar", "far"):
        (root / "data" / "eval" / name).mkdir(parents=True)
        scored = [
            {"query": a, "pos": [f"{a} {b}"], "pos_scores": [float(i % 6)]}
            for i, (a, b) in enumerate(_couples(words))
        ]
        _write(root / "data" / "eval" / name / "test.jsonl", scored)
    (root / "texts").mkdir()
    (root / "texts" / "datasets.yaml").write_text(TEXTS)
    for name in ("english", "code"):
        texts = [{"text": f"the {a} of a {b}"} for a, b in _couples(words)]
        _write(root / "texts" / f"{name}.jsonl", texts)


def write_folder(page: str, shared: Path, folder: Path) -> Path:
    """Make a page's own folder, with links to all that is shared; data that it writes itself is left out."""
    folder.mkdir(parents=True)
    for one in shared.iterdir():
        if page.endswith(("README.md", "tour.md", "adapters.md")) or one.name not in (
            "data",
            "texts",
            "images.jsonl",
        ):
            (folder / one.name).symlink_to(one)
    for place, model in LEFT.get(page, {}).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).symlink_to(os.path.realpath(shared / model))
    return folder


def _couples(words: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(words))


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
