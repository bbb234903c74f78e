"""The `measure_statistics` step: numbers against computations by hand, and files that other runs use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    CheckpointError,
    EmbergeError,
    Machine,
    PerDataset,
    Plugins,
)
from emberge.merging.statistics_file import StatisticsFile
from emberge.model_folder import hash_model
from emberge.training import FitJob, FitOptions, SaveClock
from emberge_encoder import TextEncoder
from emberge_statistics import gram_and_fisher
from emberge_statistics.gram_and_fisher import GramCounter, measure_on_data, plan_passes
from emberge_train import BatchShuffle, InfoNCE
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize

from tests.support import tiny
from tests.support.chains import chain
from tests.support.exact import ExactEncoder
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import artifact_of
from tests.support.tolerance import assert_exact, assert_near, of_pass
from tests.support.training_data import InMemory, retrieval

ROWS = 12
LAYER = "encoder.layer.0.attention.self.query.weight"
TOKENS = "embeddings.word_embeddings.weight"


def measured(
    what: str, folder: Path, work: Path, data: InMemory | None = None, **options: Any
) -> dict[str, Tensor]:
    """A model's entries by tensor."""
    order = options.pop("sampler", (BatchShuffle(batch_size=PerDataset(default=4), tail="keep"),))
    seed, memory = options.pop("seed", 0), options.pop("memory", None)
    progress, clock = options.pop("progress", lambda *_: None), options.pop("clock", None)
    job = FitJob(
        backbone=options.pop("backbone", TextEncoder()),
        checkpoint=folder,
        datasets=[data or retrieval(ROWS)],
        sampler=order,
        losses=PerDataset(default=(options.pop("loss", InfoNCE()),)),
        options=FitOptions(dropout=False, precision="float32", hard_negatives=0, **options),
        seed=seed,
    )
    parts, _ = measure_on_data(
        what,  # type: ignore[arg-type]
        job,
        work,
        label="m",
        store=work / "store",
        machine=Machine(memory=memory),
        progress=progress,
        clock=clock,
    )
    values: dict[str, Tensor] = {}
    for part in parts:
        values |= {
            n: torch.as_tensor(v["m"]) for n, v in StatisticsFile.open(part).read().values.items()
        }
    return values


def plain(folder: Path) -> tuple[Any, Any]:
    """The transformer and its tokenizer, without any of emberge."""
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────


def by_hand(folder: Path, rows: list[Any]) -> dict[str, Tensor]:
    """The gradient of one batch's InfoNCE loss in float64, every text encoded alone."""
    model, tokenizer = plain(folder)
    model.double()

    def embed(text: str) -> Tensor:
        states = model(**tokenizer(text, return_tensors="pt"))[0]
        return normalize(states[0].mean(0), dim=-1)

    anchors = torch.stack([embed(row.anchor) for row in rows])
    positives = torch.stack([embed(row.positives[0]) for row in rows])
    scores = anchors @ positives.mT / 0.02
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(rows)))
    loss.backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def single(data: InMemory) -> InMemory:
    """Rows with one positive and nothing else, so that no text is drawn."""
    import dataclasses

    rows = [
        dataclasses.replace(row, positives=row.positives[:1], negatives=()) for row in data.rows
    ]
    return dataclasses.replace(data, rows=rows)


def test_fisher_information_is_the_mean_squared_gradient_of_batches(
    bert: Path, tmp_path: Path
) -> None:
    data = single(retrieval(ROWS))
    batches: list[list[int]] = []

    class Noted(BatchShuffle):
        def batches(self, pool: Any, seed: int) -> Iterator[Any]:
            found = list(super().batches(pool, seed))
            batches[:] = [list(batch.parts[0].rows) for batch in found]
            return iter(found)

    order = (Noted(batch_size=PerDataset(default=4), tail="keep"),)
    found = measured("fisher", bert, tmp_path, data, sampler=order, backbone=ExactEncoder())
    assert sorted(i for rows in batches for i in rows) == list(range(ROWS))
    squares: dict[str, Tensor] = {}
    for rows in batches:
        for name, gradient in by_hand(bert, [data.rows[i] for i in rows]).items():
            squares[name] = squares.get(name, torch.zeros(())) + gradient**2 / len(batches)
    assert len(squares) > 30
    assert_exact({name: found[name] for name in squares}, squares)


def test_a_tensor_without_a_gradient_has_a_single_zero(bert: Path, tmp_path: Path) -> None:
    found = measured("fisher", bert, tmp_path, max_steps=1)
    assert found.keys() == load_file(bert / "model.safetensors").keys()
    assert found["pooler.dense.weight"].shape == ()
    assert float(found["pooler.dense.weight"]) == 0
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert float(found[LAYER].sum()) > 0


