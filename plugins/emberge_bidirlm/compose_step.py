"""The `compose` step: a text encoder, and the towers of a vision and a speech model, made one encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from emberge import Artifact, EmbergeError, ModelRef, Preflight, Problem, Step, Workspace
from emberge.model_folder import Checkpoint

from emberge_bidirlm.composed_class import RopeFrom
from emberge_bidirlm.composition import Composition
from emberge_bidirlm.processors import build_processor_config, list_token_names
from emberge_bidirlm.specialist import Specialist, TowerKind

_TOWER_KINDS: tuple[TowerKind, ...] = ("vision", "audio")
_TORCHVISION_NOTE = (
    "sentence-transformers needs torchvision to open it, for text too, as its processor of images does; "
    "emberge does not"
)


@dataclass(frozen=True, kw_only=True)
class Compose(Step):
    """Make one encoder of text, images and sound: a text trunk with the towers of specialists.

    The step follows BidirLM's omnimodal model (arXiv:2604.02045). `text` is an encoder; in the paper it is
    the merge of a text model's trunk with the trunks of `vision` (a Qwen3-VL) and `audio` (a Qwen3-ASR),
    which a step `merge` with `part: text` makes. Towers and projectors are copied byte for byte.
    Trunks and heads of specialists are not copied.

    With both specialists the result is a dense `qwen3_omni_moe_thinker`; with a single one it has the class
    of that specialist. Plain `AutoModel` loads the result, and SentenceTransformers 6 opens it as one encoder
    for all its inputs. Every token keeps its id; if only a specialist has a token, the embedding of the token
    comes from it. Pooling and prompts are those of the text model; the default pooling is the mean.

    If the text model and the vision model have different bases of rotary positions, `rope_from` chooses one
    of them; without it such models are refused. Positions in images use the vision model's sections.

    The class of transformers for both towers gives slightly different states than Qwen3-ASR at the end of a
    clip if the clip is shorter than a second and alone in its batch, as Qwen3-ASR pads it to whole seconds.
    Its processor differs for clips of less than half a second.

    Example:
        omni:
          compose: {text: ./merged, vision: Qwen/Qwen3-VL-2B-Instruct, audio: Qwen/Qwen3-ASR-1.7B-hf}
    """

    produces = "model"

    text: ModelRef
    """The encoder whose trunk, tokens, pooling and prompts the result has."""
    vision: ModelRef | None = None
    """A Qwen3-VL, for its vision tower."""
    audio: ModelRef | None = None
    """A Qwen3-ASR, for its audio tower."""
    rope_from: RopeFrom | None = None

    def __post_init__(self) -> None:
        if self.vision is None and self.audio is None:
            raise ValueError("it takes 'vision', 'audio' or both beside 'text'")
        if self.rope_from == "vision" and self.vision is None:
            raise ValueError("rope_from: vision needs a 'vision' model")

    @property
    def specialists(self) -> dict[TowerKind, ModelRef]:
        """The models with towers, by kind of input."""
        references = {"vision": self.vision, "audio": self.audio}
        return {kind: references[kind] for kind in _TOWER_KINDS if references[kind] is not None}  # type: ignore[misc]

    @property
    def models(self) -> dict[str, ModelRef]:
        """All models by option, the text model first."""
        references: dict[str, ModelRef] = {"text": self.text}
        return references | {str(kind): reference for kind, reference in self.specialists.items()}

    @property
    def names(self) -> dict[str, str]:
        """The models' names in messages, by option."""
        return {option: reference.text for option, reference in self.models.items()}

    @property
    def _needs_steps(self) -> bool:
        """True if another step makes one of the models, so that `check` cannot compare them."""
        return any(reference.step for reference in self.models.values())

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.vision is not None:
            context.note("opening the result", [_TORCHVISION_NOTE])
        specialists: dict[TowerKind, Specialist] = {}
        for kind, reference in self.specialists.items():
            folder = context.whole_model(reference)
            if folder is None:
                continue
            try:
                specialist = Specialist(kind, Checkpoint(folder))
                _require_processor(specialist)
                specialists[kind] = specialist
            except EmbergeError as error:
                yield context.problem(str(error), kind)
        text = context.whole_model(self.text)
        if text is not None and len(specialists) == len(self.specialists):
            yield from self._check_together(Checkpoint(text), specialists, context)

    def _check_together(
        self, text: Checkpoint, specialists: Mapping[TowerKind, Specialist], context: Preflight
    ) -> Iterator[Problem]:
        try:
            composition = Composition(text, specialists, self.rope_from, self.names)
        except EmbergeError as error:
            yield context.problem(str(error), "text")
            return
        yield from (context.warning(warning, "text") for warning in composition.warnings)
        if composition.tokens.summary:
            context.note("tokenizers", [composition.tokens.summary])

    def run(self, workspace: Workspace) -> Artifact:
        models = {option: workspace.model(model) for option, model in self.models.items()}
        with ExitStack() as stack:
            folders = {
                option: stack.enter_context(workspace.whole_model(model))
                for option, model in models.items()
            }
            specialists = {k: Specialist(k, Checkpoint(folders[k])) for k in self.specialists}
            composition = Composition(
                Checkpoint(folders["text"]), specialists, self.rope_from, self.names
            )
            for warning in composition.warnings if self._needs_steps else ():
                workspace.warn(warning)
            _build(composition, [model.fingerprint for model in models.values()], workspace)
            details = _describe_result(composition)
        return Artifact(
            kind="model",
            size=models["text"].size,
            parents=tuple(dict.fromkeys(self.names.values())),
            details={"composed": details},
            origin="changed",
            made_by="composing",
            warnings=() if self._needs_steps else composition.warnings,
        )


def _require_processor(specialist: Specialist) -> None:
    """Require the tokens and the processor files that a specialist's tower needs."""
    list_token_names({specialist.kind: specialist})
    build_processor_config({specialist.kind: specialist}, "")


def _build(composition: Composition, content: list[str], workspace: Workspace) -> None:
    from emberge.merging import build_result

    build_result(
        workspace,
        [tensor.spec.with_name(tensor.name) for tensor in composition.tensors],
        template=composition.text,
        key=[composition.key, content],
        models={tensor.name: tensor.source for tensor in composition.tensors},
        files=composition.files,
        complete=composition.complete_result,
    )


def _describe_result(composition: Composition) -> dict[str, Any]:
    """Return the artifact's details: class, positions, towers, size and new tokens."""
    towers = {
        kind: {
            "of": composition.model_names[kind],
            "tensors": len(entry.tower),
            "parameters": sum(spec.elements for spec in entry.tower.values()),
        }
        for kind, entry in composition.specialists.items()
    }
    facts: dict[str, Any] = {
        "class": composition.composed_class.architecture,
        "rope_theta": composition.rope["rope_theta"],
        "towers": towers,
        "parameters": sum(tensor.spec.elements for tensor in composition.tensors),
    }
    if composition.rope.get("mrope_section"):
        facts["mrope_section"] = composition.rope["mrope_section"]
    if composition.tokens.new_tokens:
        facts["new_tokens"] = {entry.text: entry.id for entry in composition.tokens.new_tokens}
    return facts
