"""Files, tensors and figures of compositions and towers, each as a whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, ModelRef
from emberge.model_folder import Checkpoint
from emberge_bidirlm.compose_step import Compose
from emberge_bidirlm.composition import Composition, RopeFrom
from emberge_bidirlm.processors import REPLACED_FILES
from emberge_bidirlm.specialist import Specialist, TowerKind
from safetensors.torch import load_file

from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.json_files import changing
from tests.support.specialists import HEARD, PICTURES, ROPE, SEEN_ROPE, SPECTRA, VISION_IDS
from tests.support.whole import STATES, state_prompts

BOTH: tuple[TowerKind, ...] = ("vision", "audio")
VISION = {
    **{"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4},
    **{"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
}
AUDIO = {
    **{"d_model": 16, "encoder_layers": 1, "encoder_ffn_dim": 24, "encoder_attention_heads": 2},
    "downsample_hidden_size": 8,
}
TRUNK = {
    **{"attention_bias": False, "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "silu"},
    **{"hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48},
    **{"max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 3},
    **{"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": 320},
    **{"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256},
    **{"is_causal": False, "use_cache": False},
}
SEEN_PROCESSORS = {
    "image_processor": {**PICTURES, "image_processor_type": "Qwen2VLImageProcessorFast"},
    "video_processor": {**PICTURES, "video_processor_type": "Qwen3VLVideoProcessor"},
}
SEES = "{%- elif part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
WATCHES = "{%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
HEARS = "{%- elif part.type == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}"


def composition(
    root: Path, kinds: Sequence[TowerKind] = BOTH, rope_from: RopeFrom | None = None
) -> Composition:
    found = {kind: Specialist(kind, Checkpoint(root / kind)) for kind in kinds}
    names = {option: f"./{option}" for option in ("text", *kinds)}
    return Composition(Checkpoint(root / "text"), found, rope_from, names)


def test_a_thinkers_config_is_the_trunks_and_the_towers(models: Path) -> None:
    found = dict(composition(models).files["config.json"])
    seen, heard = found.pop("vision_config"), found.pop("audio_config")
    assert found == {
        "model_type": "qwen3_omni_moe_thinker",
        "architectures": ["Qwen3OmniMoeThinkerModel"],
        "text_config": {
            **TRUNK,
            "rope_parameters": SEEN_ROPE,
            "model_type": "qwen3_omni_moe_text",
            **{"num_experts": 0, "mlp_only_layers": [0, 1, 2]},
        },
        **VISION_IDS,
        **{"audio_token_id": 266, "audio_start_token_id": 264, "audio_end_token_id": 265},
        **{"position_id_per_seconds": 13, "tie_word_embeddings": False},
    }
    own = [Specialist(kind, Checkpoint(models / kind)).tower_config for kind in BOTH]
    del own[1]["max_position_embeddings"]
    assert seen == {**own[0], "model_type": "qwen3_omni_moe_vision_encoder"}
    audio = {"model_type": "qwen3_omni_moe_audio_encoder", "max_source_positions": 1500}
    assert heard == {**own[1], **audio}


@pytest.mark.parametrize(
    ("kind", "inner", "outer", "rope"),
    [
        ("vision", "qwen3_vl_text", "Qwen3VLModel", SEEN_ROPE),
        ("audio", "qwen3", "Qwen3ASRModel", ROPE),
    ],
)
def test_one_specialists_config_has_the_trunk_of_the_text_model(
    kind: TowerKind, inner: str, outer: str, rope: dict[str, Any], models: Path
) -> None:
    own = json.loads((models / kind / "config.json").read_text())
    assert composition(models, [kind]).files["config.json"] == {
        **own,
        "architectures": [outer],
        "text_config": {**TRUNK, "model_type": inner, "rope_parameters": rope},
    }


@pytest.mark.parametrize(
    ("kinds", "processors", "parts"),
    [
        (
            BOTH,
            {
                "processor_class": "Qwen3OmniMoeProcessor",
                **SEEN_PROCESSORS,
                "feature_extractor": {
                    **SPECTRA,
                    "feature_extractor_type": "WhisperFeatureExtractor",
                },
            },
            SEES + WATCHES + HEARS,
        ),
        (["vision"], {"processor_class": "Qwen3VLProcessor", **SEEN_PROCESSORS}, SEES + WATCHES),
        (["audio"], {"processor_class": "Qwen3ASRProcessor", "feature_extractor": HEARD}, HEARS),
    ],
)
def test_processors_and_template_read_what_the_specialists_read(
    kinds: list[TowerKind], processors: dict[str, Any], parts: str, models: Path
) -> None:
    files = composition(models, kinds).files
    assert list(files) == ["config.json", "processor_config.json", "chat_template.jinja"]
    assert files["processor_config.json"] == processors
    assert files["chat_template.jinja"] == (
        "{%- for message in messages %}"
        "{%- if message.content is string %}{{- message.content }}"
        "{%- else %}{%- for part in message.content %}"
        "{%- if part.type == 'text' %}{{- part.text }}"
        f"{parts}{{%- endif %}}{{%- endfor %}}{{%- endif %}}{{%- endfor %}}"
    )


def test_a_spectrum_has_the_towers_bands_and_a_mask(place: Path) -> None:
    with changing(place / "audio" / "processor_config.json") as content:
        del content["feature_extractor"]["return_attention_mask"]
        del content["feature_extractor"]["dither"]
        content["feature_extractor"]["feature_size"] = 80
    found = composition(place).files["processor_config.json"]["feature_extractor"]
    assert (found["feature_size"], found["return_attention_mask"]) == (128, True)
    assert "dither" not in found


@pytest.mark.parametrize("inside", ["extra_special_tokens", "model_specific_special_tokens", ""])
def test_marks_are_those_that_the_tokenizers_config_names(inside: str, place: Path) -> None:
    path = place / "audio" / "tokenizer_config.json"
    content = {key: v for key, v in json.loads(path.read_text()).items() if "audio" not in key}
    content.pop("extra_special_tokens", None)
    content.pop("model_specific_special_tokens", None)
    marks: dict[str, Any] = {"audio_bos_token": "<|vision_start|>"}
    content |= {inside: marks} if inside else marks
    path.write_text(json.dumps(content))
    found = Specialist("audio", Checkpoint(place / "audio")).tokens
    assert found["audio_bos_token"] == "<|vision_start|>"
    assert found["audio_eos_token"] == "<|audio_end|>"


def test_a_specialist_without_a_tokenizer_is_refused(place: Path) -> None:
    (place / "vision" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"vision: has no tokenizer\.json"):
        _ = Specialist("vision", Checkpoint(place / "vision")).tokens


def test_a_composed_folder_has_no_file_of_a_text_models_own_processor(place: Path) -> None:
    for name in REPLACED_FILES:
        (place / "text" / name).write_text("{}")
    bench = Bench(place / "run")
    refs: dict[str, Any] = {kind: ModelRef(str(place / kind)) for kind in ("text", *BOTH)}
    artifact = Compose(**refs).run(bench)
    replaced = {
        *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
        *("chat_template.json", "chat_template.jinja"),
    }
    left = {name for name in replaced if (bench.folder / name).exists()}
    assert left == {"processor_config.json", "chat_template.jinja"}
    settings = (bench.folder / "tokenizer_config.json").read_text()
    names = {
        **Specialist("vision", Checkpoint(place / "vision")).tokens,
        **Specialist("audio", Checkpoint(place / "audio")).tokens,
    }
    assert json.loads(settings).items() >= names.items()
    assert settings == json.dumps(json.loads(settings), indent=2)
    reads = json.loads((bench.folder / "sentence_bert_config.json").read_text())
    assert {"text", "image", "audio"} <= {*reads["modality_config"]}
    towers = {kind: Specialist(kind, Checkpoint(place / kind)).tower for kind in BOTH}
    weights = load_file(bench.folder / "model.safetensors")
    assert artifact.parents == tuple(one.text for one in refs.values())
    assert artifact.made_by == "composing"
    assert artifact.details == {
        "composed": {
            "class": "Qwen3OmniMoeThinkerModel",
            "rope_theta": 1e6,
            "towers": {
                kind: {
                    "of": refs[kind].text,
                    "tensors": len(tower),
                    "parameters": sum(spec.elements for spec in tower.values()),
                }
                for kind, tower in towers.items()
            },
            "parameters": sum(tensor.numel() for tensor in weights.values()),
            "mrope_section": [2, 1, 1],
            "new_tokens": {
                **{"<|vision_start|>": 260, "<|vision_end|>": 261, "<|image_pad|>": 262},
                **{"<|video_pad|>": 263, "<|audio_start|>": 264, "<|audio_end|>": 265},
                "<|audio_pad|>": 266,
            },
        },
    }


# ── every step that builds a checkpoint ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", STATES)
def test_facts_that_only_a_specialist_states_are_ignored_with_a_warning(
    state: str, models: Path, tmp_path: Path
) -> None:
    """The text model gives prompts by its role; heads, licences and prompts of a specialist are named."""
    folders = {kind: shutil.copytree(models / kind, tmp_path / kind) for kind in ("text", *BOTH)}
    state_prompts(state, folders["text"], folders["vision"])
    for name in ("colbert_linear.pt", "LICENSE"):
        (folders["audio"] / name).write_text(name)
    refs: dict[str, Any] = {kind: ModelRef(str(folder)) for kind, folder in folders.items()}
    found = list(Compose(**refs).check(Glance()))
    assert {problem.severity for problem in found} == {"warning"}
    lines = [str(problem) for problem in found]
    assert any("{'query'" in line for line in lines) == (state in ("only second", "differ"))
    for name in ("colbert_linear.pt", "LICENSE"):
        assert any(name in line and "audio" in line for line in lines)
