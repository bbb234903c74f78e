"""What models cost to run is measured once, beside scores that stay the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from emberge import Artifact, DataError, DataRef, Evaluator, Model, ModelRef, RecipeError
from emberge.contracts import ParameterCount
from emberge.evaluating import read_costs, read_scores
from emberge_evaluate import Evaluate, EvaluatedModel, encoding_costs
from emberge_evaluate.encoding_costs import CostOptions
from emberge_evaluate.requirements import Requirement, SizeLimits
from emberge_mteb import EvalEntry, Mteb

from tests.support import tiny
from tests.support.bench import BACKBONE, Bench, model_at, write_catalogue
from tests.support.given_scores import Given
from tests.support.glance import Glance

FEW = CostOptions(queries=3, texts=5, rounds=2)


class Elapsed(NamedTuple):
    """Seconds of a given clock."""

    wall: float
    cpu: float


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), ("retrieval", "reranking"))


@pytest.fixture
def bench(bert: Path, tmp_path: Path) -> Bench:
    """A bench with a model and one of another size that ends in a Dense."""
    made = Bench(tmp_path)
    small = tiny.projected(tmp_path / "small", dimension=8)
    made.many = {"$large": [model_at(bert, "large")], "$small": [model_at(small, "small")]}
    return made


def _evaluate(
    catalogue: Path, bench: Bench, *, cost: CostOptions | None = FEW, **options: Any
) -> Evaluate:
    scored = Mteb(data=(EvalEntry(path=DataRef(str(catalogue))),), backbone=BACKBONE)
    models = tuple(EvaluatedModel(model=ModelRef(text)) for text in bench.many)
    given = {"evaluators": (scored,), "resamples": 100, "cost": cost, **options}
    return Evaluate(models=models, **given)


@pytest.mark.slow
def test_a_cost_is_positive_and_finite_and_names_machine_and_threads(
    catalogue: Path, bench: Bench
) -> None:
    _evaluate(catalogue, bench).run(bench)
    costs = read_costs(bench.folder)
    models = [model for (model,) in bench.many.values()]
    assert list(costs) == [model.fingerprint for model in models]
    assert [cost.dimension for cost in costs.values()] == [32, 8]
    for cost in costs.values():
        assert (cost.queries, cost.texts, cost.rounds) == (3, 5, 2)
        assert cost.threads == torch.get_num_threads()
        assert cost.machine.strip()
        times = (cost.milliseconds, cost.cpu_milliseconds)
        for number in (*times, cost.texts_per_second, cost.texts_per_cpu_second):
            assert 0 < number < math.inf
    scores = read_scores(bench.folder)
    assert scores.encoding_costs == dict(zip(("large", "small"), costs.values(), strict=True))


def test_parameters_and_bytes_of_weights_are_exact(catalogue: Path, bench: Bench) -> None:
    from safetensors.numpy import load_file

    _evaluate(catalogue, bench).run(bench)
    scores = read_scores(bench.folder)
    for name, (model,) in zip(("large", "small"), bench.many.values(), strict=True):
        files = list(model.folder.rglob("*.safetensors"))
        assert len(files) == {"large": 1, "small": 4}[name]  # of two Dense and a norm too
        assert scores.weight_bytes[name] == sum(file.stat().st_size for file in files)
        tensors = [(key, value.size) for file in files for key, value in load_file(file).items()]
        total = sum(size for _, size in tensors)
        (words,) = (size for key, size in tensors if key.endswith("word_embeddings.weight"))
        assert scores.parameters[name] == ParameterCount(total, total, total - words)


def test_scores_are_the_same_bytes_with_and_without_costs(
    catalogue: Path, bench: Bench, tmp_path: Path
) -> None:
    other = Bench(tmp_path / "other", many=bench.many)
    _evaluate(catalogue, bench).run(bench)
    _evaluate(catalogue, other, cost=None).run(other)
    assert not (other.folder / "costs.json").exists()
    for name in ("scores.json", "scores.md"):
        assert (bench.folder / name).read_bytes() == (other.folder / name).read_bytes()


@pytest.mark.slow
def test_costs_are_measured_once_for_models_texts_and_machine(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []
    load = Mteb.load_embedder

    def note(self: Mteb, model: Model, workspace: Any) -> Any:
        timed.append(model.name)
        return load(self, model, workspace)

    monkeypatch.setattr(Mteb, "load_embedder", note)
    _evaluate(catalogue, bench).run(bench)
    assert timed == ["large", "small", "large", "small"]  # rounds are over all models
    first = read_costs(bench.folder)
    _evaluate(catalogue, bench, resamples=200).run(bench)
    assert len(timed) == 4
    assert read_costs(bench.folder) == first
    (kept,) = bench.store.glob("costs/*/costs.json")
    kept.write_text("damaged")
    _evaluate(catalogue, bench).run(bench)
    assert len(timed) == 8
    _evaluate(catalogue, bench, cost=replace(FEW, queries=2)).run(bench)
    assert len(timed) == 12
    monkeypatch.setattr(encoding_costs, "name_device", lambda _: "another machine")
    _evaluate(catalogue, bench).run(bench)
    assert len(timed) == 16
    assert {cost.machine for cost in read_costs(bench.folder).values()} == {"another machine"}


def test_the_texts_are_those_of_the_data_and_the_same_each_time(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, tuple[str, ...]]] = []

    def load(self: Mteb, model: Model, workspace: Any) -> Any:
        import numpy as np

        def embed(texts: Sequence[str], side: str) -> Any:
            calls.append((side, tuple(texts)))
            return np.ones((len(texts), 4), np.float32)

        return embed

    monkeypatch.setattr(Mteb, "load_embedder", load)
    _evaluate(catalogue, bench).run(bench)
    (scored,) = _evaluate(catalogue, bench).evaluators
    of_data: dict[str, set[str]] = {"query": set(), "document": set()}
    for task in scored.plan(bench):
        for side, text in scored.texts(task, bench) or ():
            of_data[side].add(text)
    one_round = calls[: len(calls) // 4]
    assert calls == 4 * one_round  # two models, two rounds
    singles, documents = one_round[2:-1], one_round[-1]
    assert [(side, len(texts)) for side, texts in singles] == 3 * [("query", 1)]
    assert len({text for _, texts in singles for text in texts} & of_data["query"]) == 3
    assert documents[0] == "document"
    assert len({*documents[1]} & of_data["document"]) == 5


def test_the_order_of_the_data_does_not_choose_the_texts(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are thirty documents, of which five are timed."""
    timed: list[set[str]] = []
    texts, load = Mteb.texts, Mteb.load_embedder

    def note(self: Mteb, model: Model, workspace: Any) -> Any:
        embed = load(self, model, workspace)
        assert embed is not None

        def noted(some: Sequence[str], side: Any) -> Any:
            timed[-1].update(some)
            return embed(some, side)

        return noted

    monkeypatch.setattr(Mteb, "load_embedder", note)
    for step, rounds in ((1, 1), (-1, 2)):  # other rounds, as equal ones are not measured again
        monkeypatch.setattr(Mteb, "texts", lambda *given, step=step: [*texts(*given)][::step])
        timed.append(set())
        _evaluate(catalogue, bench, cost=replace(FEW, rounds=rounds)).run(bench)
    assert timed[0] == timed[1]


