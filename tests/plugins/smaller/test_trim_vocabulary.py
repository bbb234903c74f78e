"""A vocabulary cut to a corpus keeps the tokens and the embeddings of covered texts, byte for byte."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from emberge import CheckpointError, DataEntry, DataError, DataRef, ModelRef
from emberge.encoding import TextEmbedder
from emberge.merging import MergeInput, VocabularyPolicy
from emberge.model_folder import Checkpoint
from emberge_merge import Linear, TaskArithmetic
from emberge_smaller import CutTokenizer, SubwordVocabulary, TrimVocabulary, choose_tokens
from emberge_smaller.corpus_tokens import count_covered, read_tokenizer, require_equal_tokens
from emberge_smaller.vocabulary.cut_tokenizer import renumber_ids
from emberge_smaller.vocabulary.trim_vocabulary_step import measure_unknown_share
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, processors

from tests.support import tiny
from tests.support.bench import BACKBONE, Bench
from tests.support.glance import Glance
from tests.support.json_files import changing, edit
from tests.support.merges import merge_models
from tests.support.trimmed import KINDS, library_texts, trimmable, write_texts
from tests.support.whole import files

COVERED = 10_000
SETTINGS = "config_sentence_transformers.json"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trimmed")


@pytest.fixture(scope="module")
def wholes(root: Path) -> dict[str, Path]:
    """A model of each kind of tokenizer."""
    return {kind: trimmable(root / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def corpus(root: Path) -> Path:
    """A small corpus, for all but the large proof."""
    return write_texts(root / "corpus.jsonl", library_texts(600))


def entries(*files: Path) -> tuple[DataEntry, ...]:
    return tuple(DataEntry(path=DataRef(str(file)), task="text") for file in files)


def trim(
    folder: Path, data: Path, root: Path, **options: Any
) -> tuple[Path, dict[str, Any], Bench]:
    bench = Bench(root)
    step = TrimVocabulary(model=ModelRef(str(folder)), data=entries(data), **options)
    artifact = step.run(bench)
    return bench.folder, dict(artifact.details), bench


def embeddings(folder: Path, texts: Sequence[str]) -> Any:
    encoder = BACKBONE.load(folder, device="cpu", dtype="float32")
    return TextEmbedder(encoder).embed(texts)


def token_texts(folder: Path, texts: Sequence[str]) -> list[list[str]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [one.tokens for one in tokenizer.encode_batch(texts)]


Trimmed = tuple[Path, dict[str, Any], Bench]


@pytest.fixture(scope="module")
def cut(root: Path, wholes: dict[str, Path], corpus: Path) -> Callable[[str], Trimmed]:
    """Return a model of a kind that is cut to the small corpus, made once; do not write into it."""
    return functools.cache(lambda kind: trim(wholes[kind], corpus, root / f"cut-{kind}"))


def tokens_of(folder: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_covered_texts_keep_their_tokens_and_the_bytes_of_their_embeddings(
    kind: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    texts = library_texts(COVERED)
    others = library_texts(500, first=20_000)
    folder, details, bench = trim(
        wholes[kind],
        write_texts(tmp_path / "texts.jsonl", texts),
        tmp_path / "run",
        held_out=entries(write_texts(tmp_path / "others.jsonl", others)),
    )
    assert token_texts(folder, texts) == token_texts(wholes[kind], texts)
    before, after = embeddings(wholes[kind], texts), embeddings(folder, texts)
    assert len(before) == COVERED
    assert before.tobytes() == after.tobytes()
    assert details["texts"] == COVERED
    assert details["vocabulary"]["after"] < details["vocabulary"]["before"]
    assert details["megabytes"]["after"] < details["megabytes"]["before"]
    # Of other texts those count that have no dropped token, and these read as before.
    kept = set(tokens_of(folder))
    old = token_texts(wholes[kind], others)
    covered = [text for text, tokens in zip(others, old, strict=True) if kept.issuperset(tokens)]
    assert 0 < len(covered) < len(others)
    assert details["held_out"] == {"texts": 500, "share_unchanged": len(covered) / 500}
    warned = any("of 500 held-out texts are split" in text for text in bench.warnings)
    assert warned == (details["held_out"]["share_unchanged"] < 0.9)
    assert token_texts(folder, covered) == token_texts(wholes[kind], covered)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plain_libraries_open_the_result(
    kind: str, wholes: dict[str, Path], cut: Callable[[str], Trimmed]
) -> None:
    folder, details, _ = cut(kind)
    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = details["vocabulary"]["after"]
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    assert len(tokenizer) == size
    old = transformers.AutoTokenizer.from_pretrained(wholes[kind])
    for name in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
        token = getattr(old, f"{name}_token")
        assert getattr(tokenizer, f"{name}_token") == token
        stated = getattr(model.config, f"{name}_token_id", None)
        if stated is not None and token is not None:
            assert stated == getattr(tokenizer, f"{name}_token_id")
    texts = library_texts(40)
    expected = SentenceTransformer(str(wholes[kind]), device="cpu").encode(texts)
    found = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert expected.tobytes() == found.tobytes()


@pytest.mark.parametrize(
    "kind", ["WordPiece", "BPE", pytest.param("Unigram", marks=pytest.mark.slow)]
)
def test_heads_are_cut_with_the_embedding(kind: str, corpus: Path, tmp_path: Path) -> None:
    tied = kind != "BPE"
    whole = trimmable(tmp_path / "whole", kind, head=True, tie_word_embeddings=tied)
    folder, _, _ = trim(whole, corpus, tmp_path / "run")
    loader = getattr(transformers, "AutoModelForMaskedLM" if tied else "AutoModelForCausalLM")
    before = loader.from_pretrained(whole).eval()
    after, report = loader.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    vocabulary, cut = (
        transformers.AutoTokenizer.from_pretrained(path).get_vocab() for path in (whole, folder)
    )
    rows = [vocabulary[token] for token, _ in sorted(cut.items(), key=lambda item: item[1])]
    ids = torch.tensor([[cut[token] for token in list(cut)[:20]]])
    old_ids = torch.tensor([[rows[i] for i in ids[0].tolist()]])
    with torch.no_grad():
        expected, found = before(old_ids).logits[..., rows], after.eval()(ids).logits
    assert torch.allclose(expected, found, rtol=0, atol=1e-6)
    if not tied:
        head = load_file(folder / "model.safetensors")["lm_head.weight"]
        assert torch.equal(head, load_file(whole / "model.safetensors")["lm_head.weight"][rows])


def vocabulary_of(folder: Path, tokenizer: Tokenizer | dict[str, Any]) -> SubwordVocabulary:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    content = json.dumps(tokenizer) if isinstance(tokenizer, dict) else tokenizer.to_str()
    (folder / "tokenizer.json").write_text(content)
    return SubwordVocabulary.read(Checkpoint(folder))


def cut_to_named(vocabulary: SubwordVocabulary) -> CutTokenizer:
    """The tokenizer without all words of more than one letter."""
    counts = np.zeros(vocabulary.size, np.int64)
    counts[[number for number, _ in vocabulary.list_characters()]] = 1
    return CutTokenizer(vocabulary, choose_tokens(vocabulary, counts, ()))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_around_a_text_and_padding_get_their_new_ids(
    kind: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(wholes[kind] / "tokenizer.json"))
    tokens = ["<begin>", "<end>", "<fill>"]
    tokenizer.add_special_tokens(tokens)  # behind the words, so that their ids change
    begin, end, fill = ((token, tokenizer.token_to_id(token)) for token in tokens)
    tokenizer.post_processor = (
        processors.BertProcessing(end, begin)
        if kind == "WordPiece"
        else processors.TemplateProcessing(single="<begin> $A <end>", special_tokens=[begin, end])
    )
    tokenizer.enable_padding(pad_id=fill[1], pad_token="<fill>")
    cut = Tokenizer.from_str(cut_to_named(vocabulary_of(tmp_path, tokenizer)).json_text)
    encoding = cut.encode("a list")
    assert cut.token_to_id("<end>") < end[1]
    assert [cut.token_to_id(token) for token in encoding.tokens] == encoding.ids
    assert (encoding.tokens[0], encoding.tokens[-1]) == ("<begin>", "<end>")
    assert cut.padding["pad_id"] == cut.token_to_id("<fill>") < fill[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_without_a_type_is_recognised_by_its_parts(
    kind: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    content = json.loads((wholes[kind] / "tokenizer.json").read_text("utf-8"))
    del content["model"]["type"]
    vocabulary = vocabulary_of(tmp_path, content)
    assert vocabulary.algorithm == kind
    assert len(json.loads(cut_to_named(vocabulary).json_text)["model"]["vocab"]) < len(
        vocabulary.base
    )


def test_added_tokens_come_after_the_others_even_if_ids_had_gaps(tmp_path: Path) -> None:
    """The library numbers an added token by the number of the others: here between two of them."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 9}, unk_token="[UNK]"))
    tokenizer.add_tokens(["emberge"])
    assert tokenizer.token_to_id("emberge") == 3
    cut = Tokenizer.from_str(cut_to_named(vocabulary_of(tmp_path, tokenizer)).json_text)
    assert [cut.token_to_id(token) for token in ("[UNK]", "a", "b", "emberge")] == [0, 1, 2, 3]


