"""BidirLM (arXiv:2604.02045): its recipes have what the paper prints, typed here from the paper."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from emberge.recipes import shipped_recipes

from tests.support.model_headers import MODELS
from tests.support.printed import group, hub_model, printed_rows, sets_of, steps_of

GEMMA, GEMMA_LARGE = "google/gemma-3-270m", "google/gemma-3-1b-it"
QWEN, QWEN_LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"

# Table 2 (appendix B.2), shares of hidden tokens of appendix F.1: by model (learning rate, share).
MASKING = {GEMMA: (5e-4, 0.4), QWEN: (1e-4, 0.3), GEMMA_LARGE: (7e-5, 0.4), QWEN_LARGE: (5e-5, 0.3)}
WARMUP_EPOCHS, SEQUENCE, STEP_TOKENS, SEED = 0.01, 8192, 2_359_296, 42
# Table 3 (appendix B.2): learning rates; the rest is the same for all.
PAIR_RATES = {GEMMA: 6e-5, QWEN: 3e-5, GEMMA_LARGE: 1e-4, QWEN_LARGE: 1e-4}
PAIR_WARMUP, BATCH, TEMPERATURE, NEGATIVES, PAIR_LENGTH = 500, 512, 0.05, 7, 512
# Section 4.1: the share of English, and the base's weight in a merge.
ENGLISH, BASE = 0.8, 0.5
# Section 3, and 4.1: tokens of masking, pairs, tokens of the long adaptation.
SHORT_TOKENS, SHORT_PAIRS, LONG_TOKENS = 10_000_000_000, 3_000_000, 30_000_000_000
# Appendix B.2: the search for a rate.
RATES, LOWEST, HIGHEST, SEARCH_TOKENS, SEARCH_PAIRS = 10, 1e-5, 1e-3, 1_000_000_000, 1_000_000

# Table 4 (appendix C): by the paper's name, the name in our catalogue and the pairs.
KALM = {
    "mMARCO (zh)": ("mmarco_zh", 379_870),
    "SimCLUE": ("simclue", 290_699),
    "Multi-CPR": ("multi_cpr", 234_587),
    "SimCSE NLI": ("simcse_nli", 217_099),
    "T2Ranking": ("t2ranking", 188_606),
    "nli zh": ("nli_zh", 185_787),
    "llm retr. short long": ("llm_retrieval_short_long", 149_511),
    "llm sts monolingual": ("llm_sts_monolingual", 132_561),
    "CMNLI": ("cmnli", 119_029),
    "llm retr. long long": ("llm_retrieval_long_long", 114_979),
    "llm retr. long short": ("llm_retrieval_long_short", 114_584),
    "DuReader checklist": ("dureader_checklist", 97_764),
    "cMedQA-V2.0": ("cmedqa", 88_109),
    "PubMedQA": ("pubmedqa", 79_954),
    "DuReader": ("dureader", 79_229),
    "ELI5": ("eli5", 76_408),
    "llm retr. short short": ("llm_retrieval_short_short", 76_315),
    "llm sts bitext retr.": ("llm_sts_bitext", 75_271),
    "XNLI (zh)": ("xnli_zh", 74_252),
    "MEDI2BGE": ("medi2bge", 71_790),
    "MultiNLI": ("mnli", 63_701),
    "Natural Questions": ("nq_kalm", 56_377),
    "RefGPT": ("refgpt", 49_896),
    "CodeFeedback": ("codefeedback", 49_090),
    "WikiAnswers": ("wikianswers", 47_686),
    "QBQTC": ("qbqtc", 47_223),
    "Mr. TyDi": ("mr_tydi", 46_997),
    "OpenOrca": ("openorca", 38_623),
    "retrieval data llm": ("retrieval_data_llm", 32_551),
    "MLDR": ("mldr", 31_097),
    "CC-News": ("cc_news", 28_246),
    "NLLB": ("nllb", 26_504),
    "ESCI": ("esci", 26_043),
    "Aya Dataset": ("aya", 22_449),
    "Yahoo Answers": ("yahoo_answers", 21_724),
    "CSL": ("csl", 19_945),
    "LCSTS": ("lcsts", 19_535),
    "THUCNews": ("thucnews", 19_288),
    "WebGPT Comparisons": ("webgpt", 18_924),
    "ChatMed-Dataset": ("chatmed", 18_608),
    "AdvertiseGen": ("advertisegen", 17_526),
    "OCNLI": ("ocnli", 11_937),
    "ATEC": ("atec", 11_387),
    "BQ": ("bq", 10_000),
    "SearchQA": ("searchqa", 9_988),
    "CMRC 2018": ("cmrc_2018", 9_753),
    "rag-dataset-12000": ("rag_12000", 9_272),
    "lawzhidao": ("lawzhidao", 6_784),
    "webqa": ("webqa", 4_988),
    "CHEF": ("chef", 4_824),
    "cCOVID-News": ("ccovid_news", 4_727),
    "DRCD": ("drcd", 4_714),
    "AFQMC": ("afqmc", 3_876),
    "CINLID": ("cinlid", 2_883),
    "UMETRIP-QA": ("umetrip", 2_537),
    "ChineseSTS": ("chinese_sts", 2_497),
    "LIMA": ("lima", 1_991),
    "WebCPM": ("webcpm", 1_602),
    "ExpertQA": ("expertqa", 1_252),
    "CAIL2019-SCM": ("cail2019_scm", 648),
    "ContractNLI": ("contract_nli", 628),
    "law-gpt": ("law_gpt", 500),
}
NEMOTRON = {
    "SyntheticClassif.": ("synthetic_classification", 1_044_212),
    "PAQ": ("paq", 1_000_000),
    "MS MARCO": ("msmarco", 532_751),
    "MAmmoTH2": ("mammoth2", 317_180),
    "NaturalQuestions": ("nq", 100_231),
    "GooAQ": ("gooaq", 100_000),
    "SQuAD": ("squad", 87_599),
    "MIRACL": ("miracl", 79_648),
    "TriviaQA": ("trivia_qa", 73_346),
    "EmotionClassif.": ("emotion", 13_039),
    "NFCorpus": ("nfcorpus", 3_685),
}
PARALLEL = {
    "JW300": ("jw300", 701_201),
    "TED Talks": ("ted_talks", 733_318),
    "WikiMatrix": ("wikimatrix", 673_288),
}
OPUS = 946_599
INFIR = {
    "MS MARCO": ("infir_msmarco", 38_759),
    "metamath": ("infir_metamath", 7_104),
    "leetcode": ("infir_leetcode", 2_540),
}
FOLLOWIR = 494
SUBTOTALS = {"KaLM": 3_655_225, "Nemotron": 3_351_691, "Other": 3_103_303}
PAIRS = 10_110_219
# Footnotes of appendix C (pages 18 and 19).
HUBS = {
    "kalm": "HIT-TMG/KaLM-embedding-finetuning-data",
    "nemotron": "nvidia/Embed-Nemotron-Dataset-V1",
    "opus": "Helsinki-NLP/opus-100",
    "jw300": "sentence-transformers/parallel-sentences-jw300",
    "ted_talks": "sentence-transformers/parallel-sentences-talks",
    "wikimatrix": "sentence-transformers/parallel-sentences-wikimatrix",
    "followir": "jhu-clsp/FollowIR-train",
    "infir": "InF-IR/InF-IR",
}
# Appendix C: families that MTEB tests on, as folders and subsets are named.
REMOVED = (
    *("arxiv_qa", "massive", "cqadupstack", "trec-covid", "dbpedia", "fever", "fiqa", "hotpot"),
    *("paws", "quora", "scifact", "snli"),
)


def left_out() -> dict[str, dict[str, Any]]:
    """The sets that the catalogue names and leaves out, by name."""
    path = shipped_recipes()["bidirlm/adapt"].path.parent / "corpora/pairs/datasets.yaml"
    return {one["name"]: one for one in yaml.safe_load(path.read_text("utf-8"))["x-left-out"]}


# ── data ────────────────────────────────────────────────────────────────────────────────────────


def test_every_set_of_table_4_has_its_id_and_its_count() -> None:
    sets = sets_of("bidirlm/adapt", "corpora/pairs")
    for table, hub in ((KALM, "kalm"), (NEMOTRON, "nemotron")):
        for name, pairs in table.values():
            assert (sets[name].limit, sets[name].hub.lower()) == (pairs, HUBS[hub].lower()), name
    for name, pairs in PARALLEL.values():
        assert (sets[name].limit, sets[name].hub) == (pairs, HUBS[name]), name
    opus = [one for name, one in sets.items() if name.startswith("opus_")]
    assert {one.hub for one in opus} == {HUBS["opus"]}
    assert sum(one.limit or 0 for one in opus) == OPUS
    for name, pairs in INFIR.values():
        assert (sets[name].limit, sets[name].hub) == (pairs, HUBS["infir"]), name
    left = left_out()["followir"]
    assert (left["limit"], left["hub"]) == (FOLLOWIR, HUBS["followir"])
    tables = (KALM, NEMOTRON, PARALLEL, INFIR)
    named = [name for table in tables for name, _ in table.values()]
    assert {*sets} == {*named, *(str(one.name) for one in opus)}


def test_the_counts_add_up_to_the_printed_totals() -> None:
    sets = sets_of("bidirlm/adapt", "corpora/pairs")
    left = sum(one["limit"] for one in left_out().values())
    kalm = sum(one.limit or 0 for one in sets.values() if one.hub == HUBS["kalm"])
    nemotron = sum(sets[name].limit or 0 for name, _ in NEMOTRON.values())
    other = sum(one.limit or 0 for one in sets.values()) - kalm - nemotron + left
    assert {"KaLM": kalm, "Nemotron": nemotron, "Other": other} == SUBTOTALS
    assert kalm + nemotron + other == PAIRS


def test_no_set_is_of_a_family_that_mteb_tests_on_and_shared_sets_are_nemotrons() -> None:
    sets = sets_of("bidirlm/adapt", "corpora/pairs")
    for one in sets.values():
        parts = [part.lower() for part in (one.folder, one.subset) if part]
        for family in REMOVED:
            # Not SNLI, but the pairs of it and MultiNLI that SimCSE trains on, are in the table.
            assert not any(family in part for part in parts), (one.name, family)
    folders = {str(one.folder).lower() for one in sets.values() if one.hub == HUBS["kalm"]}
    for shared in ("miracl", "msmarco", "triviaqa", "squad", "nfcorpus", "gooaq", "paq"):
        assert not any(folder.startswith(shared) for folder in folders), shared


def test_texts_for_masking_are_the_papers_sets_in_its_numbers_of_languages() -> None:
    sets = sets_of("bidirlm/adapt", "corpora/adaptation")
    hubs: dict[str, list[str]] = {}
    for name, one in sets.items():
        hubs.setdefault(str(one.hub), []).append(name)
    assert hubs["HuggingFaceFW/fineweb-edu"] == ["english"]
    assert len(hubs["epfml/FineWeb2-HQ"]) == 20
    assert {name.partition("_")[0] for name in hubs["HuggingFaceTB/finemath"]} == {"mathematics"}
    # The Stack v2 has no texts; 34 languages of its predecessor.
    assert len([name for name in sets if name.startswith("code_")]) == 34


# Section 2: pairs with sound and with images; 65 %, 17.5 % and 17.5 % of 1.8 million pairs.
MEDIA = {
    **{"laion_audio": 200_000, "librispeech": 100_000},
    **{"colpali": 100_000, "natcap": 100_000, "coco": 100_000},
}
TEXT_SHARE, OMNI_PAIRS = 0.65, 1_800_000


def test_images_and_sound_have_the_papers_counts_and_texts_their_share() -> None:
    assert {name: one.limit for name, one in sets_of("bidirlm/omni", "corpora/media").items()} == (
        MEDIA
    )
    texts = sum(one.limit or 0 for one in sets_of("bidirlm/omni", "corpora/pairs").values())
    for one in (*group("bidirlm/omni", "trained"), *group("bidirlm/omni", "trained_unmerged")):
        weights = {str(entry.path).rpartition("/")[2]: entry.weight for entry in one.data}
        weighed = {"pairs": texts * weights["pairs"], "media": sum(MEDIA.values())}
        assert weights["media"] == 1
        assert weighed["pairs"] / sum(weighed.values()) == pytest.approx(TEXT_SHARE, abs=1e-4)
        assert one.max_steps == -(-OMNI_PAIRS // BATCH)


# ── trainings ───────────────────────────────────────────────────────────────────────────────────


def assert_masking(one: Any, model: str, tokens: int, rate: float | None = None) -> None:
    """The training masks as table 2 has it; `rate` in a search for it."""
    printed_rate, share = MASKING[model]
    assert (one.learning_rate, one.loss.default[0].share) == (rate or printed_rate, share)
    assert one.loss.default[0].masked == 1
    assert (one.max_length.default, one.packing) == (SEQUENCE, SEQUENCE)
    assert one.sampler[-1].batch_tokens == STEP_TOKENS
    assert one.max_steps == -(-tokens // STEP_TOKENS)
    assert (one.schedule, one.warmup_ratio) == ("warmup_stable_decay", WARMUP_EPOCHS)
    assert (one.max_grad_norm, one.adam_beta2) == (1, 0.95)


def assert_pairs(one: Any, model: str, pairs: int, rate: float | None = None) -> None:
    """The training is on pairs as table 3 has it; `rate` in a search for it."""
    assert one.learning_rate == (rate or PAIR_RATES[model])
    assert (one.warmup_steps, one.schedule) == (PAIR_WARMUP, "linear")
    assert one.sampler[-1].batch_size.default == BATCH
    assert one.loss.default[0].temperature == TEMPERATURE
    assert (one.hard_negatives, one.max_length.default) == (NEGATIVES, PAIR_LENGTH)
    assert one.max_steps == -(-pairs // BATCH)
    assert one.max_grad_norm == 1


def assert_mixture(one: Any, english: float = ENGLISH) -> None:
    """English has its share, and three domains equal parts of the rest."""
    shares = one.sampler[-1].shares
    assert {*shares} == {"english", "mathematics_*", "code_*", "web_*"}
    for name, share in shares.items():
        assert share == pytest.approx(
            english if name == "english" else (1 - english) / 3, abs=2e-6
        ), name


# Table 1 (appendix A): layers, width, heads, heads of keys, width of a head, words.
ARCHITECTURES = {
    GEMMA: (18, 640, 4, 1, 256, 262_144),
    GEMMA_LARGE: (26, 1152, 4, 1, 256, 262_144),
    QWEN: (28, 1024, 16, 8, 128, 151_936),
    QWEN_LARGE: (28, 2048, 16, 8, 128, 151_936),
}


def test_the_checkpoints_that_recipes_are_checked_with_are_the_papers() -> None:
    for model, numbers in ARCHITECTURES.items():
        config = MODELS[model][2]
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
        more = ("num_key_value_heads", "head_dim", "vocab_size")
        assert tuple(config[name] for name in (*names, *more)) == numbers, model


TRAINED = {"270m": GEMMA, "600m": QWEN, "1b": GEMMA_LARGE, "1700m": QWEN_LARGE}


def test_models_are_adapted_merged_and_trained_as_printed() -> None:
    recipe = "bidirlm/adapt"
    adapted = group(recipe, "adapted")
    assert {hub_model(recipe, one.model) for one in adapted} == {*MASKING}
    for one in adapted:
        assert_masking(one, hub_model(recipe, one.model), LONG_TOKENS)
        assert_mixture(one)
        assert one.save_steps == SHORT_TOKENS // STEP_TOKENS
    for one in group(recipe, "merged"):
        assert [entry.weight.at("norm.weight", 0.0) for entry in one.models] == [1 - BASE, BASE]
    for size, model in TRAINED.items():
        (one,) = group(recipe, f"trained_{size}")
        assert hub_model(recipe, one.model) == model
        assert_pairs(one, model, PAIRS)


def test_rates_are_searched_as_printed() -> None:
    recipe = "bidirlm/rates"
    ratio = (HIGHEST / LOWEST) ** (1 / (RATES - 1))
    rates = [pytest.approx(LOWEST * ratio**number, rel=1e-3) for number in range(RATES)]
    for family, models in (("gemma", (GEMMA, GEMMA_LARGE)), ("qwen", (QWEN, QWEN_LARGE))):
        for model in models:
            for step in (family, f"{family}_pairs"):
                own = [one for one in group(recipe, step) if hub_model(recipe, one.model) == model]
                assert sorted(one.learning_rate for one in own) == rates
                for one in own:
                    if step == family:
                        assert_masking(one, model, SEARCH_TOKENS, one.learning_rate)
                        assert_mixture(one)
                    else:
                        assert_pairs(one, model, SEARCH_PAIRS, one.learning_rate)
    for step in ("masking_gemma", "masking_qwen", "pairs_gemma", "pairs_qwen"):
        assert {type(one.evaluators[0]).__name__ for one in group(recipe, step)} == {"MeanLoss"}


# Appendix D.4: fine-tuning.
TUNING = {"batch_size": (32,), "warmup": 0.1, "patience": 1, "seeds": (SEED,)}
TUNING_LOWEST, TUNING_HIGHEST = 5e-6, 5e-3
CLASS_STEPS, REGRESSION_STEPS, RETRIEVAL_STEPS = 10_000, 5_000, 1_000


def assert_rates(rates: Any) -> None:
    """Ten rates at equal ratios, as the recipe rounds them."""
    ratio = (TUNING_HIGHEST / TUNING_LOWEST) ** (1 / (RATES - 1))
    exact = [TUNING_LOWEST * ratio**number for number in range(RATES)]
    assert list(rates) == pytest.approx(exact, rel=0.03)


def test_variants_are_trained_and_fine_tuned_as_printed() -> None:
    recipe = "bidirlm/variants"
    for one in group(recipe, "bi_mntp"):
        assert_masking(one, hub_model(recipe, one.model), SHORT_TOKENS)
        assert [entry.only for entry in one.data] == [("english",)]
    for step in ("bi_pairs", "bi_mntp_pairs"):
        for one in group(recipe, step):
            assert_pairs(one, hub_model(recipe, one.model), SHORT_PAIRS)
            assert [str(entry.path).rpartition("/")[2] for entry in one.data] == ["english"]
    tuned = [one for one in group(recipe, "tuned") if hasattr(one, "evaluators")]
    for one in tuned:
        steps = {task: e.steps for e in one.evaluators for task in e.tasks}
        assert steps == {
            **dict.fromkeys(("xnli", "paws_x", "math_shepherd", "code_complexity"), CLASS_STEPS),
            **dict.fromkeys(("pan_x", "udpos"), CLASS_STEPS),
            "seahorse": REGRESSION_STEPS,
        }
        for evaluator in one.evaluators:
            assert {name: getattr(evaluator, name) for name in TUNING} == TUNING
            assert_rates(evaluator.learning_rate)
    for variant in ("causal", "bi", "mntp", "pairs", "mntp_pairs"):
        searched = group(recipe, f"search_{variant}")
        for model in (GEMMA, QWEN):
            own = [one for one in searched if hub_model(recipe, one.model) == model]
            assert_rates(sorted(one.learning_rate for one in own))
        for one in searched:
            assert (one.max_steps, one.warmup_ratio) == (RETRIEVAL_STEPS, 0.1)
            assert one.sampler[-1].batch_size.default == 32
            assert {entry.hub for entry in one.data} == {"bclavie/msmarco-10m-triplets"}
    for one in group(recipe, "found"):
        for evaluator in getattr(one, "evaluators", ()):
            assert evaluator.tasks == ("MIRACLRetrievalHardNegatives", "CodeSearchNetRetrieval")


def test_forgetting_is_measured_as_printed() -> None:
    recipe = "bidirlm/forgetting"
    for one in (*group(recipe, "english"), *group(recipe, "mixed")):
        assert_masking(one, QWEN, LONG_TOKENS)
    assert [one.sampler[-1].shares["english"] for one in group(recipe, "mixed")] == [0.9, 0.8, 0.7]
    for one in group(recipe, "mixed"):
        assert_mixture(one, one.sampler[-1].shares["english"])
    # Appendix F.1.
    for step in ("mntp", "mlm"):
        assert [one.loss.default[0].share for one in group(recipe, step)] == [0.1, 0.2, 0.3, 0.4]
        assert {one.max_steps for one in group(recipe, step)} == {-(-SHORT_TOKENS // STEP_TOKENS)}
    (evaluator,) = steps_of(recipe)["masked"].evaluators
    assert (evaluator.steps, {*evaluator.tasks} >= {"xnli", "pan_x"}) == (5000, True)


# Sections 2 and 6.1, appendices D.1 and D.4: checkpoints, steps, batches, data; footnotes 27 to 31.
SPECIALISTS = {
    "guarded": (QWEN, "Qwen/Qwen3Guard-Gen-0.6B"),
    "seen": (QWEN_LARGE, "Qwen/Qwen3-VL-2B-Instruct"),
    "heard": (QWEN, "Qwen/Qwen3-ASR-0.6B"),
}
RATIOS = (0, 0.25, 0.5, 0.75, 1)  # section 6.1, footnote 8
SPECIAL_STEPS = 500
SPECIAL_BATCHES = {"safety": 4, "sight": 32, "hearing": 14}
SPECIAL_TRAINING = {
    "safety": "PKU-Alignment/BeaverTails",
    "sight": "sedrickkeh/e-snli-ve",
    "hearing": "fixie-ai/boolq-audio",
}
SAFETY_TESTS = {
    "beaver": "PKU-Alignment/BeaverTails",
    "safe": "PKU-Alignment/PKU-SafeRLHF",
    "aegis": "nvidia/Aegis-AI-Content-Safety-Dataset-2.0",
}


def test_encoders_are_merged_with_the_named_specialists_at_five_ratios() -> None:
    recipe = "bidirlm/specialists"
    for step, (trunk, specialist) in SPECIALISTS.items():
        merges = group(recipe, step)
        assert [one.models[1].weight.at("norm.weight", 0.0) for one in merges] == [*RATIOS]
        for one in merges:
            assert hub_model(recipe, one.models[0].model) == trunk
            # transformers' own format of a checkpoint has a name with -hf behind.
            assert one.models[1].model.text.removesuffix("-hf") == specialist


def test_specialists_are_fine_tuned_as_printed() -> None:
    for step, batch in SPECIAL_BATCHES.items():
        scored = steps_of("bidirlm/specialists")[step]
        (evaluator,) = scored.evaluators
        (task,) = evaluator.data
        assert (evaluator.steps, evaluator.batch_size) == (SPECIAL_STEPS, (batch,))
        assert_rates(evaluator.learning_rate)
        assert (task.train.hub, task.metric) == (SPECIAL_TRAINING[step], "macro_f1")
        assert len(scored.models) == len(RATIOS)
        if step == "safety":
            assert {one.name: one.hub for one in task.test} == SAFETY_TESTS
            assert task.columns == "test"


# ── tables ──────────────────────────────────────────────────────────────────────────────────────

TABLE_5 = {  # appendix F.5
    "BidirLM-270M": (59.5, 58.8, 45.9, -2.1, 19.7, 76.7, 56.8, 48.7, 67.7, 55.5, 48.0),
    "BidirLM-0.6B": (66.7, 62.2, 49.6, 0.8, 23.8, 78.4, 58.1, 56.5, 70.8, 59.6, 51.9),
    "BidirLM-1B": (71.8, 65.9, 50.3, -0.4, 25.1, 79.8, 58.6, 56.5, 74.6, 62.1, 53.6),
    "BidirLM-1.7B": (72.2, 65.7, 51.5, 0.5, 26.6, 80.2, 62.1, 59.9, 74.2, 62.9, 54.8),
    "BidirLM-Omni-2.5B": (72.2, 65.5, 51.6, 0.9, 26.6, 80.7, 63.4, 59.4, 75.7, 63.1, 55.1),
}
TABLE_8 = {  # appendix F.6: the mean of kinds is before that of tasks
    "KaLM-Gemma3-12B": (83.8, 77.9, 55.8, 5.5, 33.0, 84.7, 67.3, 75.7, 79.0, 62.5, 72.3),
    "BidirLM-Omni-2.5B": (72.2, 65.5, 51.6, 0.9, 26.6, 80.7, 63.4, 59.4, 75.7, 55.1, 63.1),
    "BidirLM-1.7B": (72.2, 65.7, 51.5, 0.5, 26.6, 80.2, 62.1, 59.9, 74.2, 54.8, 62.9),
    "GTE-Qwen2-7B": (73.9, 61.5, 52.8, 4.9, 25.5, 85.1, 65.5, 60.1, 74.0, 55.9, 62.5),
    "BidirLM-1B": (71.8, 65.9, 50.3, -0.4, 25.1, 79.8, 58.6, 56.5, 74.6, 53.6, 62.1),
    "BidirLM-0.6B": (66.7, 62.2, 49.6, 0.8, 23.8, 78.4, 58.1, 56.5, 70.8, 51.9, 59.6),
    "BGE-M3": (79.1, 60.4, 40.9, -3.1, 20.1, 80.8, 62.8, 54.6, 74.1, 52.2, 59.6),
    "GTE-Qwen2-1.5B": (62.5, 58.3, 52.0, 0.7, 24.0, 81.6, 62.6, 60.8, 71.6, 52.7, 59.5),
    "KaLM-mini": (64.8, 57.6, 45.6, -1.5, 20.7, 77.7, 60.6, 54.2, 70.8, 50.0, 57.0),
    "Stella-1.5B": (58.6, 56.7, 49.7, 0.2, 21.8, 78.5, 61.4, 52.8, 69.9, 50.0, 56.5),
    "BidirLM-270M": (59.5, 58.8, 45.9, -2.1, 19.7, 76.7, 56.8, 48.7, 67.7, 48.0, 55.5),
    "Nomic-v1": (28.4, 49.4, 40.8, -3.2, 17.8, 71.7, 46.0, 37.0, 64.2, 39.1, 45.7),
}
TABLE_9 = {  # appendix F.6
    "BidirLM-Omni-2.5B": (28.8, 46.0, 76.9, 73.6, 61.1, 48.6, 48.1, 54.7, 58.1),
    "E5-V": (26.9, 39.4, 56.0, 70.6, 51.7, 52.6, 36.2, 47.6, 51.9),
    "Nemotron-Omni-3B": (31.8, 41.0, 46.6, 68.3, 75.6, 47.9, 43.7, 50.7, 51.4),
    "CLIP-bigG": (34.2, 35.0, 35.5, 77.8, 80.8, 43.0, 72.4, 54.1, 51.3),
    "EVA02-bigE+": (35.2, 38.9, 26.2, 80.0, 87.3, 38.8, 74.0, 54.4, 50.8),
    "CLIP-L-DC": (31.0, 31.6, 30.8, 75.3, 80.4, 54.9, 69.4, 53.4, 50.4),
    "CLIP-H": (32.8, 34.8, 33.7, 76.8, 79.3, 46.8, 69.4, 53.4, 50.0),
    "CLIP-B16-DC": (28.3, 31.4, 22.7, 73.2, 73.6, 56.9, 61.9, 49.7, 46.6),
    "VLM2Vec": (20.9, 30.2, 42.8, 64.8, 65.4, 65.3, 32.1, 45.9, 46.0),
}
TABLE_10 = {  # appendix F.6
    "LCO-Omni-7B": (55.2, 57.1, 1.7, 38.4, 67.3, 78.7, 64.5, 51.9, 52.0),
    "LCO-Omni-3B": (54.5, 55.4, 1.3, 36.8, 66.7, 75.4, 62.2, 50.3, 50.7),
    "BidirLM-Omni-2.5B": (32.8, 58.2, 5.5, 32.3, 66.4, 74.8, 55.3, 46.5, 45.2),
    "Nemotron-Omni-3B": (38.8, 47.6, 1.2, 21.1, 66.1, 81.5, 69.8, 46.6, 43.1),
    "MS-CLAP-23": (18.7, 45.0, 15.2, 7.0, 53.6, 75.4, 12.6, 32.5, 31.3),
    "CLAP-fused": (17.6, 44.4, 22.7, 4.5, 52.0, 61.3, 13.2, 30.8, 30.8),
    "CLAP-unfused": (18.1, 45.2, 12.6, 4.3, 52.6, 66.5, 11.3, 30.1, 30.3),
    "MS-CLAP-22": (21.7, 38.2, 19.9, 7.2, 51.7, 62.9, 12.1, 30.5, 29.8),
    "SpeechT5": (7.9, 40.7, 1.1, 8.5, 57.9, 56.5, 15.9, 26.9, 25.3),
}


@pytest.mark.parametrize(
    ("recipe", "table", "numbers"),
    [
        ("adapt", "table_5", TABLE_5),
        ("omni", "table_8", TABLE_8),
        ("omni", "table_9", TABLE_9),
        ("omni", "table_10", TABLE_10),
    ],
)
def test_tables_have_the_printed_numbers(
    recipe: str, table: str, numbers: dict[str, tuple[float, ...]]
) -> None:
    for one in group(f"bidirlm/{recipe}", table):
        assert printed_rows(one) == numbers
        assert len(one.columns) == len(next(iter(numbers.values())))


def test_the_omnimodal_model_is_trained_as_printed() -> None:
    recipe = "bidirlm/omni"
    (adapted,) = group(recipe, "adapted")
    assert_masking(adapted, QWEN_LARGE, LONG_TOKENS)
    assert_mixture(adapted)
    (merged,) = group(recipe, "merged")  # appendix E, figure 10
    weights = [entry.weight.at("norm.weight", 0.0) for entry in merged.models]
    assert weights == [pytest.approx(1 / 3, abs=1e-5)] * 3
    for one in (*group(recipe, "trained"), *group(recipe, "trained_unmerged")):
        assert one.backbone.freeze == ("visual", "audio_tower")
        assert_pairs(one, QWEN_LARGE, OMNI_PAIRS)
