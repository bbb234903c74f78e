"""The `random_tower` step: a tiny Qwen3-VL or Qwen3-ASR around a text model, its tower drawn at random."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    stable_seed,
)
from emberge.model_folder import Checkpoint, load_tokenizer

# Qwen's own tokens; those of speech models come after those of vision models, so that no id has two.
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_AUDIO = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
_LARGEST = 256  # an image's largest area, in areas of the smallest


@dataclass(frozen=True, kw_only=True)
class RandomTower(Step):
    """Put a tower with random weights on a text model: a Qwen3-VL (`vision`) or a Qwen3-ASR (`audio`).

    The result takes the place of the specialists that BidirLM composes (arXiv:2604.02045) in recipes that run
    without a download. It has the trunk of the text model, so both models are of one family, and has not
    learned anything about images or sound. `vision` and `audio` are the tower's part of config.json, with
    transformers' names; missing values are the defaults of the class, and the size of the projector's output
    is that of the trunk. The special tokens come after the tokenizer's own tokens, so the model's embeddings
    need rows for them.

    Example:
        seeing:
          random_tower:
            model: ./base
            vision:
              depth: 2
              hidden_size: 64
              intermediate_size: 128
              num_heads: 4
              num_position_embeddings: 64
              deepstack_visual_indexes: [0]
    """

    produces = "model"

    model: ModelRef
    """A Qwen3, whose trunk and tokenizer the result has."""
    vision: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    seed: WholeNumber | None = None
    """Seed of the tower; by default the recipe's."""

    def __post_init__(self) -> None:
        if (self.vision is None) == (self.audio is None):
            raise ValueError("it takes 'vision' or 'audio', one of them")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The special tokens that the tokenizer gets."""
        return _VISION if self.vision is not None else (*_VISION, *_AUDIO)

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            return
        try:
            checkpoint = Checkpoint(folder)
            self._build(checkpoint, self._load_tokenizer(checkpoint), weights=False)
        except CheckpointError as error:
            yield context.problem(str(error), "model")

    def run(self, workspace: Workspace) -> Artifact:
        import torch

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            tokenizer = self._load_tokenizer(checkpoint)
            with torch.random.fork_rng():
                torch.manual_seed(stable_seed(workspace.seed, "random_tower"))
                built = self._build(checkpoint, tokenizer, weights=True)
            trunk = _load_trunk(checkpoint)
            built.model.language_model.load_state_dict(trunk.state_dict())
        built.save_pretrained(workspace.folder)
        tokenizer.save_pretrained(workspace.folder)
        for name, content in self._make_processor_files(built.config).items():
            text = json.dumps(content, indent=2) + "\n"
            (workspace.folder / name).write_text(text, encoding="utf-8")
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={
                "made_by": "adding a random tower to",
                "model_type": built.config.model_type,
                "parameters": sum(parameter.numel() for parameter in built.parameters()),
                "seed": workspace.seed,
            },
        )

    def _load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        kind = checkpoint.config.get("model_type")
        if kind != "qwen3":
            raise CheckpointError(
                f"{checkpoint.folder}: is a '{kind}', and the towers are those of Qwen3; take a qwen3"
            )
        tokenizer = load_tokenizer(checkpoint.folder)
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.tokens)})
        rows = int(checkpoint.config["vocab_size"])
        if len(tokenizer) > rows:
            raise CheckpointError(
                f"{checkpoint.folder}: has {rows} rows of embeddings, and with {', '.join(self.tokens)} "
                f"there are {len(tokenizer)} tokens; give the text model a vocab_size of that, or more"
            )
        return tokenizer

    def _build(self, checkpoint: Checkpoint, tokenizer: Any, *, weights: bool) -> Any:
        """Return the model, with weights drawn from torch's generator, or on the "meta" device.

        Raises:
            CheckpointError: if transformers refuses the tower.
        """
        import torch

        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in self.tokens}
        try:
            kind, config = self._make_config(dict(checkpoint.config), ids)
            with torch.device("cpu" if weights else "meta"):
                return kind(config)
        except Exception as error:  # each class refuses in its own way
            option = "vision" if self.vision is not None else "audio"
            raise CheckpointError(f"{option}: {str(error).strip().splitlines()[0]}") from error

    def _make_config(self, text: dict[str, Any], ids: Mapping[str, int]) -> tuple[Any, Any]:
        """Return the class of the model and its config object."""
        from transformers import (
            Qwen3ASRConfig,
            Qwen3ASRForConditionalGeneration,
            Qwen3VLConfig,
            Qwen3VLForConditionalGeneration,
        )

        text.pop("architectures", None)
        width, is_tied = text["hidden_size"], bool(text.get("tie_word_embeddings"))
        if self.vision is None:
            asr: Any = Qwen3ASRConfig(
                text_config=text,
                audio_config={"output_dim": width, **(self.audio or {})},
                audio_token_id=ids["<|audio_pad|>"],
                tie_word_embeddings=is_tied,
            )
            return Qwen3ASRForConditionalGeneration, asr
        half_width = int(text["head_dim"]) // 2
        side = (
            half_width * 3 // 8
        )  # height and width, of each 3/8 of the turned pairs, as 20 of 64 in Qwen3-VL
        sections = {"mrope_interleaved": True, "mrope_section": [half_width - 2 * side, side, side]}
        del text["model_type"]
        vl: Any = Qwen3VLConfig(
            text_config={**text, "rope_parameters": {**text["rope_parameters"], **sections}},
            vision_config={"out_hidden_size": width, **self.vision},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
            tie_word_embeddings=is_tied,
        )
        return Qwen3VLForConditionalGeneration, vl

    def _make_processor_files(self, config: Any) -> Mapping[str, Any]:
        """Return the contents of the processors' files by name, as in released specialists."""
        if self.vision is None:
            return {"processor_config.json": {"feature_extractor": _EXTRACTOR, **_ASR}}
        tower = config.vision_config
        smallest = (tower.patch_size * tower.spatial_merge_size) ** 2
        common = {
            "patch_size": tower.patch_size,
            "temporal_patch_size": tower.temporal_patch_size,
            "merge_size": tower.spatial_merge_size,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "size": {"shortest_edge": smallest, "longest_edge": _LARGEST * smallest},
            "processor_class": "Qwen3VLProcessor",
        }
        return {
            "preprocessor_config.json": {
                **common,
                "image_processor_type": "Qwen2VLImageProcessorFast",
            },
            "video_preprocessor_config.json": {
                **common,
                "video_processor_type": "Qwen3VLVideoProcessor",
            },
        }


_ASR = {"processor_class": "Qwen3ASRProcessor"}
_EXTRACTOR = {
    **{"feature_extractor_type": "Qwen3ASRFeatureExtractor", "feature_size": 128},
    **{"hop_length": 160, "n_fft": 400, "sampling_rate": 16000, "chunk_length": 30},
    **{"padding_side": "right", "padding_value": 0.0, "return_attention_mask": True},
    **{"n_window": 50, "min_length": 8000, "dither": 0.0},
}


def _load_trunk(checkpoint: Checkpoint) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(
        str(checkpoint.trunk), local_files_only=True, trust_remote_code=False, dtype="float32"
    )
