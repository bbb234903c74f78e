"""Images and clips are scored by mteb's own evaluators: local sets, batches of mteb's, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from datasets import Dataset, DatasetDict
from emberge import DataError, DataRef, TaskScore, split_parts
from emberge.encoding import TextEmbedder
from emberge.media import MediaFolder
from emberge_data import RetrievalData
from emberge_mteb.evaluator import Mteb
from emberge_mteb.hub_tasks import build_hub_tasks
from emberge_mteb.local_sets import EvalEntry
from emberge_mteb.local_tasks import find_media_sides
from emberge_mteb.models import VectorModel, build_model_meta
from emberge_mteb.scoring import score_task
from emberge_mteb.task_texts import Prompts, TaskTexts, read_batch_inputs

from tests.support.bench import BACKBONE, Bench, model_at
from tests.support.media_models import RATE, drawing, media_model, tone
from tests.support.tiny import WORDS

HZ = 200


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_model(tmp_path_factory.mktemp("models") / "omni", "qwen3_omni_moe_thinker")


def write_set(folder: Path, queries: Sequence[Any], corpus: Sequence[Any]) -> None:
    """A set to search, in which each query wants the document of its number."""
    folder.mkdir(parents=True)
    for stem, letter, texts in (("queries", "q", queries), ("corpus", "d", corpus)):
        rows = [{"_id": f"{letter}{i}", "text": text} for i, text in enumerate(texts)]
        (folder / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(len(queries)))]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n")


SETS = {
    **{"i2t": ("image", "text"), "t2i": ("text", "image"), "a2t": ("audio", "text")},
    **{"t2a": ("text", "audio"), "i2i": ("image", "image"), "it2t": ("both", "text")},
}
COUNT = 12


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set for each pair of sides, named as mteb writes it."""
    root = tmp_path_factory.mktemp("sets")
    media = MediaFolder(root / "files")
    images = [{"image": media.add_image(drawing(i)).path} for i in range(COUNT)]
    clips = [{"audio": media.add_clip(tone(HZ * (i + 1), 0.6), RATE).path} for i in range(COUNT)]
    texts = [f"the {word} of {WORDS[-i]}" for i, word in enumerate(WORDS[:COUNT])]
    sides: dict[str, Sequence[Any]] = {
        "image": images,
        "audio": clips,
        "text": texts,
        "both": [{"parts": [text, one]} for text, one in zip(texts, images, strict=True)],
    }
    entries = []
    for name, (asked, found) in SETS.items():
        write_set(root / name, sides[asked], sides[found])
        entries.append({"name": name, "dir": name, "task": "retrieval", "language": "en"})
    (root / "datasets.yaml").write_text(yaml.safe_dump({"format": 1, "eval": entries}))
    return root


def evaluator(catalogue: Path, *only: str) -> Mteb:
    entry = EvalEntry(path=DataRef(str(catalogue / "datasets.yaml")), only=only)
    return Mteb(data=(entry,), backbone=BACKBONE)


@pytest.fixture(scope="module")
def scores(
    catalogue: Path, omni: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TaskScore]:
    bench, one = Bench(tmp_path_factory.mktemp("bench")), evaluator(catalogue)
    found = one.evaluate(model_at(omni), one.plan(bench), bench)
    return {score.task.name: score for score in found}


@pytest.mark.parametrize("name", SETS)
def test_a_local_set_scores_what_the_models_own_embeddings_rank(
    name: str, scores: dict[str, TaskScore], catalogue: Path, omni: Path
) -> None:
    from emberge_data import EvalSource, JsonLines, load_eval_set, pick_eval_sets

    entry = EvalSource(path=DataRef(str(catalogue)), only=(name,))
    (eval_set,) = pick_eval_sets(entry)
    data = cast("RetrievalData", load_eval_set(eval_set, readers=[JsonLines()]))
    sides = find_media_sides(data)
    assert sides is not None
    assert sides.category == name
    embedder = TextEmbedder(BACKBONE.load(omni, device="cpu", dtype="float32"))
    queries, corpus = (
        embedder.embed(list(texts.values())) for texts in (data.queries, data.corpus)
    )
    # Model and tasks are tiny, so that a near tie may fall on either side: the range is over both.
    cosines = np.asarray(queries, np.float64) @ np.asarray(corpus, np.float64).T
    gains = []
    for slack in (-1e-5, 1e-5):
        ranks = (cosines > cosines.diagonal()[:, None] + slack).sum(axis=1)
        ranks -= slack < 0  # itself
        gains.append(float(np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean()))
    assert min(gains) - 1e-5 <= scores[name].score <= max(gains) + 1e-5
    units = scores[name].units
    assert units is not None
    assert len(units.values) == COUNT
    assert name != "i2i" or scores[name].score == 1, "an image finds itself"


