"""Nomic Embed v2 (arXiv:2502.07972): its recipes have what the paper prints, typed here from the paper."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.printed import group, hub_model, printed_rows, sets_of, steps_of

# Section 4.1: the adaptation, its rotary base, tokens of a text, steps and the power of a language's size.
ROPE_BASE, SEGMENT, MLM_STEPS, LANGUAGE_POWER = 10_000, 2048, 10_000, 0.3
# Section 4.2: pairs of a shard, and the rank that a document must reach.
SHARD, NEAREST, FILTER = 1_000_000, 2, "intfloat/multilingual-e5-small"
# Sections 4.3 and 7.1: experts, experts a token (of the model, in English), and equation 1's α.
EXPERTS, TOP_K, ENGLISH_TOP_K, ALPHA = 8, 2, 1, 1.0
# Section 4.3: pretraining.
PRETRAINING = {"batch": 16_384, "rate": 8e-5, "warmup": 1000, "schedule": "cosine", "epochs": 1}
TEMPERATURE, QUERY_TOKENS, DOCUMENT_TOKENS = 0.02, 32, 256
# Sections 3.3.3 (equation 5), 4.4 and 4.5: fine-tuning.
TUNING = {"batch": 256, "rate": 2e-5, "warmup": 400, "schedule": "linear", "epochs": 1}
MARGIN, NEGATIVES, TOKENS, SIZES = 0.95, 10, 512, (768, 256)
# Sections 5.1 and 6.1 (tables 3 and 6), GLUE.
GLUE = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"}
GLUE_EPOCHS, GLUE_SEEDS, GLUE_BATCHES, GLUE_RATES = 3, 5, (16, 32), (1e-5, 2e-5, 3e-5)
FROM_MNLI = {"rte", "stsb", "mrpc"}
# Section 6.2 (table 4): means of XTREME-R, all that our text of the paper has of the table.
XTREME_R = {"XLM-R-Base": 62.31, "mNomic-BERT": 62.70, "mGTE-Base": 64.63}
# Table 1 (section 1): BEIR, MIRACL, by model with millions of parameters and size of embeddings.
TABLE_1 = {
    "mE5 Base (278, 768)": (48.88, 62.30),
    "mGTE Base (305, 768)": (51.10, 63.40),
    "Arctic Embed v2 Base (305, 768)": (55.40, 59.90),
    "Nomic Embed v2 (305, 768)": (52.86, 65.80),
    "BGE M3 (568, 1024)": (48.80, 69.20),
    "Arctic Embed v2 Large (568, 1024)": (55.65, 66.00),
    "mE5 Large (560, 1024)": (51.40, 66.50),
    "mE5 Large Instruct (560, 1024)": (52.64, 65.70),
    "Jina Embed v3 (572, 1024)": (53.88, 61.20),
}
# Section 7.1: the longest text of the English comparison.
ENGLISH_TOKENS = 128
# Section 7.2: languages of table 9.
LANGUAGES = {"en", "zh", "ar", "hi", "es", "sw"}
# Section 7.3, table 8: model, sources, rows in all, tests, margins, and the best mean.
TUNED = "intfloat/e5-large-unsupervised"
SOURCES, ROWS = {"stackexchange", "squad", "nq"}, 500_000
SQUAD_ROWS, NQ_ROWS = (
    87_599,
    100_231,
)  # of the two sets; the paper prints the sum of all three alone
TESTS, MARGINS, FEWEST, MOST, BEST = (
    ("NQ", "FiQA2018", "HotpotQA"),
    {None, 0.95, 0.98},
    4,
    10,
    57.45,
)


def settings(train: object) -> dict[str, object]:
    return {
        "batch": train.sampler[-1].batch_size.default,  # type: ignore[attr-defined]
        "rate": train.learning_rate,  # type: ignore[attr-defined]
        "warmup": train.warmup_steps,  # type: ignore[attr-defined]
        "schedule": train.schedule,  # type: ignore[attr-defined]
        "epochs": train.epochs,  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("recipe", ["moe/rope_xlmr", "moe/nomic_v2"])
def test_xlmr_is_adapted_as_section_4_1_prints(recipe: str) -> None:
    found = steps_of(recipe)
    rotary, adapted = found["rotary"], found["adapted"]
    assert hub_model(recipe, adapted.model) == "FacebookAI/xlm-roberta-base"
    assert (rotary.rope_theta, rotary.max_length, adapted.max_length.default) == (
        ROPE_BASE,
        SEGMENT,
        SEGMENT,
    )
    assert adapted.max_steps == MLM_STEPS
    assert 1 / adapted.sampler[-1].temperature == pytest.approx(LANGUAGE_POWER)
    # Of the authors' config, as table 2's body is not in our text of the paper.
    (mlm,) = adapted.loss.default
    assert (mlm.share, mlm.masked, mlm.random) == (0.3, 0.8, 0.1)
    assert adapted.sampler[-1].batch_tokens.default == 4096 * SEGMENT
    assert (adapted.learning_rate, adapted.schedule, adapted.warmup_steps) == (4e-4, "linear", 1000)
    assert (adapted.adam_beta2, adapted.adam_epsilon) == (0.98, 1e-6)
    assert (adapted.weight_decay, adapted.max_grad_norm) == (0, None)


def test_nomic_v2_is_pretrained_and_tuned_as_sections_4_2_to_4_5_print() -> None:
    found = steps_of("moe/nomic_v2")
    pairs, upcycled = found["pairs"], found["upcycled"]
    assert (pairs.shard_size, pairs.top_k) == (SHARD, NEAREST)
    assert [str(one.model) for one in pairs.teachers] == [FILTER]
    assert (upcycled.layers, upcycled.experts, upcycled.top_k) == ("alternate", EXPERTS, TOP_K)
    first, last = found["pretrained"], found["tuned"]
    assert settings(first) == PRETRAINING
    assert first.loss.default[0].temperature == TEMPERATURE
    assert (first.query_length.default, first.document_length.default) == (
        QUERY_TOKENS,
        DOCUMENT_TOKENS,
    )
    assert (first.backbone.balance, first.backbone.form) == (ALPHA, "switch")
    assert settings(last) == TUNING
    assert (last.hard_negatives, last.max_length.default) == (NEGATIVES, TOKENS)
    (matryoshka,) = last.loss.default
    assert matryoshka.dims == SIZES
    assert matryoshka.loss[0].temperature == TEMPERATURE
    assert (found["mined"].count, found["mined"].margin) == (NEGATIVES, MARGIN)
    assert found["filtered"].margin == MARGIN
    for step in ("filtered", "mined"):
        assert [str(one.model) for one in found[step].teachers] == ["BAAI/bge-m3"]
    # Of the authors' configs.
    assert (last.backbone.balance, last.weight_decay, upcycled.normalize_gates) == (0, 0.01, False)
    for train in (first, last):
        assert train.backbone.inner.prompts == {
            "query": "search_query: ",
            "document": "search_document: ",
        }


def test_nomic_v2_is_tuned_on_the_sets_of_appendix_b() -> None:
    sets = set(sets_of("moe/nomic_v2", "corpora/labelled"))
    languages = {name for name in sets if name.startswith("miracl_")}
    assert len(languages) == 16
    assert {"squad", "stackexchange"} < sets
    # BEIR's training sets, by the authors' data config.
    assert sets - languages == {
        *("fever", "hotpotqa", "msmarco_passage", "nq", "squad", "stackexchange")
    }


def test_english_pairs_are_the_published_ones() -> None:
    sets = sets_of("moe/nomic_v2", "corpora/english")
    assert {one.hub for one in sets.values()} == {"nomic-ai/nomic-embed-unsupervised-data"}
    assert len(sets) == 29
    assert {(one.columns.anchor, one.columns.positive) for one in sets.values()} == {
        ("query", "document")
    }
    assert all(one.split == name for name, one in sets.items())


def test_table_1_has_the_printed_scores() -> None:
    table = steps_of("moe/nomic_v2")["table_1"]
    assert tuple(table.columns) == ("BEIR", "MIRACL")
    assert printed_rows(table) == TABLE_1
    (beir,), (miracl,) = (steps_of("moe/nomic_v2")[one].evaluators for one in ("beir", "miracl"))
    assert (beir.benchmark, miracl.tasks) == ("BEIR", ("MIRACLRetrieval",))
    assert (beir.max_length, miracl.max_length) == (TOKENS, TOKENS)


def test_glue_is_tuned_as_section_5_1_prints() -> None:
    found = steps_of("moe/rope_xlmr")
    (tuned,) = found["glue"].evaluators
    entries = {one.name: one for one in tuned.entries()}
    assert set(entries) == GLUE
    assert {name for name, one in entries.items() if one.start == "mnli"} == FROM_MNLI
    assert (tuned.epochs, tuned.steps, tuned.patience) == (GLUE_EPOCHS, None, None)
    assert (tuned.batch_size, tuned.learning_rate) == (GLUE_BATCHES, GLUE_RATES)
    assert len(tuned.seeds) == GLUE_SEEDS
    assert set(found["table_3"].columns.values()) == {*GLUE, "all"}


def test_xtreme_r_is_trained_in_english_and_table_4_has_the_printed_means() -> None:
    found = steps_of("moe/rope_xlmr")
    (tuned,) = found["xtreme_r"].evaluators
    entries = {one.name: one for one in tuned.entries()}
    table = found["table_4"]
    assert {*entries, "all"} == set(table.columns.values())
    means = {heading.partition(",")[0]: row[-1] for heading, row in printed_rows(table).items()}
    assert means == XTREME_R
    assert all(set(row[:-1]) == {None} for row in printed_rows(table).values())


def test_the_english_comparison_is_that_of_section_7_1() -> None:
    found = steps_of("moe/ablations")
    for step, layers in (("upcycled_6", "alternate"), ("upcycled_12", "all")):
        one = found[step]
        assert (one.layers, one.experts, one.top_k) == (layers, EXPERTS, ENGLISH_TOP_K)
        assert one.model.text == "google-bert/bert-base-uncased"  # the header says why
    trained = [
        one
        for name in ("dense", "routed_6", "routed_12", "large")
        for one in group("moe/ablations", name)
    ]
    for one in trained:
        assert one.max_length.default == ENGLISH_TOKENS
        assert [entry.path.text for entry in one.data] == ["corpora/english"]
        assert settings(one) | {"batch": 0, "warmup": 0} == PRETRAINING | {"batch": 0, "warmup": 0}
    assert {one.model.text for one in group("moe/ablations", "large")} == {
        "google-bert/bert-large-uncased"
    }


def test_table_9_has_three_sizes_of_xlmr_and_six_languages() -> None:
    found = steps_of("moe/multilingual")
    assert {(found[f"upcycled_{k}"].top_k, found[f"upcycled_{k}"].experts) for k in (1, 2)} == {
        (1, EXPERTS),
        (2, EXPERTS),
    }
    models = {
        name: {hub_model("moe/multilingual", one.model) for one in group("moe/multilingual", name)}
        for name in ("dense", "routed_1", "routed_2", "large")
    }
    base, large = "FacebookAI/xlm-roberta-base", "FacebookAI/xlm-roberta-large"
    assert models == {"dense": {base}, "routed_1": {base}, "routed_2": {base}, "large": {large}}
    known = {
        name: one.language or name
        for corpus in ("english", "multilingual", "wikipedia")
        for name, one in sets_of("moe/multilingual", f"corpora/{corpus}").items()
    }
    for one in group("moe/multilingual", "dense"):
        languages = {known[name] for entry in one.data[1:] for name in entry.only}
        assert languages | {"en"} == LANGUAGES
        assert one.data[0].path.text == "corpora/english"
    for one in (found["beir"], found["miracl"]):
        assert len(one.models) == 4 * len(group("moe/multilingual", "dense"))
    assert found["beir"].evaluators[0].benchmark == "BEIR"
    assert found["miracl"].evaluators[0].tasks == ("MIRACLRetrieval",)
    tables = group("moe/multilingual", "table_9")
    assert all(tuple(one.columns) == ("BEIR", "MIRACL") for one in tables)


def test_table_8_has_the_printed_model_sources_tests_and_options() -> None:
    recipe = "moe/mining_ablations"
    found = steps_of(recipe)
    arms = ("none", "mistral", "arctic", "stella")
    trained = [one for name in arms for one in group(recipe, name)]
    assert {hub_model(recipe, one.model) for one in trained} == {TUNED}
    for one in trained:
        assert settings(one) == TUNING  # of section 4.5, as section 7.3 prints none
    mined = [one for name in arms[1:] for one in group(recipe, f"by_{name}")]
    counts = {one.count for one in mined}
    assert {one.margin for one in mined} == MARGINS
    assert (min(counts), max(counts)) == (FEWEST, MOST)
    assert {(one.margin, one.count) for one in mined} == {*product(MARGINS, counts)}
    for data in [one.data for one in mined] + [found["none"].data]:
        assert {entry.name for entry in data} == SOURCES
        (limit,) = [entry.limit for entry in data if entry.limit]
        assert limit + SQUAD_ROWS + NQ_ROWS == pytest.approx(ROWS, rel=0.01)
    (scored,) = found["scores"].evaluators
    assert scored.only == TESTS
    for table in group(recipe, "table_8"):
        assert [row[-1] for row in printed_rows(table).values()] == [BEST]
