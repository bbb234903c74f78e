"""A student learns its teacher's embeddings, and mistakes are found before work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, load_plugins
from emberge.encoding import TextEmbedder
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.training_data import retrieval, texts

STUDENT = """
steps:
  small:
    distil:
      teacher: %s
      student: %s
      data: %s
      sampler: {batch_shuffle: {batch_size: 8}}
      learning_rate: 0.003
      epochs: %s
      %s
"""
TEXTS = "{path: read.jsonl, task: text}"
PAIRS = "{path: find.jsonl, task: retrieval}"


def _laid_out(root: Path, bert: Path, berts: Sequence[Path]) -> Path:
    """A folder with a teacher, a sibling of it, a narrow model and two files of texts."""
    for name, folder in zip(("teacher", "b"), (bert, *berts), strict=False):
        (root / name).symlink_to(folder)
    tiny.checkpoint(root / "narrow", "xlm-roberta", seed=5, hidden_size=16)
    rows = [{"text": row.anchor} for row in texts(24).rows]
    (root / "read.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [
        {"anchor": row.anchor, "positive": row.positives[0], "negative": f"no {row.anchor}"}
        for row in retrieval(16).rows
    ]
    (root / "find.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return root


@pytest.fixture
def place(bert: Path, berts: Sequence[Path], tmp_path: Path) -> Path:
    return _laid_out(tmp_path, bert, berts)


@pytest.fixture
def deep(place: Path) -> Path:
    """A teacher each of whose layers changes embeddings much, unlike those of a random model."""
    folder = place / "deep"
    shutil.copytree(place / "teacher", folder)
    weights = load_file(folder / "model.safetensors")
    grown = {n: w * 6 if "layer" in n and w.ndim > 1 else w for n, w in weights.items()}
    save_file(grown, folder / "model.safetensors", {"format": "pt"})
    return folder


def _run(place: Path, text: str, out: str = "out") -> Path:
    return run_checked(place, text, load_plugins(), out)["small"]


def _student(
    teacher: str = "./teacher",
    student: str = "{layers: [0, 2]}",
    data: str = TEXTS,
    more: str = "",
    epochs: int = 6,
) -> str:
    return STUDENT % (teacher, student, data, epochs, more)


def _errors(place: Path, text: str) -> str:
    return find_faults(place, text, load_plugins())


def _losses(result: Path) -> list[float]:
    lines = map(json.loads, (result / "metrics.jsonl").read_text().splitlines())
    return [line["value"] for line in lines if line["name"] == "loss"]


def test_a_student_of_layers_gets_nearer_to_its_teacher(place: Path, deep: Path) -> None:
    result = _run(place, _student("./deep"))
    losses = _losses(result)
    assert losses[-1] < losses[0] / 2
    some = [row.anchor for row in texts(24).rows]
    teacher, student = (SentenceTransformer(str(p)) for p in (deep, result))
    distances = 1 - (teacher.encode(some) * student.encode(some)).sum(1)
    assert distances.mean() < losses[0] / 2
    artifact = json.loads((result / "artifact.json").read_text())
    assert artifact["parents"] == ["deep"]
    assert artifact["base"]["name"] == "deep"
    assert artifact["details"]["added"]["student"] == "layers (0, 2)"


@pytest.mark.parametrize(
    ("guide", "distil", "train"),
    [
        ("model: ./teacher", "", ""),
        ("model: ./teacher, max_length: 6", "max_length: 6", "max_length: 6"),
        (
            "model: ./teacher",
            "backbone: {text_encoder: {max_length: 5}}",
            "backbone: {text_encoder: {max_length: 5}}",
        ),
    ],
    ids=["plain", "few tokens", "a student that reads few tokens"],
)
def test_distil_equals_train_of_the_same_layers_with_a_guide(
    place: Path, guide: str, distil: str, train: str
) -> None:
    """Byte for byte: `cut_layers`, then `train` with the teacher as the guide of the loss."""
    by_hand = f"""
steps:
  cut:
    cut_layers: {{model: ./teacher, layers: [0, 2]}}
  small:
    train:
      model: $cut
      data: {{path: read.jsonl, task: text}}
      loss: {{embedding_distillation: {{guide: {{{guide}}}}}}}
      sampler: {{batch_shuffle: {{batch_size: 8}}}}
      learning_rate: 0.003
      epochs: 2
      {train}