def test_gram_matrices_are_of_what_layers_are_fed(bert: Path, tmp_path: Path) -> None:
    data = single(retrieval(ROWS))
    found = measured("gram", bert, tmp_path, data)
    model, tokenizer = plain(bert)
    expected, ends = torch.zeros(32, 32, dtype=torch.float64), torch.zeros(64, 64).double()
    tokens: Counter[int] = Counter()
    fed: list[Tensor] = []
    last = model.encoder.layer[2].output.dense
    last.register_forward_pre_hook(lambda _, args: fed.append(args[0][0].detach()))
    for row in data.rows:
        for text in (row.anchor, row.positives[0]):
            inputs = tokenizer(text, return_tensors="pt")
            tokens.update(inputs["input_ids"][0].tolist())
            with torch.no_grad():
                first = model.embeddings(inputs["input_ids"])[0].double()
                model(**inputs)
            expected += first.mT @ first
            ends += fed[-1].double().mT @ fed[-1].double()
    for name, sums in ((LAYER, expected), ("encoder.layer.2.output.dense.weight", ends)):
        off = (found[name].double() - sums).abs().max() / sums.abs().max()
        assert off <= 2 * of_pass(bert), f"{name}: both factors of a product come from a pass"
    counts = [tokens[i] for i in range(found[TOKENS].shape[0])]
    assert found[TOKENS].tolist() == counts
    assert tokens[2] == 2 * ROWS  # one [CLS] a text and no padding: [PAD] is 0
    assert tokens[0] == 0
    for other in ("key", "value"):
        assert torch.equal(found[LAYER.replace("query", other)], found[LAYER])
    # Of biases, norms, positions and the pooler there is none.
    assert len(found) == 1 + 3 * 6
    assert all(gram.dtype == torch.float32 for gram in found.values())


def test_layers_that_share_their_inputs_are_summed_once(bert: Path) -> None:
    encoder = TextEncoder().load(bert, device="cpu", dtype="float32")
    called = {n: n.removeprefix("trunk.") for n, _ in encoder.module.named_parameters()}
    (text,) = encoder.tokenise(["read the file"], prompt="", max_length=None)
    (layers,) = plan_passes(encoder, called, [TOKENS], text, None)
    with GramCounter(encoder, layers, 100) as counter:
        counter.add([text])
    assert not any(m._forward_pre_hooks for m in encoder.module.modules()), "a hook is left behind"
    shared = [{name.rpartition(".")[2] for name in layer.shared} for layer in layers]
    assert shared.count({"query", "key", "value"}) == 3
    assert len(layers) == 1 + 3 * 4


def test_little_memory_means_more_passes_and_the_same_numbers(bert: Path, tmp_path: Path) -> None:
    whole = measured("gram", bert, tmp_path / "whole")
    work = tmp_path / "parts"
    parts = measured("gram", bert, work, memory=40 << 10)
    assert len(list(work.glob("gram-*.safetensors"))) > 3
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_modules_after_pooling_are_measured_too(tmp_path: Path) -> None:
    dense = tiny.projected(tmp_path / "model", dimension=16)
    found = measured("gram", dense, tmp_path / "gram")
    assert found["2_Dense.linear.weight"].shape == (32, 32)
    found = measured("fisher", dense, tmp_path / "fisher")
    assert found["2_Dense.linear.weight"].shape == (16, 32)
    assert found["2_Dense.linear.bias"].shape == (16,)


@pytest.mark.parametrize("what", ["fisher", "gram"])
def test_a_killed_measurement_goes_on_and_ends_the_same(
    what: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram_and_fisher, "WINDOW_TEXTS", 8)
    always = SaveClock(seconds=0.0, pause=0.0)
    whole = measured(what, bert, tmp_path / "whole", epochs=2)
    work = tmp_path / "killed"
    steps: list[int] = []

    def tell(done: int, total: int, unit: str, note: str) -> None:
        if unit == "batches":
            steps.append(done)

    class KilledError(Exception):
        pass

    def die(done: int, total: int, unit: str, note: str) -> None:
        tell(done, total, unit, note)
        if done == 4 and unit == "batches":
            raise KilledError

    with pytest.raises(KilledError):
        measured(what, bert, work, epochs=2, progress=die, clock=always)
    assert steps == [1, 2, 3, 4]
    steps.clear()
    found = measured(what, bert, work, epochs=2, progress=tell, clock=always)
    assert steps[0] in (3, 4)  # what was done since the last state is done again
    assert steps[-1] == 6
    assert all(torch.equal(found[n], whole[n]) for n in whole)


def test_a_loss_that_is_not_finite_is_named(bert: Path, tmp_path: Path) -> None:
    class Broken(InfoNCE):
        def __call__(self, *arguments: Any) -> Tensor:
            return super().__call__(*arguments) * float("nan")

    with pytest.raises(EmbergeError, match="the loss of batch 0 is not finite"):
        measured("fisher", bert, tmp_path, loss=Broken())


