"""Tiny models with tokenizers of three kinds, of thousands of tokens, and texts of Python's own library."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny

_LIBRARY = Path(os.__file__).parent
KINDS = ("WordPiece", "Unigram", "BPE")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@functools.cache
def library_texts(count: int, *, first: int = 0) -> Sequence[str]:
    """Distinct lines of the library's own modules: code, comments, lines of docstrings, one at a time."""
    return tuple(itertools.islice(_distinct_lines("*.py"), first, first + count))


def _distinct_lines(pattern: str) -> Iterator[str]:
    known: set[str] = set()
    for path in sorted(_LIBRARY.glob(pattern)):
        for line in path.read_text("utf-8", errors="ignore").splitlines():
            text = line.strip()
            if len(text) > 3 and text not in known:
                known.add(text)
                yield text


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """Write texts as the rows of a data set."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@functools.cache
def _trained(kind: str) -> str:
    """A tokenizer trained on packages of the library, and on words in other scripts."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    texts = [*itertools.islice(_distinct_lines("*/*.py"), 12_000), *library_texts(2_000)]
    texts += ["слово и дело", "今天的会议", "λόγος και έργο", "naïve café über"] * 20
    if kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=3_000,
            special_tokens=["<s>", "<pad>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=3_000, special_tokens=[*SPECIAL], unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def _write_tokenizer(folder: Path, kind: str) -> int:
    """Write a tokenizer of a kind as transformers does; return its size."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    if kind == "WordPiece":
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        ):
            shutil.copy(tiny.minilm() / name, folder / name)
        return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    tokenizer = Tokenizer.from_str(_trained(kind))
    first, last = ("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if kind == "Unigram" else "$A </s>",
        special_tokens=[first, last],
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    if kind == "Unigram":
        names |= {"unk_token": "<unk>", "mask_token": "<mask>"}  # an added token behind the pieces
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)
    fast.save_pretrained(folder)
    return len(fast)


def trimmable(
    folder: Path, kind: str, *, seed: int = 0, head: bool = False, **changes: Any
) -> Path:
    """Write a tiny random model with a tokenizer of a kind: BERT, XLM-R or Qwen3."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    size = _write_tokenizer(folder, kind)
    torch.manual_seed(seed)
    config = _config(kind, size, changes)
    loader = {
        (True, "BPE"): transformers.AutoModelForCausalLM,
        (True, "Unigram"): transformers.AutoModelForMaskedLM,
        (True, "WordPiece"): transformers.AutoModelForMaskedLM,
    }.get((head, kind), transformers.AutoModel)
    model = loader.from_config(config)
    with torch.no_grad():
        for value in model.parameters():  # biases and norms too
            value.add_(0.05 * torch.randn_like(value))
    model.save_pretrained(folder)
    if not head:
        pooling = "last" if kind == "BPE" else "mean"
        tiny.write_modules(folder, 32, pooling=pooling)
    return folder


def _config(kind: str, size: int, changes: dict[str, Any]) -> Any:
    from transformers import BertConfig, Qwen3Config, XLMRobertaConfig

    common: dict[str, Any] = {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        **changes,
    }
    if kind == "WordPiece":
        return BertConfig(max_position_embeddings=64, pad_token_id=0, **common)
    if kind == "Unigram":
        return XLMRobertaConfig(
            max_position_embeddings=66, bos_token_id=0, pad_token_id=1, eos_token_id=2, **common
        )
    return Qwen3Config(
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **{**common, "vocab_size": -(-size // 64) * 64, **changes},
    )