"""
    text = _student(more=distil, epochs=2)
    one, two = _run(place, text), _run(place, by_hand, "hand")
    first, second = (load_file(result / "model.safetensors") for result in (one, two))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_teacher_embeds_the_texts_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    embed = TextEmbedder.embed_tokens

    def counted(self: TextEmbedder, some: Any) -> Any:
        counts.append(len(some))
        return embed(self, some)

    monkeypatch.setattr(TextEmbedder, "embed_tokens", counted)
    _run(place, _student(epochs=1), "out")
    assert counts == [24]
    # Another student, in the same OUT.
    _run(place, _student(student="{layers: 1}", epochs=1), "out")
    assert counts == [24]


def test_two_students_in_one_out_have_their_own_layers(place: Path) -> None:
    """Be it other layers of the same number, or a teacher in the place of one of its name."""

    def first_layer(layers: str) -> Any:
        text = _student(student=f"{{layers: {layers}}}", epochs=1).replace("0.003", "0")
        weights = load_file(_run(place, text) / "model.safetensors")
        return weights["encoder.layer.0.output.dense.weight"]

    def layer(name: str, number: int) -> Any:
        weights = load_file(place / name / "model.safetensors")
        return weights[f"encoder.layer.{number}.output.dense.weight"]

    assert torch.equal(first_layer("[0, 2]"), layer("teacher", 0))
    assert torch.equal(first_layer("[1, 2]"), layer("teacher", 1))
    (place / "teacher").unlink()
    (place / "teacher").symlink_to((place / "b").resolve())
    assert torch.equal(first_layer("[1, 2]"), layer("b", 1))


def test_a_teacher_that_turns_out_to_be_an_adapter_is_refused(place: Path) -> None:
    """Its base's layers would be those of another model."""
    adapter = """
steps:
  thin:
    train:
      model: ./teacher
      data: {path: find.jsonl, task: retrieval}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: infonce
      backbone: {text_encoder: {lora: {rank: 2}}}
      max_steps: 1
"""
    with pytest.raises(CheckpointError, match="thin: is an adapter; merge it"):
        _run(place, adapter + _student("$thin", epochs=1).removeprefix("\nsteps:"))


def test_a_student_of_layers_works_with_a_relative_out(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student's folder is below it, and its path is no name of a model on a hub."""
    monkeypatch.chdir(place)
    made = _run(Path(), _student(student="{layers: [2]}", epochs=1))
    assert not made.is_absolute()
    assert (made / "model.safetensors").is_file()


def test_a_narrow_student_with_a_dense_searches_the_teachers_index(place: Path) -> None:
    dense = "backbone: {text_encoder: {dense: 32}}"
    result = _run(place, _student(student="{model: ./narrow}", more=dense))
    student = SentenceTransformer(str(result))
    kinds = [type(module).__name__ for module in student]
    assert kinds == ["Transformer", "Pooling", "Dense", "Normalize"]
    some = [row.anchor for row in texts(24).rows]
    teacher = SentenceTransformer(str(place / "teacher"))
    vectors = student.encode(some)
    assert vectors.shape == (24, 32)
    assert (teacher.encode(some) * vectors).sum(1).mean() > 0.5
    losses = _losses(result)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("loss", "teacher"),
    [
        ("[embedding_distillation, {kl_distillation: {weight: 0.5}}]", "./deep"),
        ("{matryoshka: {loss: embedding_distillation, dims: [32, 8]}}", "./deep"),
    ],
)
def test_losses_of_scores_and_of_prefixes_get_the_teacher(
    place: Path, deep: Path, loss: str, teacher: str
) -> None:
    losses = _losses(_run(place, _student(teacher, data=PAIRS, more=f"loss: {loss}")))
    assert losses[-1] < losses[0]


def test_a_teachers_problem_is_shown_once(place: Path) -> None:
    """Where the recipe names the teacher, and not also as the guide of a loss."""
    shutil.copytree(place / "b", place / "mute")
    modules = '[{"name": "0", "type": "far.away.Model", "path": ""}]'
    (place / "mute" / "modules.json").write_text(modules)
    errors = _errors(place, _student("./mute", "{model: ./b}"))
    assert errors.count("remote code") == 1


@pytest.fixture(scope="module")
def wrong(bert: Path, berts: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a file of no texts, a folder of no model, and a model without a tokenizer."""
    root = _laid_out(tmp_path_factory.mktemp("wrong"), bert, berts)
    (root / "empty.jsonl").write_text("")
    (root / "data").mkdir()
    mute = shutil.copytree(root / "b", root / "mute")
    for path in [*mute.glob("tokenizer*"), *mute.glob("vocab*"), *mute.glob("special_tokens*")]:
        path.unlink()
    return root


def test_losses_of_single_datasets_read_the_teacher_too(place: Path) -> None:
    loss = "loss: {by_dataset: {find: embedding_distillation}}"
    assert _errors(place, _student(data=PAIRS, more=loss)) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_student(student="{model: ./narrow}"), "its guide has embeddings of 32 numbers"),
        (_student("./narrow", "{model: ./teacher}"), "dense: 16"),
        (_student(student="{layers: [2, 0]}"), r"write [0, 2]"),
        (_student(student="{layers: [0, 7]}"), "are not some of its"),
        (_student(student="{layers: [0], model: ./b}"), "either a 'model' or 'layers'"),
        (_student("./data"), "./data"),
        (_student(data="[]"), "no data to train on"),
        (_student(data="{path: empty.jsonl, task: text}"), "empty.jsonl"),
        (_student(more="loss: infonce"), "InfoNCE compares texts"),
        (_student(data=PAIRS, more="loss: infonce"), "no loss reads the teacher"),
        (_student(data=PAIRS, more="loss: {keep_space: {guide: {model: ./b}}}"), "no loss reads"),
        (_student(more="backbone: {text_encoder: {lora: {rank: 2}}}"), "lora: {fold: true}"),
        (_student(student="{model: ./mute}"), "has no tokenizer"),
        (_student("./mute"), "has no tokenizer"),
    ],
)
def test_mistakes_are_refused_before_work(wrong: Path, text: str, message: str) -> None:
    try:
        errors = _errors(wrong, text)
    except Exception as error:
        errors = str(error)
    assert message in errors