def test_the_unknown_piece_of_unigram_gets_its_new_id(tmp_path: Path) -> None:
    pieces = [("a", -1.0), ("list", -2.0), ("<unk>", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    cut = cut_to_named(vocabulary_of(tmp_path, tokenizer))
    assert json.loads(cut.json_text)["model"]["unk_id"] == 1
    assert Tokenizer.from_str(cut.json_text).encode("aж").ids == [0, 1]


def test_negative_ids_stay_and_the_vocabulary_size_is_exact() -> None:
    config = {"pad_token_id": -1, "text": {"eos_token_id": 7}, "pad_vocab_size_multiple": 64}
    changed = renumber_ids(config, {7: 3}.get, (100, 40))
    expected = {"pad_token_id": -1, "text": {"eos_token_id": 3}, "pad_vocab_size_multiple": 1}
    assert changed == expected


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ({"a": 5000, "ж": 1}, "aж\u03011"),  # below a thousandth of the letters
        ({"a": 5000, "ж": 10}, "aжя\u03011"),
        ({"a": 5}, "a\u03011"),
    ],
)
def test_characters_of_scripts_in_use_and_marks_and_digits_of_any_are_kept(
    counts: dict[str, int], kept: str, tmp_path: Path
) -> None:
    tokens = ["[UNK]", *"aжя\u03011"]
    model = models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    vocabulary = vocabulary_of(tmp_path, Tokenizer(model))
    seen = np.array([counts.get(token, 0) for token in tokens])
    found = choose_tokens(vocabulary, seen, ())
    assert [tokens[number] for number in found] == ["[UNK]", *kept]