@pytest.mark.parametrize("path", ["{}/i2t", "{}/rows.jsonl"])
def test_a_fingerprint_depends_on_media_outside_of_the_set(path: str, tmp_path: Path) -> None:
    row = {"image": str(tmp_path / "1.png")}
    write_set(tmp_path / "i2t", [row], ["a text"])
    (tmp_path / "rows.jsonl").write_text(json.dumps({"query": row, "pos": "a text"}))
    entry = EvalEntry(path=DataRef(path.format(tmp_path)))
    fingerprints = set()
    for number in (0, 1, 0):
        drawing(number).save(tmp_path / "1.png")
        (task,) = Mteb(data=(entry,), backbone=BACKBONE).plan(Bench(tmp_path / "bench"))
        fingerprints.add(task.fingerprint)
    assert len(fingerprints) == 2


def test_a_batch_becomes_inputs_with_equal_media_once(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path)
    sound = {"array": tone(HZ), "sampling_rate": RATE}
    batch = {
        "text": ["the list", "the files", ""],
        "image": [drawing(1), [drawing(1), drawing(2)], drawing(2)],
        "audio": [sound, sound, sound],
        "id": ["a", "b", "c"],
    }
    first, second, third = (split_parts(text) for text in read_batch_inputs(batch, folder))
    assert [getattr(part, "kind", part) for part in first] == ["image", "audio", "the list"]
    assert [getattr(part, "kind", part) for part in second] == [
        *("image", "image", "audio"),
        "the files",
    ]
    assert second[0] == first[0]
    assert third == [second[1], first[1]]
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(DataError, match="video"):
        read_batch_inputs({"video": [b""]}, folder)


def mteb_model(omni: Path, media: Path) -> VectorModel:
    embedder = TextEmbedder(BACKBONE.load(omni, device="cpu", dtype="float32"))
    return VectorModel(
        lambda texts, prompt: embedder.embed(texts, prompt=prompt),
        TaskTexts(Prompts(), media),
        build_model_meta("omni", "0", ["image", "audio"]),
    )


def test_mtebs_own_task_of_sound_is_scored(omni: Path, tmp_path: Path) -> None:
    (task,) = build_hub_tasks(["BeijingOpera"], None, ())
    # Two pitches far apart, which even a random tower tells from each other.
    clips = [
        {"array": tone((200, 4000)[i % 2] + i, 0.6).tolist(), "sampling_rate": RATE}
        for i in range(40)
    ]
    rows = Dataset.from_dict({"audio": clips, "label": [i % 2 for i in range(40)]})
    task.dataset, task.data_loaded = DatasetDict({"train": rows}), True
    model = mteb_model(omni, tmp_path / "media")
    model.prepare("first", {})
    score = score_task(task, model).score
    assert score > 0.8
    assert list((tmp_path / "media").iterdir())
    model.prepare("next", {})
    assert not (tmp_path / "media").exists()


def test_a_text_model_is_refused_for_a_task_of_images(
    bert: Path, catalogue: Path, tmp_path: Path
) -> None:
    local, bench = evaluator(catalogue, "i2t"), Bench(tmp_path)
    with pytest.raises(DataError, match=r"task 'i2t': Model .* supports \['text'\]"):
        list(local.evaluate(model_at(bert), local.plan(bench), bench))


# ── benchmarks ──────────────────────────────────────────────────────────────────────────────────
