"""Nomic Embed v2 (arXiv:2502.07972): its recipes have the settings that the paper prints, typed from it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.support.printed import group, hub_model, sets_of, steps_of

V2, ROPE, MINING = "moe/nomic_v2", "moe/rope_xlmr", "moe/mining_ablations"
SEGMENT, EXPERTS = 2048, 8  # sections 4.1 and 4.3: tokens of a text
# Section 4.3, and sections 4.4 and 4.5: see `settings`.
PRETRAINING, TUNING = (8e-5, "cosine", 1, 1000, 16_384), (2e-5, "linear", 1, 400, 256)
TEMPERATURE, MARGIN, NEGATIVES, TOKENS, SIZES = 0.02, 0.95, 10, 512, (768, 256)
# Section 7.3, table 8: margins, and rows in all; of SQuAD and NQ, of which the paper prints no number each.
MARGINS, ROWS, SQUAD_AND_NQ = {None, 0.95, 0.98}, 500_000, 87_599 + 100_231


def settings(train: Any) -> tuple[object, ...]:
    """Return the rate, schedule, epochs, warm-up and batch of a training."""
    batch = train.sampler[-1].batch_size.default
    return train.learning_rate, train.schedule, train.epochs, train.warmup_steps, batch


@pytest.mark.parametrize("recipe", [ROPE, V2])
def test_xlmr_is_adapted_as_section_4_1_prints(recipe: str) -> None:
    rotary, adapted = (steps_of(recipe)[name] for name in ("rotary", "adapted"))
    assert hub_model(recipe, adapted.model) == "FacebookAI/xlm-roberta-base"
    assert (rotary.rope_theta, rotary.max_length) == (10_000, SEGMENT)
    assert (adapted.max_length.default, adapted.max_steps) == (SEGMENT, 10_000)
    assert 1 / adapted.sampler[-1].temperature == pytest.approx(0.3)


def test_nomic_v2_is_pretrained_and_tuned_as_sections_4_2_to_4_5_print() -> None:
    found = steps_of(V2)
    pairs, upcycled = found["pairs"], found["upcycled"]
    assert (pairs.shard_size, pairs.top_k) == (1_000_000, 2)
    assert str(pairs.teacher.model) == "intfloat/multilingual-e5-small"
    assert (upcycled.layers, upcycled.experts, upcycled.top_k) == ("alternate", EXPERTS, 2)
    first, last = found["pretrained"], found["tuned"]
    assert (settings(first), settings(last)) == (PRETRAINING, TUNING)
    assert first.loss.default[0].temperature == TEMPERATURE
    assert (first.query_length.default, first.document_length.default) == (32, 256)
    assert first.backbone.balance == 1
    assert (last.hard_negatives, last.max_length.default) == (NEGATIVES, TOKENS)
    (matryoshka,) = last.loss.default
    assert (matryoshka.dims, matryoshka.loss[0].temperature) == (SIZES, TEMPERATURE)
    assert found["mined"].count == NEGATIVES
    for step in ("filtered", "mined"):
        assert found[step].margin == MARGIN
        assert str(found[step].teacher.model) == "BAAI/bge-m3"


def test_nomic_v2_is_tuned_on_the_sets_of_appendix_b() -> None:
    sets = set(sets_of(V2, "corpora/labelled"))
    languages = {name for name in sets if name.startswith("miracl_")}
    assert len(languages) == 16
    assert sets - languages > {"squad", "stackexchange"}


def test_glue_is_tuned_as_section_5_1_prints() -> None:
    (tuned,) = steps_of(ROPE)["glue"].evaluators
    starts = {one.name: one.start for one in tuned.list_entries()}
    assert starts.keys() == {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"}
    assert {name for name, start in starts.items() if start == "mnli"} == {"rte", "stsb", "mrpc"}
    assert (tuned.epochs, tuned.patience, len(tuned.seeds)) == (3, None, 5)
    assert (tuned.batch_size, tuned.learning_rate) == ((16, 32), (1e-5, 2e-5, 3e-5))


def test_the_english_comparison_is_that_of_section_7_1() -> None:
    found = steps_of("moe/ablations")
    for step, layers in (("upcycled_6", "alternate"), ("upcycled_12", "all")):
        one = found[step]
        assert (one.layers, one.experts, one.top_k) == (layers, EXPERTS, 1)
    for name in ("dense", "routed_6", "routed_12", "large"):
        for one in group("moe/ablations", name):
            assert one.max_length.default == 128
            assert [entry.path.text for entry in one.data] == ["corpora/english"]
            assert settings(one)[:3] == PRETRAINING[:3]


def test_table_9_is_of_three_sizes_of_xlmr_and_six_languages() -> None:
    recipe = "moe/multilingual"
    found = steps_of(recipe)
    for k in (1, 2):
        assert (found[f"upcycled_{k}"].top_k, found[f"upcycled_{k}"].experts) == (k, EXPERTS)
    base, large = "FacebookAI/xlm-roberta-base", "FacebookAI/xlm-roberta-large"
    for name, start in (("dense", base), ("routed_1", base), ("routed_2", base), ("large", large)):
        assert {hub_model(recipe, one.model) for one in group(recipe, name)} == {start}
    for one in group(recipe, "dense"):
        assert {*one.data[-1].only} == {"zh", "ar", "hi", "es", "sw"}
    assert found["beir"].evaluators[0].benchmark == "BEIR"
    assert found["miracl"].evaluators[0].tasks == ("MIRACLRetrieval",)


def test_table_8_has_the_printed_model_sources_tests_and_options() -> None:
    found, arms = steps_of(MINING), ("mistral", "arctic", "stella")
    for one in [one for name in ("none", *arms) for one in group(MINING, name)]:
        assert hub_model(MINING, one.model) == "intfloat/e5-large-unsupervised"
        assert settings(one) == TUNING  # of section 4.5, as section 7.3 prints none
    mined = [one for name in arms for one in group(MINING, f"by_{name}")]
    counts = {one.count for one in mined}
    assert (min(counts), max(counts)) == (4, 10)
    assert {(one.margin, one.count) for one in mined} == {*product(MARGINS, counts)}
    for data in [one.data for one in mined] + [found["none"].data]:
        assert {entry.name for entry in data} == {"stackexchange", "squad", "nq"}
        (limit,) = [entry.limit for entry in data if entry.limit]
        assert limit + SQUAD_AND_NQ == pytest.approx(ROWS, rel=0.01)
    assert found["scores"].evaluators[0].only == ("NQ", "FiQA2018", "HotpotQA")
