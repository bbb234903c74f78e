"""Vocabularies that differ: rows line up by id, by text, or as they are; tokenizers come out right."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from emberge import FileRef, PerTensor
from emberge.merging import (
    MergeInput,
    MergeRequest,
    Statistics,
    Tokenizer,
    VocabularyPolicy,
    plan_merge,
)
from emberge.merging.tokens.token_rows import TokenRows
from emberge.model_folder import Checkpoint, hash_model
from emberge.tensor_files import TensorReader, read_header
from emberge_merge import Fisher, Linear
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import tiny
from tests.support.merges import merge_models
from tests.support.tolerance import assert_combined

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
WORDS = ["the", "file", "list", "open", "sort", "read", "merge", "train"]
TOKENS = [*SPECIAL, *WORDS, *LETTERS]
ROWS = "embeddings.word_embeddings.weight"


def wordpiece(folder: Path, tokens: Sequence[str], added: Iterable[str] = ()) -> None:
    """A WordPiece tokenizer of these tokens in order, and special ones put behind them."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    made.add_special_tokens([AddedToken(token) for token in added])
    names = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    special = {f"{name}_token": SPECIAL[i] for name, i in names.items()}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **special)
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)


def write(
    folder: Path, tokens: Sequence[str] = TOKENS, added: Sequence[str] = (), *, seed: int = 0
) -> Path:
    """A tiny BERT with that vocabulary; the numbers outside the embedding depend on the seed alone."""
    from transformers import BertConfig, BertModel

    wordpiece(folder, tokens, added)
    size = len(tokens) + len(added)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=size, num_attention_heads=2, max_position_embeddings=32, **sizes)
    model = BertModel(config)
    generator = torch.Generator().manual_seed(seed)
    new = {
        n: 0.3 * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t
        for n, t in sorted(model.state_dict().items())
        if n != ROWS
    }
    new[ROWS] = torch.randn(size, 16, generator=generator)
    model.load_state_dict(new)
    model.save_pretrained(folder)
    tiny.write_modules(folder, 16, max_length=32)
    return folder


def inputs(folders: Sequence[Path], weights: Sequence[float] = ()) -> tuple[MergeInput, ...]:
    given = weights or [1.0] * len(folders)
    pairs = zip(folders, given, strict=True)
    return tuple(MergeInput(f.name, f, PerTensor(w)) for f, w in pairs)


def problems(*folders: Path, **vocabulary: Any) -> str:
    tokens = VocabularyPolicy(**vocabulary)
    request = MergeRequest(inputs=inputs(folders), strategy=(Linear(),), vocabulary_policy=tokens)
    return "\n".join(str(problem) for problem in plan_merge(request).problems)


def merge(
    out: Path, *folders: Path, weights: Sequence[float] = (), **vocabulary: Any
) -> dict[str, Tensor]:
    tokens = VocabularyPolicy(**vocabulary)
    merge_models(inputs(folders, weights), strategy=(Linear(),), out=out, vocabulary_policy=tokens)
    return load_file(out / "model.safetensors")


def rows_of(folder: Path) -> Tensor:
    return load_file(folder / "model.safetensors")[ROWS]


def ids(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder)(text)["input_ids"])


def embed(folder: Path, texts: Sequence[str]) -> Tensor:
    from sentence_transformers import SentenceTransformer

    found: Tensor = SentenceTransformer(str(folder), device="cpu").encode(
        list(texts), convert_to_tensor=True
    )
    return found


def shuffled(folder: Path, out: Path, seed: int) -> Path:
    """The same model with its tokens in another order."""
    order = torch.randperm(
        len(TOKENS) - len(SPECIAL), generator=torch.Generator().manual_seed(seed)
    )
    places = [*range(len(SPECIAL)), *(order + len(SPECIAL)).tolist()]
    shutil.copytree(folder, out)
    wordpiece(out, [TOKENS[i] for i in places])
    state = load_file(out / "model.safetensors")
    state[ROWS] = state[ROWS][places].contiguous()
    save_file(state, out / "model.safetensors", {"format": "pt"})
    return out


