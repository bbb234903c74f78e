"""Evaluation by fine-tuning: its scores are those of a plain transformers loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import make_seed
from emberge.training import SaveClock
from emberge_encoder import TextEncoder
from emberge_fine_tuned.head_tasks import HEAD_TASKS, build_head
from emberge_fine_tuned.options import Setting, TuningOptions
from emberge_fine_tuned.task_data import load_task
from emberge_fine_tuned.tuning import Tuning, draw_batch_rows

from tests.support import tiny
from tests.support.bench import Bench, model_at
from tests.support.tuned_sets import RATE, STEPS, scored, source, task, tuner, write_sets

pytestmark = pytest.mark.usefixtures("no_dropout")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def euro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny EuroBERT, whose heads in transformers are those of the paper."""
    from transformers import EuroBertConfig, EuroBertModel

    place = tmp_path_factory.mktemp("models") / "euro"
    place.mkdir()
    size = tiny.write_tokenizer(place)
    torch.manual_seed(0)
    config = EuroBertConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    EuroBertModel(config).save_pretrained(place)
    return place


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def plain_loop(
    model: Any, tokenise: Callable[[Sequence[Any]], Any], folder: Path, rate: float = RATE
) -> Any:
    """The same training as transformers' users write it; the trained model."""
    from transformers import get_linear_schedule_with_warmup

    train = read(folder, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    pace = get_linear_schedule_with_warmup(optimizer, 3, STEPS)
    model.train()
    for chosen in (draw_batch_rows(len(train), 8, step, 0) for step in range(STEPS)):
        optimizer.zero_grad()
        model(**tokenise([train[row] for row in chosen])).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
    return model.eval()


def padded(model: Path, texts: Sequence[Any], *seconds: Any, **more: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)(
        list(texts),
        *seconds,
        padding=True,
        return_tensors="pt",
        return_token_type_ids=False,
        **more,
    )


def load_head(plain: Any, outputs: int) -> None:
    """Give a plain model of texts the fresh head of seed 0."""
    torch.manual_seed(make_seed(0, "head"))
    dense, _, _, out = build_head(32, outputs, of_tokens=False)
    plain.dense.load_state_dict(dense.state_dict())
    plain.classifier.load_state_dict(out.state_dict())


def build_token_head(outputs: int) -> Any:
    torch.manual_seed(make_seed(0, "head"))
    return build_head(32, outputs, of_tokens=True)[1]


def test_a_classification_is_that_of_a_plain_loop(euro: Path, folder: Path, tmp_path: Path) -> None:
    from sklearn.metrics import f1_score
    from transformers import EuroBertForSequenceClassification

    labels = ["code", "money"]
    plain = EuroBertForSequenceClassification.from_pretrained(
        euro, num_labels=2, classifier_pooling="mean"
    )
    load_head(plain, 2)

    def tokenise(chosen: Sequence[Any]) -> Any:
        gold = torch.tensor([labels.index(row["label"]) for row in chosen])
        return {**padded(euro, [row["text"] for row in chosen]), "labels": gold}

    plain_loop(plain, tokenise, folder)
    test = read(folder, "test")
    with torch.no_grad():
        found = plain(**padded(euro, [row["text"] for row in test])).logits.argmax(-1).tolist()
    gold = [labels.index(row["label"]) for row in test]
    (mine,) = scored(tuner(task(folder), eval_steps=STEPS), euro, tmp_path)
    assert mine.score == pytest.approx(f1_score(gold, found, average="macro"), abs=1e-6)
    assert mine.units.values == found


def test_labels_of_words_are_those_of_a_plain_loop(
    euro: Path, folder: Path, tmp_path: Path
) -> None:
    from sklearn.metrics import f1_score
    from transformers import EuroBertForTokenClassification

    labels = ["B-0", "B-1", "O"]
    plain = EuroBertForTokenClassification.from_pretrained(euro, num_labels=3)
    plain.classifier.load_state_dict(build_token_head(3).state_dict())

    def tokenise(chosen: Sequence[Any]) -> Any:
        read = padded(euro, [row["words"] for row in chosen], is_split_into_words=True)
        gold = torch.full_like(read["input_ids"], -100)
        for row, one in enumerate(chosen):
            seen = {None}
            for place, word in enumerate(read.word_ids(row)):
                if word not in seen:  # the first token of a word
                    seen.add(word)
                    gold[row, place] = labels.index(one["tags"][word])
        return {**read, "labels": gold}

    plain_loop(plain, tokenise, folder)
    given = tokenise(read(folder, "test"))
    with torch.no_grad():
        found = plain(**given).logits.argmax(-1)
    scored_places = given["labels"] >= 0
    gold, mine = given["labels"][scored_places].tolist(), found[scored_places].tolist()
    entry = task(folder, head="tokens", text="words", label=("tags",))
    (score,) = scored(tuner(entry, eval_steps=STEPS), euro, tmp_path)
    assert score.score == pytest.approx(f1_score(gold, mine, average="macro"), abs=1e-6)


def test_answers_are_those_of_a_plain_loop(euro: Path, folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    class Answering(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = AutoModel.from_pretrained(euro)
            self.head = build_token_head(2)

        def forward(self, places: Any = None, **features: Any) -> Any:
            logits = self.head(self.trunk(**features)[0])
            logits = logits.masked_fill(features["attention_mask"][..., None] == 0, -1e30)
            found = type("Out", (), {"logits": logits})
            if places is not None:
                entropy = torch.nn.functional.cross_entropy
                found.loss = (
                    entropy(logits[..., 0], places[:, 0]) + entropy(logits[..., 1], places[:, 1])
                ) / 2
            return found

    def tokenise(chosen: Sequence[Any]) -> Any:
        read = padded(euro, [row["other"] for row in chosen], [row["text"] for row in chosen])
        places = []
        for row, one in enumerate(chosen):
            begin = one["answers"]["answer_start"][0]
            end = begin + len(one["answers"]["text"][0])
            places.append((read.char_to_token(row, begin, 1), read.char_to_token(row, end - 1, 1)))
        return {**read, "places": torch.tensor(places)}

    plain = plain_loop(Answering(), tokenise, folder)
    right = []
    for row in read(folder, "test"):
        given = padded(euro, [row["other"]], [row["text"]])
        with torch.no_grad():
            logits = plain(**given).logits[0]
        inside = [i for i, part in enumerate(given.sequence_ids(0)) if part == 1]
        best = max(
            ((logits[a, 0] + logits[b, 1]).item(), a, b)
            for a in inside
            for b in inside
            if a <= b < a + 30
        )
        start, end = (given.token_to_chars(0, best[1]).start, given.token_to_chars(0, best[2]).end)
        answers = (row["text"][start:end], row["answers"]["text"][0])
        told = [[word for word in one.split() if word not in ("the", "a")] for one in answers]
        right.append(told[0] == told[1])  # articles do not count
    entry = task(
        folder, head="span", text="other", second="text", label=("answers",), metric="exact_match"
    )
    (mine,) = scored(tuner(entry, eval_steps=STEPS), euro, tmp_path)
    assert mine.score == pytest.approx(sum(right) / len(right), abs=1e-6)


def test_a_causal_model_is_read_at_its_last_token(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    causal = tiny.checkpoint(tmp_path / "causal", "qwen3")

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = AutoModel.from_pretrained(causal)
            torch.manual_seed(make_seed(0, "head"))
            self.layers = build_head(32, 1, of_tokens=False)

        def forward(self, gold: Any = None, **features: Any) -> Any:
            last = features["attention_mask"].sum(1) - 1
            states = self.trunk(**features)[0][torch.arange(len(last)), last]
            logits = self.layers(states)[:, 0]
            loss = None if gold is None else torch.nn.functional.mse_loss(logits, gold)
            return type("Out", (), {"logits": logits, "loss": loss})

    def tokenise(chosen: Sequence[Any]) -> Any:
        gold = torch.tensor([row["grade"] for row in chosen])
        return {**padded(causal, [row["text"] for row in chosen]), "gold": gold}

    plain = plain_loop(Plain(), tokenise, folder)
    with torch.no_grad():
        found = plain(**tokenise(read(folder, "test"))).logits.tolist()
    entry = task(folder, head="regression", label=("grade",))
    (mine,) = scored(tuner(entry, eval_steps=STEPS, backbone=TextEncoder()), causal, tmp_path)
    assert mine.units.values == pytest.approx(found, abs=1e-4)


# ── settings that development data chooses ──────────────────────────────────────────────────────


def test_the_best_learning_rate_on_development_data_is_tested(
    euro: Path, folder: Path, tmp_path: Path
) -> None:
    """A rate of nearly nothing learns nothing; one that is far too high loses every number."""
    rates = (1e-9, RATE, 1e9)
    entry = task(folder, metric="accuracy")
    (chosen,) = scored(tuner(entry, learning_rate=rates), euro, tmp_path / "grid")
    (alone,) = scored(tuner(entry, learning_rate=(RATE,)), euro, tmp_path / "alone")
    (stored,) = (tmp_path / "alone").rglob("store/fine_tuned/*/*.json")
    whole = stored.read_text()
    stored.write_text(whole[:9])
    scored(tuner(entry, learning_rate=(RATE,)), euro, tmp_path / "alone")
    assert json.loads(stored.read_text())["dev"] == json.loads(whole)["dev"], "it is stored again"
    written = stored.stat().st_mtime_ns
    scored(tuner(entry, learning_rate=(RATE,)), euro, tmp_path / "alone")
    assert stored.stat().st_mtime_ns == written, "and then used"
    assert chosen.result["learning_rate"] == RATE
    assert chosen.result["dev"] == max(each["dev"] for each in chosen.result["dev_by_setting"])
    assert (chosen.score, chosen.units) == (alone.score, alone.units)


def test_a_training_ends_an_epoch_after_its_best_state(
    euro: Path, folder: Path, tmp_path: Path
) -> None:
    """An epoch is five steps here; a rate of nearly nothing never betters its first state."""
    for every, patience, steps in (
        (2, 1.0, [2, 4, 6, 8]),
        (2, 0.4, [2, 4]),
        (8, None, [8, 16, 24]),
    ):
        options = {"learning_rate": (1e-9,), "eval_steps": every, "patience": patience}
        evaluator = tuner(task(folder, metric="accuracy"), **options)
        (found,) = scored(evaluator, euro, tmp_path / f"{patience}")
        assert [step for step, _, _ in found.result["curve"]] == steps
        assert found.result["step"] == every


def test_the_state_that_was_best_on_development_data_is_tested(
    euro: Path, folder: Path, tmp_path: Path
) -> None:
    """Trained to `step`, with the same schedule, the model scores what it scores at its best."""
    entry = task(folder, head="regression", label=("grade",))
    rate = (5e-2,)  # so high that later states are worse
    (mine,) = scored(tuner(entry, learning_rate=rate, eval_steps=1), euro, tmp_path)
    devs = {step: dev for step, _, dev in mine.result["curve"]}
    assert mine.result["dev"] == max(devs.values())
    best = mine.result["step"]
    assert devs[best] == max(devs.values())
    assert best < STEPS, "else nothing is shown here"
    test = replace(entry, test=(source(folder, "dev"),))
    (again,) = scored(tuner(test, learning_rate=rate, eval_steps=1), euro, tmp_path)
    assert again.score == pytest.approx(devs[best], abs=1e-6)


@pytest.mark.slow
def test_a_task_starts_from_anothers_model(euro: Path, folder: Path, tmp_path: Path) -> None:
    """With a rate of nearly nothing the second task's head is on the first one's model."""
    first = task(folder, metric="accuracy")
    second = replace(
        first, name="after", start="subject", head="tokens", text="words", label=("tags",)
    )
    for place, learned in ((tmp_path / "a", RATE), (tmp_path / "b", 1e-9)):
        evaluator = tuner(first, second, learning_rate=(learned,))
        bench = Bench(place)
        tasks = evaluator.plan(bench)
        assert [t.name for t in tasks] == ["subject", "after"]
        list(evaluator.evaluate(model_at(euro), tasks, bench))
        (kept,) = (place / "work" / "fine_tuned").glob("*.safetensors")
        from safetensors.torch import load_file
        from transformers import AutoModel

        own = AutoModel.from_pretrained(euro).state_dict()["layers.0.mlp.up_proj.weight"]
        (name,) = (n for n in load_file(kept) if n.endswith("layers.0.mlp.up_proj.weight"))
        moved = (load_file(kept)[name] - own).abs().max().item()
        assert (moved > 1e-4) == (learned == RATE)
        kept.unlink()
        for cell in place.rglob("store/fine_tuned/*/after-*.json"):
            cell.unlink()
        list(evaluator.evaluate(model_at(euro), tasks[1:], bench))
        assert kept.exists(), "the first task's training was done again for its weights"
        assert bench.told[-1][0] == bench.told[-1][1]


def test_a_killed_training_goes_on_from_its_state(
    euro: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed between two looks at development data, and ends in the same numbers."""
    monkeypatch.setattr("emberge_fine_tuned.head_tasks._DROPOUT_SHARE", 0.1)
    entry = task(folder, head="regression", label=("grade",))
    data = load_task(entry, Bench(tmp_path).readers, lambda ref: Path(ref.text))
    assert data is not None
    options = TuningOptions(
        backbone=TextEncoder(pooling="mean"),
        steps=STEPS,
        weight_decay=0.01,
        eval_steps=3,
        patience=None,
    )
    taken: list[int] = []

    def tuning(last: int = STEPS) -> Tuning:
        def killed(step: int, *_: object) -> None:
            taken.append(step)
            if step > last:
                raise KeyboardInterrupt

        encoder = options.backbone.load(euro, device="cpu", dtype="float32")
        kind = HEAD_TASKS["regression"](data, encoder, causal=False, max_length=None)
        return Tuning(kind, options, Setting(RATE, 8), 0, killed)

    whole = tuning().run(tmp_path / "whole")
    states = tmp_path / "states"
    with pytest.raises(KeyboardInterrupt):
        tuning(last=13).run(states, SaveClock(seconds=0.0, pause=0.0))
    taken.clear()
    assert tuning().run(states) == whole
    assert list(dict.fromkeys(taken)) == list(range(14, STEPS + 1))


def test_progress_counts_tasks_settings_and_steps(euro: Path, folder: Path, tmp_path: Path) -> None:
    evaluator = tuner(task(folder), steps=6, learning_rate=(1e-3, 1e-4), seeds=(1, 2))
    bench = Bench(tmp_path)
    list(evaluator.evaluate(model_at(euro), evaluator.plan(bench), bench))
    done = [told[0] for told in bench.told]
    assert done == sorted(done)
    assert bench.told[-1][:2] == (2, 2)
    assert len(set(done)) > 4 * 6
    words = [told[3] for told in bench.told]
    assert any("task 2 of 2: subject#2" in one for one in words)
    assert any("setting 2 of 2: subject, seed 2, learning rate 0.0001" in one for one in words)