def test_times_are_medians_in_milliseconds_and_texts_in_a_second(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of three queries and a batch of five texts, by a clock of given times."""
    del bench.many["$small"]
    rounds = [
        [Elapsed(0.010, 0.03), Elapsed(0.020, 0.05), Elapsed(0.9, 0.9), Elapsed(0.5, 1.0)],
        [Elapsed(0.040, 0.01), Elapsed(0.050, 0.02), Elapsed(0.1, 0.4), Elapsed(1.0, 2.5)],
        [Elapsed(0.001, 0.09), Elapsed(0.030, 0.08), Elapsed(0.2, 0.7), Elapsed(2.5, 5.0)],
    ]
    times = iter([elapsed for one in rounds for elapsed in one])

    def time_call(run: Any) -> Elapsed:
        run()
        return next(times)

    monkeypatch.setattr(encoding_costs, "time_call", time_call)
    _evaluate(catalogue, bench, cost=replace(FEW, rounds=3)).run(bench)
    (cost,) = read_costs(bench.folder).values()
    # Medians of the rounds are 20, 50 and 30 ms, and 50, 20 and 80 ms of CPU time.
    assert (cost.milliseconds, cost.cpu_milliseconds) == (30, 50)
    assert (cost.texts_per_second, cost.texts_per_cpu_second) == (5 / 1.0, 5 / 2.5)


def test_another_number_of_threads_or_backbone_is_measured_again(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = Mteb.load_embedder

    def note(self: Mteb, model: Model, workspace: Any) -> Any:
        loaded.append(model.name)
        return load(self, model, workspace)

    monkeypatch.setattr(Mteb, "load_embedder", note)
    del bench.many["$small"]
    once = replace(FEW, rounds=1)
    reference = ModelRef("$large")
    for limit in (None, 8, None):
        backbone = None if limit is None else replace(BACKBONE, max_length=limit)
        model = EvaluatedModel(model=reference, backbone=backbone)
        replace(_evaluate(catalogue, bench, cost=once), models=(model,)).run(bench)
    assert len(loaded) == 2
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    _evaluate(catalogue, bench, cost=once).run(bench)
    assert len(loaded) == 3
    (cost,) = read_costs(bench.folder).values()
    assert cost.threads == threads + 1


def test_check_says_that_no_evaluator_embeds_texts(bench: Bench) -> None:
    step = Evaluate(
        models=(EvaluatedModel(model=ModelRef("$large")),), evaluators=(Given(),), cost=FEW
    )
    assert any("such as mteb" in str(one) for one in step.check(Glance()))
    assert not any("such as mteb" in str(one) for one in replace(step, cost=None).check(Glance()))


# ── limits on sizes ─────────────────────────────────────────────────────────────────────────────────


def test_a_gate_limits_parameters_and_megabytes(catalogue: Path, bench: Bench) -> None:
    limits = SizeLimits(parameters=25e6, megabytes=0.001)
    require = Requirement(model=ModelRef("$small"), at_most=limits)
    artifact: Artifact = _evaluate(catalogue, bench, cost=None, require=(require,)).run(bench)
    scores = read_scores(bench.folder)
    small, heavy = scores.requirements
    assert (small.met, small.model, small.demand) == (True, "small", "at_most_parameters")
    assert small.difference == scores.parameters["small"].total
    assert (heavy.met, heavy.difference) == (False, scores.weight_bytes["small"] / 1e6)
    assert heavy.text.startswith("small is to have at most 0.001 megabytes: it has 0.")
    assert artifact.details["unmet"] == [heavy.text]
    exact = SizeLimits(parameters=float(scores.parameters["small"].total))
    require = Requirement(model=ModelRef("$small"), at_most=exact)
    _evaluate(catalogue, bench, cost=None, require=(require,)).run(bench)
    assert read_scores(bench.folder).requirements[0].met


def test_a_limit_needs_a_number_and_a_model() -> None:
    (empty,) = Requirement(model=ModelRef("$small"), at_most=SizeLimits()).problems()
    assert "give parameters or megabytes" in empty
    (nameless,) = Requirement(at_most=SizeLimits(parameters=1.0)).problems()
    assert "'model'" in nameless


def test_without_texts_nothing_can_be_timed(
    catalogue: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mteb, "texts", Evaluator.texts)
    with pytest.raises(DataError, match="no texts to time"):
        _evaluate(catalogue, bench).run(bench)


def test_a_model_that_is_required_must_be_scored(catalogue: Path, bench: Bench) -> None:
    require = Requirement(model=ModelRef("$stray"), at_most=SizeLimits(parameters=1.0))
    with pytest.raises(RecipeError, match="not among the models"):
        _evaluate(catalogue, bench, require=(require,)).run(bench)