def test_a_union_appends_what_only_others_know(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [*TOKENS, "cat"], added=["[A]"], seed=1)
    mine = [*SPECIAL, "dog", *WORDS, "cat", *LETTERS]
    b = write(tmp_path / "b", mine, added=["[B]"], seed=2)
    out = tmp_path / "out"
    found = merge(out, a, b, policy="union", pad_to=8)
    size = len(TOKENS) + 2
    assert found[ROWS].shape[0] == -(-(size + 2) // 8) * 8
    known = {token: i for i, token in enumerate([*mine, "[B]"])}
    assert torch.equal(found[ROWS][size], rows_of(b)[known["dog"]])
    assert torch.equal(found[ROWS][size + 1], rows_of(b)[known["[B]"]])
    assert ids(out, "the dog [B]") == [2, 5, size, size + 1, 3]
    assert ids(out, "the cat [A]") == ids(a, "the cat [A]")
    assert json.loads((out / "config.json").read_text())["vocab_size"] == found[ROWS].shape[0]
    assert embed(out, ["the dog [B]"]).isfinite().all()


def test_language_heads_line_up_with_embeddings(tmp_path: Path) -> None:
    folders = []
    for name, tokens in (("a", TOKENS), ("b", [*SPECIAL, *LETTERS, "dog", *WORDS])):
        generator = torch.Generator().manual_seed(len(folders))
        folder = tmp_path / name
        wordpiece(folder, tokens)
        shapes = {"model.embed_tokens.weight": (len(tokens), 4), "lm_head.weight": (len(tokens), 4)}
        state = {n: torch.randn(s, generator=generator) for n, s in shapes.items()}
        state["lm_head.bias"] = torch.randn(len(tokens), generator=generator)
        state["model.norm.weight"] = torch.randn(4, generator=generator)
        save_file(state, folder / "model.safetensors")
        config = {
            "model_type": "acme",
            "tie_word_embeddings": False,
            "text_config": {"vocab_size": len(tokens)},
        }
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    a, b = folders
    found = merge(tmp_path / "out", a, b, policy="union", pad_to=1)
    states = [load_file(f / "model.safetensors") for f in folders]
    known = {token: i for i, token in enumerate([*SPECIAL, *LETTERS, "dog", *WORDS])}
    order = [known[token] for token in TOKENS]
    for name in ("model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"):
        assert found[name].shape[0] == len(TOKENS) + 1
        both = [states[0][name], states[1][name][order]]
        assert_combined(found[name][: len(TOKENS)], both, [0.5, 0.5])
        assert torch.equal(found[name][-1], states[1][name][known["dog"]])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["text_config"]["vocab_size"] == len(TOKENS) + 1


def bpe(folder: Path, merges: Sequence[tuple[str, str]], letters: str = "abcdefgh ") -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "</s>", *letters, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, list(merges)))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(folder)
    generator = torch.Generator().manual_seed(len(tokens))
    state = {"embed_tokens.weight": torch.randn(len(tokens), 4, generator=generator)}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "acme", "vocab_size": len(tokens)})
    )
    return folder


def test_a_union_of_bpe_learns_the_merges(tmp_path: Path) -> None:
    a = bpe(tmp_path / "a", [("a", "b"), ("ab", "c")])
    b = bpe(tmp_path / "b", [("d", "e"), ("a", "b"), ("de", "f")])
    out = tmp_path / "out"
    found = merge(out, a, b, policy="union", pad_to=1)["embed_tokens.weight"]
    tokenizer = Tokenizer.read(Checkpoint(out))
    assert tokenizer is not None
    theirs = Tokenizer.read(Checkpoint(b))
    assert theirs is not None
    weights = load_file(b / "model.safetensors")["embed_tokens.weight"]
    for token in ("de", "def"):
        assert torch.equal(found[tokenizer.tokens[token]], weights[theirs.tokens[token]])
    assert ids(out, "abc def") == [tokenizer.tokens["abc"], tokenizer.tokens["def"]]
    assert len(found) == len(tokenizer.tokens)


