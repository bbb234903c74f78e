"""What is fuzzed: for each subject a function that draws a case, over sound inputs made once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.fuzz.mutations import (
    change_json,
    change_lines,
    change_model,
    change_numbers,
    change_recipe,
    change_vectors,
)
from tests.support.fuzz.sandbox import Case, Place
from tests.support.mutated import change_bytes, change_weights, index

STRATEGIES = (
    "linear",
    "slerp",
    "multi_slerp",
    "karcher",
    "model_stock",
    "ties",
    "dare_ties",
    "sce",
)
WITH_BASE = ("ties", "dare_ties", "sce", "model_stock")

MERGE = """\
seed: 1
steps:
  merged:
    merge:
      models:
      - {model: ./a, weight: 0.6}
      - {model: ./b, weight: 0.4}
      strategy: {ties: {density: 0.5}}
      base: ./base
      dtype: float32
"""
SCORES = """\
seed: 1
steps:
  merged:
    merge: {models: [./a, ./b], strategy: linear}
  scores:
    evaluate:
      models: [./a, $merged]
      evaluators: {mteb: {data: data/datasets.yaml}}
"""
ROWS = """\
seed: 1
steps:
  unique:
    deduplicate: {data: ./pairs.jsonl, jaccard: 0.8}
  trained:
    train:
      model: ./a
      data: $unique
      loss: {infonce: {temperature: 0.05}}
      sampler: {batch_shuffle: {batch_size: 4}}
      epochs: 1
"""
MAP = """\
steps:
  map:
    translate: {old: ./a, new: ./b, data: ./pairs.jsonl}
"""
CATALOGUE = """\
format: 1
eval:
- {name: similar, dir: similar, task: sts, domain: in, metric: spearman, score_range: [0, 5]}
- {name: found, dir: found, task: retrieval, domain: in}
"""


@dataclass(frozen=True)
class Sound:
    """Sound inputs in `root`: three models, pairs, evaluation sets, vectors, a translation, a run."""

    root: Path
    recipes: tuple[str, ...] = ()
    port: int = 0

    def copy(self, place: Place, *names: str) -> None:
        """Copy inputs into a case's folder of given files."""
        for name in names:
            source, target = self.root / name, place.given / name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)


Subject = Callable[[random.Random, int, Sound, Place], Case]