# ── recipes and files ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def place(berts: list[Path], tmp_path: Path) -> Path:
    """A folder with the models a, b and c, and data."""
    for name, folder in zip("abc", berts, strict=True):
        (tmp_path / name).symlink_to(folder)
    for name in ("first", "second"):
        rows = retrieval(8 if name == "first" else 12).rows
        lines = [json.dumps({"anchor": r.anchor, "positive": r.positives[0]}) for r in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


RECIPE = """
steps:
  stats:
    measure_statistics:
      models: [./a, ./b]
      measure: MEASURE
      data: [{path: ./first.jsonl, task: retrieval}]
  merged:
    merge:
      models: [./a, {model: ./b, weight: 2}]
      strategy: {STRATEGY: $stats}
"""


def run(
    place: Path, plugins: Plugins, text: str, out: str = "out", **changes: str
) -> dict[str, Path]:
    for word, value in changes.items():
        text = text.replace(word, value)
    return run_checked(place, text, plugins, out)


@pytest.mark.parametrize(("what", "strategy"), [("fisher", "fisher"), ("gram", "regmean")])
def test_a_recipe_measures_each_model_and_merges(
    what: str, strategy: str, place: Path, plugins: Plugins
) -> None:
    results = run(place, plugins, RECIPE, MEASURE=what, STRATEGY=strategy)
    assert {"stats.a", "stats.b"} <= set(results)
    files = [StatisticsFile.open(results[f"stats.{n}"]).read() for n in "ab"]
    for name, file in zip("ab", files, strict=True):
        assert file.measure == what
        assert file.models == {name: hash_model(place / name)}
        assert json.loads(file.facts["data"])[0]["rows"] == 8
        assert file.facts["seed"] == "0"
        assert '"torch"' in file.facts["made"]
    a, b, found = (
        load_file(f / "model.safetensors") for f in (place / "a", place / "b", results["merged"])
    )
    told = {
        name: {n: torch.as_tensor(f.values[name][n]) for n, f in zip("ab", files, strict=True)}
        for name in files[0].values
    }
    links = chain(strategy, statistics=())
    expected = merge_state_dicts([a, b], links, weights=(1, 2), names="ab", statistics=told)
    assert_near(found[LAYER], expected[LAYER], addends=8)
    assert float((found[LAYER] - (a[LAYER] + 2 * b[LAYER]) / 3).abs().max()) > 1e-3
    artifact = artifact_of(results["stats.a"])
    assert artifact.kind == "statistics"
    assert artifact.parents == ("./a",)
    assert artifact.details["measure"] == what
    content = (results["stats.a"] / "statistics.safetensors").read_bytes()
    for line in (place / "first.jsonl").read_text().splitlines():
        assert not any(text.encode() in content for text in json.loads(line).values())


OTHER = """
steps:
  merged:
    merge:
      models: [./a, ./MODEL]
      strategy: {fisher: [./out/stats.b, ./out/stats.a]}
"""


def test_a_file_of_one_run_serves_another_and_no_other_model(place: Path, plugins: Plugins) -> None:
    text = RECIPE.partition("  merged:")[0]
    run(place, plugins, text, MEASURE="fisher")
    results = run(place, plugins, OTHER, "other", MODEL="b")
    assert (results["merged"] / "model.safetensors").is_file()
    with pytest.raises(CheckpointError, match=r"nothing was measured of 'c' as it is now"):
        run(place, plugins, OTHER, "third", MODEL="c")


BAD = {
    "measure_statistics: {models: [./a], measure: fisher}": "fisher is measured on data; name them",
    "measure_statistics: {models: [./a]}": "delta_norms need a base",
    "measure_statistics: {models: [./a], base: ./b, measure: gram, data: D}": "gram has no base",
    "measure_statistics: {models: [./a], base: ./b, data: D}": "delta_norms come from weights alone",
    "measure_statistics: {models: {a/b: ./a}, base: ./b}": "'a/b' has a slash",
    "measure_statistics: {models: {}, base: ./b}": "there are no models to measure",
    "measure_statistics: {models: [./a], measure: fishr, data: D}": "did you mean 'fisher'?",
    "measure_statistics: {models: [./a], measure: fisher, data: D, loss: cosent}": "needs scores",
    "measure_statistics: {models: [./a], measure: gram, data: D, sampler: bagging}": "only selects",
    "measure_statistics: {models: [./a], measure: gram, data: D, epochs: 1, max_steps: 2}": "not both",
}


@pytest.mark.parametrize("step", BAD)
def test_a_wrong_step_is_found_before_work(step: str, place: Path, plugins: Plugins) -> None:
    data = "[{path: ./first.jsonl, task: retrieval}]"
    text = f"steps:\n  stats:\n    {step.replace('data: D', f'data: {data}')}\n"
    assert BAD[step] in find_faults(place, text, plugins)
