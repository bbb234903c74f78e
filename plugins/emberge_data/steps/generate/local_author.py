"""Models of transformers on this machine that write text: the options of one, and its replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, ModelRef, Preflight, Workspace

from emberge_data.steps.generate.model_reply import ModelReply

_WRITERS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
# Tokens of a reply, and prompts that run together.
MAX_TOKENS, PROMPTS_AT_ONCE = 100, 8


@dataclass(frozen=True, kw_only=True)
class LocalAuthor:
    """A model of transformers that writes text: encoder and decoder, such as T5, or a causal model.

    It always takes the likeliest token, so a model writes the same text again.
    """

    model: ModelRef

    def list_faults(self, context: Preflight) -> Iterator[str]:
        """Yield why the model cannot write, from its config."""
        from emberge.model_folder import read_object
        from emberge.tensor_names import task_of

        folder = context.whole_model(self.model)
        path = folder / "config.json" if folder is not None else None
        if path is None or not path.is_file():
            return
        task = task_of(read_object(path))
        if task not in _WRITERS:
            yield (
                f"{self.model}: a model {task or 'without a head'} does not write text; name a model with "
                "…ForConditionalGeneration or …ForCausalLM in its config.json"
            )

    @contextmanager
    def opened(self, workspace: Workspace) -> Iterator[OpenAuthor]:
        """Load the model for the duration of the `with` block."""
        with workspace.whole_model(workspace.model(self.model)) as folder:
            yield OpenAuthor(folder, workspace.machine.device)


class OpenAuthor:
    """A loaded model that writes replies."""

    def __init__(self, folder: Path, device: str) -> None:
        from emberge.architectures import quiet_transformers
        from transformers import AutoConfig, AutoTokenizer

        self._device = device
        with quiet_transformers():
            config = AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            self._has_encoder = bool(config.is_encoder_decoder)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, padding_side="left"
            )
            self._model = self._load(folder)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if self._tokenizer.pad_token_id is None:
            raise CheckpointError(
                f"{folder}: its tokenizer has no token to pad with; add a pad_token"
            )

    def _load(self, folder: Path) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        kind: Any = AutoModelForSeq2SeqLM if self._has_encoder else AutoModelForCausalLM
        dtype = "float32" if self._device == "cpu" else "auto"
        model, told = kind.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
        )
        if missing := sorted(told["missing_keys"]):
            raise CheckpointError(
                f"{folder}: has no {missing[0]}, so its text would be random; name a model that writes text"
            )
        return model.to(self._device).eval()

    def write(self, prompts: Sequence[str]) -> list[ModelReply]:
        """Return a reply to each prompt."""
        import torch

        texts = [self._format_prompt(prompt) for prompt in prompts]
        inputs = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            add_special_tokens=not self._tokenizer.chat_template,
        ).to(self._device)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            written = self._model.generate(
                **inputs,
                do_sample=False,
                num_beams=1,
                max_new_tokens=MAX_TOKENS,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        if not self._has_encoder:
            written = written[:, inputs["input_ids"].shape[1] :]
        replies = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return [ModelReply(str(text).encode("utf-8", "replace").decode()) for text in replies]

    def _format_prompt(self, prompt: str) -> str:
        if not self._tokenizer.chat_template:
            return prompt
        message = [{"role": "user", "content": prompt}]
        return str(
            self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        )