def make_sound(root: Path) -> None:
    """Write the sound inputs into `root`."""
    root.mkdir(parents=True)
    base = tiny.checkpoint(root / "base")
    for seed, name in enumerate(("a", "b"), 1):
        tiny.checkpoint(root / name, seed=seed, like=base)
    words = tiny.WORDS
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.sample(words, 6))

    rows = [json.dumps({"query": text(), "pos": [text()], "neg": [text()]}) for _ in range(48)]
    (root / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    (root / "texts.jsonl").write_text(
        "".join(json.dumps({"text": text()}) + "\n" for _ in range(64))
    )
    similar, found = root / "data" / "similar", root / "data" / "found"
    for folder in (similar, found):
        folder.mkdir(parents=True)
    scored = [{"query": text(), "pos": [text()], "pos_scores": [i % 6]} for i in range(16)]
    (similar / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    for name in ("corpus", "queries"):
        entries = [json.dumps({"_id": f"{name[0]}{i}", "text": text()}) for i in range(12)]
        (found / f"{name}.jsonl").write_text("\n".join(entries) + "\n")
    lines = [f"q{i}\tc{i}\t1" for i in range(12)]
    (found / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    (root / "data" / "datasets.yaml").write_text(CATALOGUE)
    model = SentenceTransformer(str(root / "a"), device="cpu", local_files_only=True)
    np.save(
        root / "vectors.npy", model.encode([text() for _ in range(64)], show_progress_bar=False)
    )


def headers(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Weight files and indices of shards that are damaged or lie."""
    sound.copy(place, "a", "b", "base")
    victim = place.given / draw.choice(("a", "b", "base"))
    weights = victim / "model.safetensors"
    kind = draw.randrange(5)
    if kind == 0:
        change_numbers(draw, weights)
    elif kind == 1:
        names = {"weight_map": {"w": "model.safetensors"}, "metadata": {"total_size": 4}}
        text = index(number, names, str(place.outside / "secret.txt"))
        (victim / "model.safetensors.index.json").write_text(text.decode("utf-8", "replace"))
        if draw.random() < 0.5:
            weights.unlink()
    elif kind == 2:
        raw = weights.read_bytes()
        (victim / "pytorch_model.bin").write_bytes(change_bytes(draw, raw))
        weights.unlink()
    else:
        weights.write_bytes(change_weights(draw, weights.read_bytes()))
    if kind == 2 and draw.random() < 0.7:
        return Case([["safetensors", f"./{victim.name}"]], may_change=(victim,))
    return _weights_case(draw, place, victim)


def _weights_case(draw: random.Random, place: Place, victim: Path) -> Case:
    """Return a command that reads all three models' weights, or the victim's alone."""
    out = place.out / "merged"
    strategy = draw.choice(STRATEGIES)
    base = ["--base", "./base"] if strategy in WITH_BASE else []
    kind = draw.randrange(4)
    if kind == 0:
        other = "./base" if victim.name != "base" else "./a"
        return Case([["diff", f"./{victim.name}", other, "--json", str(place.out / "d.json")]])
    words = ["merge", "./a", "./b", *base, "--strategy", strategy, "--out", str(out), "--quiet"]
    return Case([words], opens=out)


def recipes(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Recipes with wrong values, keys, lines and indents; small ones are run, shipped ones are checked."""
    sound.copy(place, "a", "b", "base", "pairs.jsonl", "data")
    kind = draw.randrange(6)
    if kind < 3 and sound.recipes:
        text = draw.choice(sound.recipes)
    else:
        text = draw.choice((MERGE, SCORES, ROWS, MAP))
    (place.given / "recipe.yaml").write_text(change_recipe(draw, text))
    verb = "check" if kind < 4 else "run"
    words = [verb, "recipe.yaml", *(["--out", str(place.out / "out")] if verb == "run" else [])]
    return Case([words], patient=True)


def vectors(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Files of vectors, texts and translations that are damaged or unsound."""
    sound.copy(place, "a", "b", "vectors.npy", "texts.jsonl", "map")
    kind = draw.randrange(5)
    if kind == 0:
        part = draw.choice(sorted(p for p in (place.given / "map").rglob("*") if p.is_file()))
        if part.suffix == ".safetensors":
            mutate = draw.choice((change_numbers, _change_header))
            mutate(draw, part)
        elif part.suffix == ".json":
            change_json(draw, part)
        else:
            part.write_bytes(change_bytes(draw, part.read_bytes()))
    elif kind in (1, 2):
        change_vectors(draw, place.given / "vectors.npy")
    elif kind == 3:
        change_lines(draw, place.given / "texts.jsonl")
    verb = draw.choice(("translate", "refresh", "space", "thresholds"))
    if verb in ("translate", "refresh"):
        out = str(place.out / "new.npy")
        extra = draw.choice(([], ["--any-model"])) if verb == "translate" else []
        queries = ["--queries", "vectors.npy"] if verb == "refresh" and draw.random() < 0.3 else []
        return Case([[verb, "vectors.npy", "--by", "map", "--out", out, *extra, *queries]])
    if verb == "space":
        extra = ["--vectors", "vectors.npy"] if draw.random() < 0.5 else []
        return Case([["space", "./a", "./b", "--texts", "texts.jsonl", *extra]])
    at = draw.choice(("0.7", "0.7,0.8", "-1", "2", "nan", "x", "", "1e999"))
    return Case([["thresholds", "./a", "./b", "--texts", "texts.jsonl", "--at", at]])


def _change_header(draw: random.Random, path: Path) -> None:
    path.write_bytes(change_weights(draw, path.read_bytes()))


def models(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Model folders with wrong configs, links, missing parts, code and notes."""
    sound.copy(place, "a", "b", "base")
    victim = place.given / draw.choice(("a", "a", "b", "base"))
    for _ in range(draw.choice((1, 1, 1, 2))):
        change_model(draw, victim, place)
    kind = draw.randrange(8)
    if kind == 0:
        return Case([["space", f"./{victim.name}", "./b"]])
    if kind in (1, 3):
        sound.copy(place, "data", "pairs.jsonl")
        (place.given / "recipe.yaml").write_text(SCORES if kind == 1 else ROWS)
        return Case([["run", "recipe.yaml", "--out", str(place.out / "out")]])
    if kind == 2:
        return Case([["verify", f"./{victim.name}"], ["publish", f"./{victim.name}", "me/it"]])
    return _weights_case(draw, place, victim)


def servers(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Servers that lie, stall, redirect, cut and never end."""
    address = f"http://127.0.0.1:{sound.port}/{number}"
    out = place.out / "merged"
    words = ["merge", f"{address}/a", f"{address}/b", "--strategy", "linear", "--out", str(out)]
    return Case([words], opens=out, patient=True)


def rows(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Training rows, evaluation sets and catalogues that are damaged or unsound."""
    sound.copy(place, "a", "b", "pairs.jsonl", "data")
    if draw.random() < 0.5:
        change_lines(draw, place.given / "pairs.jsonl")
        text = draw.choice((ROWS, MAP))
    else:
        parts = sorted(p for p in (place.given / "data").rglob("*") if p.is_file())
        part = draw.choice(parts)
        if part.suffix == ".jsonl":
            change_lines(draw, part)
        elif part.suffix == ".yaml":
            part.write_text(change_recipe(draw, CATALOGUE))
        else:
            part.write_bytes(change_bytes(draw, part.read_bytes()))
        text = SCORES
    (place.given / "recipe.yaml").write_text(text)
    verb = draw.choice(("check", "run", "run"))
    words = [verb, "recipe.yaml", *(["--out", str(place.out / "out")] if verb == "run" else [])]
    return Case([words], patient=True)


def outs(draw: random.Random, number: int, sound: Sound, place: Place) -> Case:
    """Folders of finished runs in which somebody has planted links, files and weights."""
    sound.copy(place, "a", "b", "base")
    (place.given / "recipe.yaml").write_text(MERGE)
    out = place.out / "out"
    shutil.copytree(sound.root / "out", out, symlinks=True)
    files = sorted(p for p in out.rglob("*") if p.is_file() and not p.is_symlink())
    for _ in range(draw.choice((1, 1, 2))):
        victim = draw.choice(files)
        kind = draw.randrange(6)
        if victim.is_symlink() or not victim.is_file():
            continue
        if kind == 0:
            victim.unlink()
            victim.symlink_to(place.outside / "secret.txt")
        elif kind == 1:
            name = out / draw.choice(
                (".work", ".store", ".lock", "run.log", "metrics.jsonl", "merged")
            )
            if name.is_dir() and not name.is_symlink():
                shutil.rmtree(name)
            else:
                name.unlink(missing_ok=True)
            name.symlink_to(draw.choice((place.outside, place.outside / "secret.txt")))
        elif kind == 2 and victim.suffix == ".json":
            change_json(draw, victim)
        elif kind == 3 and victim.suffix == ".safetensors":
            change_numbers(draw, victim)
        elif kind == 4:
            victim.unlink()
        else:
            victim.write_bytes(change_bytes(draw, victim.read_bytes()))
    verb = draw.choice(("run", "run", "clean", "status", "verify"))
    words = {
        "run": ["run", "recipe.yaml", "--out", str(out)],
        "clean": ["clean", str(out), "--yes"],
        "status": ["status", str(out)],
        "verify": ["verify", str(out / "merged")],
    }
    opens = out / "merged" if verb == "run" else None
    return Case([words[verb]], opens=opens)


SUBJECTS: Mapping[str, Subject] = {
    "headers": headers,
    "recipes": recipes,
    "vectors": vectors,
    "models": models,
    "servers": servers,
    "rows": rows,
    "outs": outs,
}