def test_the_share_of_unknown_tokens_ignores_special_tokens(wholes: dict[str, Path]) -> None:
    """90 unknown tokens beside 910 words, and the ends of texts."""
    vocabulary = SubwordVocabulary.read(Checkpoint(wholes["WordPiece"]))
    counts = np.zeros(vocabulary.size, np.int64)
    counts[5000:5910] = 1
    for token, count in (("[UNK]", 90), ("[CLS]", 50), ("[SEP]", 50)):
        counts[vocabulary.ids[token]] = count
    assert measure_unknown_share(vocabulary, counts) == pytest.approx(0.09)
    counts[vocabulary.ids["[UNK]"]] = 110
    with pytest.raises(DataError, match="11% of its tokens are unknown"):
        measure_unknown_share(vocabulary, counts)


def test_siblings_with_other_settings_keep_the_same_tokens_and_those_they_name(
    wholes: dict[str, Path], corpus: Path, cut: Callable[[str], Trimmed], tmp_path: Path
) -> None:
    def trimmed(name: str, **changes: Any) -> set[str]:
        whole = shutil.copytree(wholes["WordPiece"], tmp_path / name)
        edit(whole, SETTINGS, **changes)
        return set(tokens_of(trim(whole, corpus, tmp_path / f"{name}-run")[0]))

    expected = set(tokens_of(cut("WordPiece")[0]))
    assert trimmed("other", similarity_fn_name="manhattan") == expected
    assert "manhattan" in SubwordVocabulary.read(Checkpoint(wholes["WordPiece"])).ids
    named = {"image_token": {"content": "manhattan"}, "extra_special_tokens": ["ж"]}
    assert trimmed("named", **named) == expected | {"manhattan", "ж"}
    assert not expected & {"manhattan", "ж"}


