"""BidirLM (arXiv:2604.02045): its recipes have the settings that the paper prints, typed from the paper."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml
from emberge.recipes import list_shipped_recipes

from tests.support.printed import group, hub_model, sets_of, steps_of

GEMMA, GEMMA_LARGE = "google/gemma-3-270m", "google/gemma-3-1b-it"
QWEN, QWEN_LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"
# Table 2 (appendix B.2), shares of hidden tokens of appendix F.1: by model (learning rate, share).
MASKING = {GEMMA: (5e-4, 0.4), QWEN: (1e-4, 0.3), GEMMA_LARGE: (7e-5, 0.4), QWEN_LARGE: (5e-5, 0.3)}
# Table 3 (appendix B.2).
PAIR_RATES = {GEMMA: 6e-5, QWEN: 3e-5, GEMMA_LARGE: 1e-4, QWEN_LARGE: 1e-4}
# Sections 3 and 4.1: tokens of masking and of the long adaptation, and of a step.
SHORT_TOKENS, LONG_TOKENS, STEP_TOKENS = 10_000_000_000, 30_000_000_000, 2_359_296
# Table 4 (appendix C) and its footnotes: pairs by hub id.
PAIRS = {
    **{"kalm-embedding-finetuning-data": 3_655_225, "embed-nemotron-dataset-v1": 3_351_691},
    **{"opus-100": 946_599, "parallel-sentences-jw300": 701_201, "followir-train": 494},
    **{"parallel-sentences-talks": 733_318, "parallel-sentences-wikimatrix": 673_288},
    "inf-ir": 48_403,
}


def spread(lowest: float, highest: float) -> Any:
    ratio = (highest / lowest) ** (1 / 9)
    return pytest.approx([lowest * ratio**number for number in range(10)], rel=0.03)


def by_model(recipe: str, step: str, model: str) -> list[Any]:
    return [one for one in group(recipe, step) if hub_model(recipe, one.model) == model]


def assert_masking(one: Any, model: str, tokens: int, rate: float | None = None) -> None:
    """The training masks as table 2 has it; `rate` in a search for it."""
    (loss,) = one.loss.default
    assert (one.learning_rate, loss.share) == (rate or MASKING[model][0], MASKING[model][1])
    assert (loss.masked, one.max_length.default, one.packing) == (1, 8192, 8192)
    assert (one.sampler[-1].batch_tokens, one.max_steps) == (STEP_TOKENS, -(-tokens // STEP_TOKENS))
    assert (one.schedule, one.warmup_ratio) == ("warmup_stable_decay", 0.01)
    assert (one.max_grad_norm, one.adam_beta2) == (1, 0.95)


def assert_pairs(one: Any, model: str, pairs: int, rate: float | None = None) -> None:
    """The training is on pairs as table 3 has it; `rate` in a search for it."""
    assert one.learning_rate == (rate or PAIR_RATES[model])
    assert (one.max_grad_norm, one.warmup_steps, one.schedule) == (1, 500, "linear")
    assert (one.sampler[-1].batch_size.default, one.max_steps) == (512, -(-pairs // 512))
    numbers = one.loss.default[0].temperature, one.hard_negatives, one.max_length.default
    assert numbers == (0.05, 7, 512)


def assert_mixture(one: Any, english: float = 0.8) -> None:
    """English has its share, and three domains equal parts of the rest (section 4.1)."""
    others = dict.fromkeys(("mathematics_*", "code_*", "web_*"), (1 - english) / 3)
    assert one.sampler[-1].shares == pytest.approx({"english": english, **others}, abs=2e-6)


def test_pairs_are_of_the_papers_sources_in_its_numbers() -> None:
    path = list_shipped_recipes()["bidirlm/adapt"].path.parent / "corpora/pairs/datasets.yaml"
    (left,) = yaml.safe_load(path.read_text("utf-8"))["x-left-out"]
    counts = Counter({"followir-train": left["limit"]})
    for one in sets_of("bidirlm/adapt", "corpora/pairs").values():
        counts[str(one.hub).lower().rpartition("/")[2]] += one.limit or 0
    assert counts == PAIRS


def test_models_are_adapted_merged_and_trained_as_printed() -> None:
    recipe = "bidirlm/adapt"
    for size, model in zip(("270m", "600m", "1b", "1700m"), PAIR_RATES, strict=True):
        (adapted,), (trained,) = (
            by_model(recipe, "adapted", model),
            group(recipe, f"trained_{size}"),
        )
        assert_masking(adapted, model, LONG_TOKENS)
        assert_mixture(adapted)
        assert adapted.save_steps == SHORT_TOKENS // STEP_TOKENS
        assert hub_model(recipe, trained.model) == model
        assert_pairs(trained, model, sum(PAIRS.values()))
    # Section 5 and figure 6; appendix D: XTREME without question answering, and two tasks more.
    found = steps_of(recipe)
    (tuned,), (english,) = found["tuned"].evaluators, found["english"].evaluators
    tasks = {"xnli", "paws_x", "pan_x", "udpos", "math_shepherd", "code_complexity"}
    assert ({*tuned.tasks}, tuned.steps, english.benchmark) == (tasks, 10_000, "MTEB(eng, v2)")
    for step in ("english", "tuned", "scores"):
        assert {f"trained_{size}" for size in ("270m", "600m", "1b", "1700m")} <= {
            str(one.model.step).partition(".")[0] for one in found[step].models
        }
    for one in group(recipe, "merged"):
        assert [entry.weight.at("norm.weight", 0.0) for entry in one.models] == [0.5, 0.5]


@pytest.mark.parametrize("model", MASKING)
def test_rates_are_searched_as_printed(model: str) -> None:
    recipe, step = "bidirlm/rates", "gemma" if "gemma" in model else "qwen"
    masked, paired = (by_model(recipe, name, model) for name in (step, f"{step}_pairs"))
    for own in (masked, paired):
        assert sorted(one.learning_rate for one in own) == spread(1e-5, 1e-3)
    for masking, pairs in zip(masked, paired, strict=True):
        assert_masking(masking, model, 1_000_000_000, masking.learning_rate)
        assert_pairs(pairs, model, 1_000_000, pairs.learning_rate)


@pytest.mark.parametrize("model", [GEMMA, QWEN])
def test_variants_are_trained_and_fine_tuned_as_printed(model: str) -> None:
    """Section 3 and appendix D.4."""
    recipe = "bidirlm/variants"
    assert_masking(*by_model(recipe, "bi_mntp", model), model, SHORT_TOKENS)
    for step in ("bi_pairs", "bi_mntp_pairs"):
        assert_pairs(*by_model(recipe, step, model), model, 3_000_000)
    for scored in [one for one in group(recipe, "tuned") if hasattr(one, "evaluators")]:
        for e in scored.evaluators:
            assert e.steps == (5_000 if "seahorse" in e.tasks else 10_000)
            assert (e.batch_size, e.warmup, e.patience, e.seeds) == ((32,), 0.1, 1, (42,))
            assert list(e.learning_rate) == spread(5e-6, 5e-3)


def test_forgetting_is_measured_as_printed() -> None:
    recipe = "bidirlm/forgetting"
    for one, english in zip(group(recipe, "mixed"), (0.9, 0.8, 0.7), strict=True):
        assert_masking(one, QWEN, LONG_TOKENS)
        assert_mixture(one, english)
    for step in ("mntp", "mlm"):  # appendix F.1
        assert [one.loss.default[0].share for one in group(recipe, step)] == [0.1, 0.2, 0.3, 0.4]
        assert {one.max_steps for one in group(recipe, step)} == {-(-SHORT_TOKENS // STEP_TOKENS)}


def test_encoders_are_merged_with_specialists_and_fine_tuned_as_printed() -> None:
    """Sections 2 and 6.1 (footnote 8), appendix D.1."""
    recipe = "bidirlm/specialists"
    specialists = {
        "guarded": (QWEN, "Qwen/Qwen3Guard-Gen-0.6B"),
        "seen": (QWEN_LARGE, "Qwen/Qwen3-VL-2B-Instruct"),
        "heard": (QWEN, "Qwen/Qwen3-ASR-0.6B-hf"),  # in transformers' own format
    }
    for step, models in specialists.items():
        for one, share in zip(group(recipe, step), (0, 0.25, 0.5, 0.75, 1), strict=True):
            trunk, specialist = one.models
            assert specialist.weight.at("norm.weight", 0.0) == share
            assert (hub_model(recipe, trunk.model), specialist.model.text) == models
    for step, batch in (("safety", 4), ("sight", 32), ("hearing", 14)):
        (evaluator,) = steps_of(recipe)[step].evaluators
        assert (evaluator.steps, evaluator.batch_size) == (500, (batch,))
        assert list(evaluator.learning_rate) == spread(5e-6, 5e-3)


def test_the_omnimodal_model_is_composed_and_trained_as_printed() -> None:
    recipe = "bidirlm/omni"
    (merged,) = group(recipe, "merged")
    weights = [entry.weight.at("norm.weight", 0.0) for entry in merged.models]
    assert weights == pytest.approx([1 / 3] * 3, abs=1e-5)  # appendix E, figure 10
    for one in (*group(recipe, "trained"), *group(recipe, "trained_unmerged")):
        assert one.backbone.freeze == ("visual", "audio_tower")
        assert_pairs(one, QWEN_LARGE, 1_800_000)
        rows = [sets_of(recipe, f"corpora/{name}").values() for name in ("pairs", "media")]
        texts, media = (sum(one.limit or 0 for one in some) for some in rows)
        assert media == 600_000  # section 2, where 65 % are texts
        texts, media = texts * one.data[0].weight, media * one.data[1].weight
        assert texts / (texts + media) == pytest.approx(0.65, abs=1e-4)
