"""Fine-tuning on rows with images and clips: what the head sees, and what is refused before work."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Plugins, check_recipe, parse_recipe
from emberge.media import MediaFolder
from emberge_encoder import TextEncoder
from emberge_fine_tuned import FineTuned, TaskEntry

from tests.support.bench import Bench, model_at
from tests.support.media_models import RATE, SIDE, Family, media_model, tone
from tests.support.tuned_sets import source

pytestmark = pytest.mark.usefixtures("no_dropout")

STEPS = 32
CASES: list[tuple[Family, str]] = [
    ("qwen3_vl", "image"),
    ("qwen3_asr", "audio"),
    ("qwen3_omni_moe_thinker", "image"),
    ("qwen3_omni_moe_thinker", "audio"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    place = tmp_path_factory.mktemp("models")

    def model(family: Family) -> Path:
        folder = place / family
        return folder if folder.exists() else media_model(folder, family)

    return model


def write_medium(folder: Path, kind: str, side: int, number: int) -> str:
    """Write a dark or a bright image, a low or a high tone; return its path beside the rows."""
    from PIL import Image

    place = MediaFolder(folder / "media")
    if kind == "image":
        grey = (20 if side == 0 else 220) + number
        written = place.add_image(Image.new("RGB", (2 * SIDE, 2 * SIDE), (grey, grey, grey)))
    else:
        written = place.add_clip(tone((200 if side == 0 else 3000) + 10 * number, 0.6), RATE)
    return str(Path(written.path).relative_to(folder))


def write_sets(folder: Path, kind: str) -> Path:
    """Write train, dev and test; only the medium tells the label."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, start in (("train", 16, 0), ("dev", 6, 8), ("test", 6, 11)):
        lines = [
            {
                "premise": {kind: write_medium(folder, kind, row % 2, start + row // 2)},
                "hypothesis": f"a list of the {['file', 'path', 'name'][row % 3]}",
                "label": ["low", "high"][row % 2],
                "grade": row % 2 + row / 100,
            }
            for row in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def entry(folder: Path, **more: Any) -> TaskEntry:
    options: dict[str, Any] = {
        "text": "premise",
        "second": "hypothesis",
        "metric": "accuracy",
        "train": source(folder, "train"),
        "dev": (source(folder, "dev"),),
        "test": (source(folder, "test"),),
    }
    return TaskEntry(name="entails", **{**options, **more})


def scored(model: Path, place: Path, task: TaskEntry, **more: Any) -> Any:
    options: dict[str, Any] = {"steps": STEPS, "batch_size": (8,), "learning_rate": (3e-3,)}
    options |= {"patience": None, "eval_steps": STEPS, "backbone": TextEncoder()}
    evaluator = FineTuned(data=(task,), **{**options, **more})
    bench = Bench(place)
    (found,) = evaluator.evaluate(model_at(model), evaluator.plan(bench), bench)
    return found


@pytest.mark.parametrize(
    ("family", "kind"),
    [*CASES[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[2:])],
)
def test_a_head_learns_from_images_and_clips(
    family: Family, kind: str, models: Callable[[Family], Path], tmp_path: Path
) -> None:
    folder = write_sets(tmp_path / "sets", kind)
    found = scored(models(family), tmp_path, entry(folder))
    assert found.score == 1.0


def test_a_text_and_a_clip_are_the_parts_of_one_input(
    models: Callable[[Family], Path], tmp_path: Path
) -> None:
    """Written as one column of parts, the same pairs have the same predictions."""
    folder = write_sets(tmp_path / "sets", "audio")
    joined = tmp_path / "joined"
    joined.mkdir()
    (joined / "media").symlink_to(folder / "media")
    for name in ("train", "dev", "test"):
        lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        parts = [{"parts": [row["premise"], row["hypothesis"]]} for row in lines]
        rows = [{**row, "both": both} for row, both in zip(lines, parts, strict=True)]
        (joined / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = models("qwen3_asr")
    graded = {"head": "regression", "label": ("grade",), "metric": None}
    pair = scored(model, tmp_path / "a", entry(folder, **graded), steps=4, eval_steps=4)
    one = scored(model, tmp_path / "b", _alone(joined, graded), steps=4, eval_steps=4)
    assert one.units.values == pair.units.values
    alone = scored(model, tmp_path / "c", _alone(folder, graded, "premise"), steps=4, eval_steps=4)
    assert alone.units.values != pair.units.values, "the second text counts"


def _alone(folder: Path, more: dict[str, Any], text: str = "both") -> TaskEntry:
    return entry(folder, **{**more, "text": text, "second": None})


def test_the_head_reads_the_states_that_the_model_embeds(
    models: Callable[[Family], Path], tmp_path: Path
) -> None:
    """At a rate of nearly nothing, a prediction is the fresh head of the mean state of the input."""
    from emberge import join_parts, make_seed
    from emberge.encoding import compute_token_states
    from emberge_fine_tuned.head_tasks import build_head

    folder = write_sets(tmp_path / "sets", "image")
    graded = {"head": "regression", "label": ("grade",), "metric": None}
    model = models("qwen3_vl")
    found = scored(
        model, tmp_path, entry(folder, **graded), steps=1, eval_steps=1, learning_rate=(1e-30,)
    )
    encoder = TextEncoder().load(model, device="cpu", dtype="float32")
    torch.manual_seed(make_seed(0, "head"))
    head = build_head(32, 1, of_tokens=False)
    place, expected = MediaFolder(read_from=folder), []
    for line in (folder / "test.jsonl").read_text().splitlines():
        row = json.loads(line)
        image = place.add_file("image", row["premise"]["image"])
        text = join_parts([image, row["hypothesis"]])
        with torch.inference_mode():
            states, mask = compute_token_states(
                encoder, encoder.tokenise([text], prompt="", max_length=None)
            )
            expected.append(head(states[mask.bool()].mean(0))[0].item())
    assert found.units.values == pytest.approx(expected, abs=1e-5)


# ── before the run ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def problems(plugins: Plugins, tmp_path: Path) -> Callable[..., Sequence[str]]:
    def found(model: Path, **options: Any) -> Sequence[str]:
        task = {
            "name": "entails",
            "train": "./sets/train.jsonl",
            "test": "./sets/test.jsonl",
            "text": "premise",
            "second": "hypothesis",
            **options,
        }
        more = task.pop("more", {})
        evaluator = {"data": [task], **more}
        steps = {
            "scores": {
                "evaluate": {"models": [str(model)], "evaluators": {"fine_tuned": evaluator}}
            }
        }
        parsed = parse_recipe(
            json.dumps({"steps": steps}, indent=1), plugins, path=tmp_path / "recipe.yaml"
        )
        return [str(problem) for problem in check_recipe(parsed, plugins).errors]

    return found


def test_a_medium_that_cannot_be_read_is_named_with_its_line(
    problems: Callable[..., Sequence[str]], models: Callable[[Family], Path], tmp_path: Path
) -> None:
    folder = write_sets(tmp_path / "sets", "image")
    row = json.loads((folder / "test.jsonl").read_text().splitlines()[2])
    (folder / row["premise"]["image"]).unlink()
    (gone, *_) = problems(models("qwen3_vl"))
    assert "test.jsonl:3: " in gone


def test_heads_of_words_and_answers_take_no_media(
    problems: Callable[..., Sequence[str]], models: Callable[[Family], Path], tmp_path: Path
) -> None:
    folder = write_sets(tmp_path / "sets", "image")
    answers = {"answers": {"text": ["list"], "answer_start": [2]}}
    for name in ("train", "test"):
        file = folder / f"{name}.jsonl"
        lines = [json.loads(line) | answers for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (span, *_) = problems(models("qwen3_vl"), head="span", label="answers")
    assert "train.jsonl:1: " in span
    assert "head: span" in span
    (words, *_) = problems(models("qwen3_vl"), head="tokens", label="label", second=None)
    assert "train.jsonl:1: " in words


def test_a_text_cannot_refer_to_a_file(models: Callable[[Family], Path], tmp_path: Path) -> None:
    """Text that looks like a reference to an image is text."""
    from emberge import join_parts

    folder = write_sets(tmp_path / "sets", "image")
    image = MediaFolder(read_from=folder).add_file(
        "image", json.loads((folder / "test.jsonl").read_text().splitlines()[0])["premise"]["image"]
    )
    for name in ("train", "dev", "test"):
        file = folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [{**row, "premise": f"{join_parts([image])} {row['label']}"} for row in lines]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    from emberge_fine_tuned.task_data import load_task

    data = load_task(entry(folder), Bench(tmp_path).readers, lambda ref: Path(ref.text))
    assert data is not None
    assert not data.has_media