def test_added_tokens_have_their_new_ids_and_those_that_a_tokenizer_lacks_are_left_out(
    wholes: dict[str, Path], corpus: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(wholes["WordPiece"], tmp_path / "whole")
    listed = {"102": {"content": "[SEP]"}, "99999": {"content": "<no>"}}
    edit(whole, "tokenizer_config.json", added_tokens_decoder=listed)
    words = {"eos_token_id": [102, 99_999], "bad_words_ids": [[102, 99_999], [102]]}
    edit(whole, "config.json", **words)
    folder, _, _ = trim(whole, corpus, tmp_path / "run")
    new = tokens_of(folder)["[SEP]"]
    assert new != 102
    changed, found = (
        json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer_config.json")
    )
    assert (changed["eos_token_id"], changed["bad_words_ids"]) == ([new], [[new]])
    assert found["added_tokens_decoder"] == {str(new): {"content": "[SEP]"}}
    with changing(whole / "tokenizer.json") as content:
        content["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [99_999]
    refused(whole, corpus, tmp_path / "again", "tokenizer.json.*99999.* get the tokenizer again")


def test_scores_of_unigram_keep_all_their_digits(
    wholes: dict[str, Path], cut: Callable[[str], Trimmed]
) -> None:
    before, after = (
        dict(SubwordVocabulary.read(Checkpoint(folder)).scores)
        for folder in (wholes["Unigram"], cut("Unigram")[0])
    )
    assert after.items() <= before.items()
    assert min(map(float, after.values())) == min(map(float, before.values()))


def bpe(folder: Path, merges: Sequence[tuple[str, str]], **options: Any) -> SubwordVocabulary:
    """A tokenizer of the letters a to d and these merges."""
    tokens = [*"abcd", *dict.fromkeys("".join(pair) for pair in merges)]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, list(merges), **options)
    return vocabulary_of(folder, Tokenizer(model))


def test_a_kept_token_of_bpe_keeps_each_token_on_the_way_to_it_and_no_other(tmp_path: Path) -> None:
    merges = [("a", "b"), ("c", "d"), ("b", "c"), ("ab", "cd"), ("a", "d")]
    vocabulary = bpe(tmp_path, merges)
    counts = np.zeros(vocabulary.size, np.int64)
    counts[vocabulary.ids["abcd"]] = 1
    kept = choose_tokens(vocabulary, counts, ())
    cut = CutTokenizer(vocabulary, kept)
    assert [vocabulary.texts[i] for i in kept] == ["a", "b", "c", "d", "ab", "cd", "abcd"]
    assert cut.merges == [("a", "b"), ("c", "d"), ("ab", "cd")]
    tokenizer = Tokenizer.from_str(cut.json_text)
    assert tokenizer.encode("abcd").tokens == ["abcd"]
    assert tokenizer.encode("bcad").tokens == ["b", "c", "a", "d"]


def test_a_merge_listed_twice_has_its_last_rank(tmp_path: Path) -> None:
    """As in the tokenizers library, which writes no merge twice and reads such files: `bc` comes first."""
    bpe(tmp_path, [("b", "c"), ("a", "bc"), ("ab", "c"), ("a", "b")])
    path = tmp_path / "tokenizer.json"
    with changing(path) as content:
        content["model"]["merges"].insert(0, ["a", "b"])
    assert Tokenizer.from_file(str(path)).encode("dbcab").tokens == ["d", "bc", "ab"]
    assert Tokenizer.from_file(str(path)).encode("dabca").tokens == ["d", "abc", "a"]
    vocabulary = SubwordVocabulary.read(Checkpoint(tmp_path))
    counts = np.zeros(vocabulary.size, np.int64)
    counts[vocabulary.ids["abc"]] = 1
    kept = choose_tokens(vocabulary, counts, ())
    assert CutTokenizer(vocabulary, kept).merges == [("b", "c"), ("a", "bc")]


def test_single_characters_of_the_corpus_scripts_and_symbols_are_kept(
    cut: Callable[[str], Trimmed],
) -> None:
    """English lines have neither a rare Latin letter nor a Cyrillic one."""
    tokens = tokens_of(cut("WordPiece")[0])
    assert [token for token in "ħж₹" if token in tokens] == ["ħ", "₹"]
    assert {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} <= tokens.keys()


def test_prompts_of_the_model_are_covered_with_each_text(
    wholes: dict[str, Path], corpus: Path, cut: Callable[[str], Trimmed], tmp_path: Path
) -> None:
    prompted = shutil.copytree(wholes["BPE"], tmp_path / "prompted")
    edit(prompted, SETTINGS, prompts={"query": "zeroconf xylophone: "})
    folder, _, _ = trim(prompted, corpus, tmp_path / "run")
    texts = ["zeroconf xylophone: " + text for text in library_texts(600)]
    assert token_texts(folder, texts) == token_texts(prompted, texts)
    assert token_texts(cut("BPE")[0], texts) != token_texts(prompted, texts)


def test_a_text_is_covered_only_if_it_is_after_each_prompt(wholes: dict[str, Path]) -> None:
    """After a prompt a byte-level word begins with a space, and is another token."""
    vocabulary = SubwordVocabulary.read(Checkpoint(wholes["BPE"]))
    tokenizer = read_tokenizer(wholes["BPE"])
    alone, after = vocabulary.ids["a"], vocabulary.ids["Ġa"]
    for dropped, covered in ((alone, 0), (after, 0), (vocabulary.ids["z"], 1)):
        rows = [number for number in sorted(vocabulary.texts) if number != dropped]
        assert count_covered(tokenizer, ["a list"], ["", "find: "], rows) == covered


def test_a_cut_tokenizer_that_reads_a_text_in_another_way_is_refused(
    wholes: dict[str, Path],
) -> None:
    tokenizer = read_tokenizer(wholes["BPE"])
    same = {number: number for number in tokenizer.get_vocab().values()}
    require_equal_tokens(tokenizer, tokenizer, same, ["a list", "more"])
    other = {**same, tokenizer.encode("more").ids[0]: 0}
    with pytest.raises(CheckpointError, match="reads 'more' in another way"):
        require_equal_tokens(tokenizer, tokenizer, other, ["a list", "more"])


def test_files_of_the_old_vocabulary_are_left_out_with_a_warning(
    wholes: dict[str, Path], corpus: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(wholes["Unigram"], tmp_path / "whole")
    for name in ("sentencepiece.bpe.model", "unigram.json"):
        (whole / name).write_text("{}")
    folder, details, bench = trim(whole, corpus, tmp_path / "run")
    assert sorted(details["left_out"]) == ["sentencepiece.bpe.model", "unigram.json"]
    assert not set(details["left_out"]) & {path.name for path in folder.iterdir()}
    (warning,) = bench.warnings
    assert "unigram.json" in warning


def assert_same_bytes(folder: Path, other: Path) -> None:
    """The tensors of two models are the same."""
    first, second = (
        {
            name: tensor.numpy().tobytes()
            for name, tensor in load_file(one / "model.safetensors").items()
        }
        for one in (folder, other)
    )
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_merging_trimmed_models_equals_trimming_their_merge(
    kind: str, wholes: dict[str, Path], corpus: Path, cut: Callable[[str], Trimmed], tmp_path: Path
) -> None:
    sibling = trimmable(tmp_path / "sibling", kind, seed=1)
    both = [wholes[kind], sibling]
    apart = [cut(kind)[0], trim(sibling, corpus, tmp_path / "apart")[0]]
    merged = tmp_path / "merged"
    merge_models(
        [MergeInput(one.parent.name, one) for one in apart], strategy=[Linear()], out=merged
    )
    whole = tmp_path / "whole"
    merge_models(
        [MergeInput(f"m{i}", one) for i, one in enumerate(both)], strategy=[Linear()], out=whole
    )
    trimmed, _, _ = trim(whole, corpus, tmp_path / "after")
    found, expected = files(merged), files(trimmed)
    assert found.keys() == expected.keys()
    assert [
        name for name in found if name.endswith(".json") and found[name] != expected[name]
    ] == []
    assert_same_bytes(merged, trimmed)


def test_an_untrimmed_base_merges_into_trimmed_siblings_by_tokens(
    wholes: dict[str, Path], corpus: Path, cut: Callable[[str], Trimmed], tmp_path: Path
) -> None:
    kind = "WordPiece"
    siblings = [trimmable(tmp_path / f"sibling{i}", kind, seed=i) for i in (1, 2)]
    apart = [trim(one, corpus, tmp_path / f"apart{i}")[0] for i, one in enumerate(siblings)]
    inputs = [MergeInput(f"m{i}", one) for i, one in enumerate(apart)]
    base = MergeInput("base", wholes[kind])
    found = tmp_path / "found"
    merge_models(
        inputs,
        base=base,
        strategy=[TaskArithmetic()],
        vocabulary_policy=VocabularyPolicy(policy="union", pad_to=1),
        out=found,
    )
    trimmed_base, _, _ = cut(kind)
    expected = tmp_path / "expected"
    merge_models(
        inputs, base=MergeInput("base", trimmed_base), strategy=[TaskArithmetic()], out=expected
    )
    assert_same_bytes(found, expected)


def refused(folder: Path, data: Path, root: Path, fix: str, **options: Any) -> None:
    with pytest.raises((CheckpointError, DataError), match=fix):
        trim(folder, data, root, **options)
    assert not any((root / "out").glob("*"))


THAI = [f"{text} {i}" for i in range(50) for text in ("สวัสดีชาวโลก ภาษาไทย", "ราคาเท่าไหร่ครับ")]
FEW = ["the list of files", "the first list"]


@pytest.mark.parametrize(
    ("kind", "texts", "fix"),
    [
        ("WordPiece", FEW, "needs 5 tokens of 30,522, .* at least 500"),
        *((kind, THAI, r"\d\d?% of its tokens are unknown") for kind in KINDS),
    ],
)
def test_a_corpus_too_small_or_of_an_unknown_language_is_refused(
    kind: str, texts: Sequence[str], fix: str, wholes: dict[str, Path], tmp_path: Path
) -> None:
    refused(wholes[kind], write_texts(tmp_path / "texts.jsonl", texts), tmp_path / "run", fix)


def test_a_tokenizer_that_cannot_be_cut_is_refused_by_its_kind(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "words")
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    words.save(str(folder / "tokenizer.json"))
    problems = [
        problem
        for problem in TrimVocabulary(
            model=ModelRef(str(folder)), data=entries(tmp_path / "x.jsonl")
        ).check(Glance())
        if problem.where == "model"
    ]
    assert "its kind is WordLevel, which cannot be cut" in problems[0].message
    with pytest.raises(CheckpointError, match="BPE with end_of_word_suffix '</w>'"):
        bpe(tmp_path / "clip", [("a", "b")], end_of_word_suffix="</w>")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        SubwordVocabulary.read(Checkpoint(folder))
