"""The `random_model` step: a language model with random weights, the start of a training from nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from emberge import (
    Artifact,
    CheckpointError,
    DataEntry,
    DataError,
    EmbergeError,
    NumberRange,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    make_seed,
    suggest,
)

_SPECIAL_TOKENS = {
    **{"pad_token": "<|pad|>", "bos_token": "<|bos|>"},
    **{"eos_token": "<|eos|>", "mask_token": "<|mask|>"},
}
# All bytes and the special tokens.
_SMALLEST_VOCABULARY = 256 + len(_SPECIAL_TOKENS)
_TOKENIZER_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True, kw_only=True)
class RandomModel(Step):
    """Make a language model with random weights and a tokenizer: the start of a training from nothing.

    Weights are drawn as transformers draws them for the config's class; the same seed always gives the same
    weights. The tokenizer is a byte-level BPE (Sennrich et al., 2016, arXiv:1508.07909) trained on the
    `data`. It has special tokens for the beginning and end of texts, padding and masking, but does not add
    them to texts. The config's number of tokens is set to the tokenizer's. For demos and tests.

    Example:
        start:
          random_model:
            config:
              model_type: qwen3
              hidden_size: 256
              intermediate_size: 768
              num_hidden_layers: 6
              num_attention_heads: 4
              num_key_value_heads: 2
              head_dim: 64
              max_position_embeddings: 512
              tie_word_embeddings: true
            data: {path: ./texts.jsonl, task: text}
            vocabulary: 8192
    """

    produces = "model"

    config: dict[str, Any]
    """The model's config.json with transformers' keys; a missing value is the class's default."""
    data: tuple[DataEntry, ...]
    """Texts on which the tokenizer is trained."""
    vocabulary: Annotated[int, NumberRange(least=_SMALLEST_VOCABULARY, most=2**24)] = 8192
    """Number of tokens of the tokenizer, including all bytes and the special ones."""
    seed: WholeNumber | None = None
    """Seed of the weights; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        yield from check_datasets(context, self.data, show=False).problems
        try:
            _build_model(self._resolve_config(None), weights=False)
        except CheckpointError as error:
            yield context.problem(str(error), "config")

    def run(self, workspace: Workspace) -> Artifact:
        import torch
        from emberge.data import list_texts, load_step_datasets

        datasets = load_step_datasets(workspace, self.data)
        if not any(len(dataset) for dataset in datasets):
            raise DataError("data has no texts to make a tokenizer of")
        tokenizer = _train_tokenizer(list_texts(datasets), self.vocabulary)
        config = self._resolve_config(tokenizer)
        with torch.random.fork_rng():
            torch.manual_seed(make_seed(workspace.seed, "random_model"))
            model = _build_model(config, weights=True)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if limit:
            tokenizer.model_max_length = int(limit)
        model.save_pretrained(workspace.folder)
        tokenizer.save_pretrained(workspace.folder)
        return Artifact(
            kind="model",
            origin="changed",
            made_by="drawing the weights of",
            details={
                "model_type": config["model_type"],
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "vocabulary": len(tokenizer),
                "seed": workspace.seed,
            },
        )

    def _resolve_config(self, tokenizer: Any) -> dict[str, Any]:
        """Return the config with the tokenizer's sizes and ids; without one, with the given vocabulary.

        Raises:
            CheckpointError: if the class lacks an option, or there are fewer rows than tokens.
        """
        config = dict(self.config)
        _refuse_unknown(config)
        size = self.vocabulary if tokenizer is None else len(tokenizer)
        rows = config.setdefault("vocab_size", size)
        if tokenizer is None:
            return config
        if rows < size:
            raise CheckpointError(
                f"config: vocab_size {rows} is less than the tokenizer's {size} tokens; leave it out"
            )
        for name in _TOKENIZER_KEYS:
            config.setdefault(name, getattr(tokenizer, name))
        return config


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    """Refuse a model type or an option that transformers does not know, and would ignore."""
    from transformers import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"config: transformers has no model_type '{kind}'{suggest(kind, list(CONFIG_MAPPING))}"
        )
    config_class = CONFIG_MAPPING[kind]
    names = {*config_class().to_dict(), *config_class.attribute_map, "rope_theta"}
    for name in config:
        if name not in names:
            raise CheckpointError(
                f"config: a model of the type {kind} has no option '{name}'{suggest(name, list(names))}"
            )


def _build_model(config: Mapping[str, Any], *, weights: bool) -> Any:
    """Return the language model of a config, its weights drawn from torch's generator or left on "meta".

    Raises:
        CheckpointError: if no language model can be built from the config.
    """
    import torch

    from emberge_encoder.text.token_head import find_model_loader
    from emberge_encoder.text.trunk_weights import build_config

    folder = Path("config")
    loader = find_model_loader(folder, config)
    try:
        with torch.device("cpu" if weights else "meta"):
            return loader.from_config(
                build_config(folder, config), dtype=torch.float32, trust_remote_code=False
            )
    except EmbergeError:
        raise
    except Exception as error:  # each class refuses in its own way
        raise CheckpointError(f"config: {str(error).strip().splitlines()[0]}") from error


def _train_tokenizer(texts: Iterator[str], size: int) -> Any:
    """Train a byte-pair tokenizer of at most `size` tokens on the texts.

    Words and spaces are split as in GPT-2. No special token is added to a text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(_SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, **_SPECIAL_TOKENS)