def unigram(folder: Path, tokens: Sequence[str], added: Sequence[str] = ()) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.Unigram([(t, -float(i)) for i, t in enumerate(tokens)], unk_id=0))
    made.add_special_tokens(list(added))
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token=tokens[0]).save_pretrained(folder)
    size = len(tokens) + len(added)
    generator = torch.Generator().manual_seed(size)
    state = {"embed_tokens.weight": torch.randn(size, 4, generator=generator)}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", "vocab_size": size}))
    return folder


def test_a_union_of_unigrams_keeps_their_scores(tmp_path: Path) -> None:
    a = unigram(tmp_path / "a", ["<unk>", "a", "b", "ab"])
    b = unigram(tmp_path / "b", ["<unk>", "b", "abb", "a"])
    out = tmp_path / "out"
    found = merge(out, a, b, policy="union", pad_to=1)["embed_tokens.weight"]
    entries = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    assert entries[-1] == ["abb", -2.0]
    assert torch.equal(found[4], load_file(b / "model.safetensors")["embed_tokens.weight"][2])
    assert ids(out, "abb") == [4]
    behind = unigram(tmp_path / "c", ["<unk>", "a", "b"], added=["<new>"])
    said = problems(behind, b, policy="union")
    assert "'c' numbers its tokens by their places" in said
    longer = unigram(tmp_path / "d", ["<unk>", "a", "b", "ab"], added=["<new>"])
    merge(tmp_path / "added", a, longer)
    assert ids(tmp_path / "added", "a<new>") == [1, 4]


def test_moved_rows_are_read_from_their_old_positions(tmp_path: Path) -> None:
    table = torch.randn(9, 3)
    save_file({"w": table, "b": table[:, 0].contiguous()}, tmp_path / "x.safetensors")
    specs, _ = read_header(tmp_path / "x.safetensors")
    places = [4, 5, 6, -1, -1, 0, 8, 7, 7, -1, 2]
    expected = torch.stack([table[i] if i >= 0 else torch.zeros(3) for i in places])
    index = array("q", places)
    matrix = TokenRows("w", (11, 3), "float32", origin=specs["w"], index=index)
    vector = TokenRows("b", (11,), "float32", origin=specs["b"], index=index)
    with TensorReader() as reader:
        for start in range(11):
            for end in range(start, 12):
                into = torch.empty(end - start, 3)
                reader.read(matrix, start * 3, into.view(-1))
                assert torch.equal(into, expected[start:end])
        numbers = torch.empty(11)
        reader.read(vector, 0, numbers)
        assert torch.equal(numbers, expected[:, 0])
        raw = bytearray(11 * 3 * 4)
        reader.read_bytes(matrix, 0, memoryview(raw))
        assert torch.equal(torch.frombuffer(raw, dtype=torch.float32).view(11, 3), expected)


def test_rows_of_statistics_are_moved_like_those_of_the_tensor(tmp_path: Path) -> None:
    a, other = write(tmp_path / "a", seed=1), write(tmp_path / "other", seed=2)
    b = shuffled(other, tmp_path / "b", 4)
    told = []
    for folder in (a, b):
        state = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(5)
        values = {n: {"m": torch.rand(t.shape, generator=generator)} for n, t in state.items()}
        place = tmp_path / f"of-{folder.name}"
        place.mkdir()
        models = {"m": hash_model(folder)}
        Statistics(values, models=models, measure="fisher").write(place)
        told.append((FileRef(str(place)), values[ROWS]["m"]))
    given = [MergeInput(f.name, f, fingerprint=hash_model(f)) for f in (a, b)]
    stage = Fisher(statistics=tuple(file for file, _ in told), normalise="none")
    merge_models(
        given,
        strategy=[stage],
        out=tmp_path / "out",
        vocabulary_policy=VocabularyPolicy(policy="union"),
    )
    tokens = Tokenizer.read(Checkpoint(b))
    assert tokens is not None
    order = [tokens.tokens[token] for token in TOKENS]
    first, second = told[0][1], told[1][1][order]
    share = (second.double() + 1e-6) / (first.double() + second.double() + 2e-6)
    found = rows_of(tmp_path / "out")[: len(TOKENS)]
    # From the first model on the way to the second.
    addends = [rows_of(a), rows_of(b)[order], rows_of(a)]
    assert_combined(found, addends, [1, share, -share], roundings=4)
