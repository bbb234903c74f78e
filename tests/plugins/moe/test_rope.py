"""XLM-R with rotary positions: the other weights are unchanged, under the names of transformers' class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import CheckpointError, Model, ModelRef
from emberge.model_folder import Checkpoint
from emberge_encoder import TextEncoder
from emberge_moe.rope_step import Rope, list_rotary_tensors
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.tolerance import EXACT


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """XLM-R with its masked-LM head, as transformers writes it."""
    place = tmp_path_factory.mktemp("masked") / "xlmr"
    return tiny.transformer(place, "AutoModelForMaskedLM", "xlm-roberta", num_hidden_layers=2)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentenceTransformers folder with XLM-R inside."""
    return tiny.checkpoint(tmp_path_factory.mktemp("embedder") / "xlmr", "xlm-roberta")


@pytest.fixture(scope="module")
def turned(masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the step makes of `masked`."""
    return rotary(masked, tmp_path_factory.mktemp("run"))[0]


def rotary(folder: Path, root: Path, **options: Any) -> tuple[Path, Bench, dict[str, Any]]:
    bench = Bench(root)
    bench.many[str(folder)] = [Model("xlmr", folder, "its content")]
    artifact = Rope(model=ModelRef(str(folder)), **options).run(bench)
    return bench.folder, bench, dict(artifact.details)


def loaded(folder: Path, cls: str) -> Any:
    """The model in float64, of which no tensor is missing or left over."""
    model, report = getattr(transformers, cls).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float64
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def without_positions(folder: Path, root: Path) -> Path:
    """The same model with a table of zeros."""
    root.mkdir()
    for file in folder.iterdir():
        (root / file.name).write_bytes(file.read_bytes())
    weights = load_file(root / "model.safetensors")
    weights["roberta.embeddings.position_embeddings.weight"].zero_()
    save_file(weights, root / "model.safetensors", {"format": "pt"})
    return root


def test_a_text_of_one_token_has_the_logits_of_xlmr_without_positions(
    masked: Path, turned: Path, tmp_path: Path
) -> None:
    before = loaded(without_positions(masked, tmp_path / "zeros"), "AutoModelForMaskedLM")
    after = loaded(turned, "AutoModelForMaskedLM")
    assert type(after).__name__ == "JinaEmbeddingsV3ForMaskedLM"
    tokens = torch.arange(5, 40)[:, None]
    with torch.no_grad():
        expected, found = before(tokens).logits, after(tokens).logits
        longer = after(tokens.T).logits
        back = after(tokens.T.flip(1)).logits.flip(1)
    assert torch.allclose(found, expected, rtol=0, atol=EXACT)
    assert not torch.allclose(longer, back, rtol=0, atol=1e-3)  # places count in longer texts


def test_all_weights_except_positions_are_unchanged(masked: Path, turned: Path) -> None:
    before, after = (load_file(one / "model.safetensors") for one in (masked, turned))
    fused = after["roberta.encoder.layers.1.mixer.Wqkv.weight"]
    parts = [
        before[f"roberta.encoder.layer.1.attention.self.{p}.weight"]
        for p in ("query", "key", "value")
    ]
    assert torch.equal(fused, torch.cat(parts))
    gone = before.pop("roberta.embeddings.position_embeddings.weight")
    assert sum(t.numel() for t in after.values()) == sum(t.numel() for t in before.values())
    assert not any(tensor.shape == gone.shape for tensor in after.values())
    assert torch.equal(after["lm_head.dense.weight"], before["lm_head.dense.weight"])


def test_transformers_reads_the_config_and_writes_the_same_names(
    turned: Path, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.from_pretrained(turned)
    assert (config.model_type, config.max_position_embeddings) == ("jina_embeddings_v3", 2048)
    assert config.rope_parameters["rope_theta"] == 10_000
    assert transformers.AutoTokenizer.from_pretrained(turned).model_max_length == 2048
    transformers.AutoModelForMaskedLM.from_pretrained(turned).save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == load_file(turned / "model.safetensors").keys()


def test_sentence_transformers_opens_the_result_with_the_new_length(
    embedder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder, _, _ = rotary(embedder, tmp_path)
    loaded(folder, "AutoModel")
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 2048
    text = " ".join(["data vector"] * 200)  # XLM-R has no position for the last of them
    assert model.tokenize([text])["input_ids"].shape[1] == 402
    encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
    assert encoder.dimension == 32
    assert model.encode([text]).shape == (1, 32)


def test_the_need_to_adapt_is_a_warning_and_in_the_artifact(masked: Path, tmp_path: Path) -> None:
    class Here(Glance):
        def model(self, reference: ModelRef) -> Path:  # type: ignore[override]
            return masked

    (warning,) = Rope(model=ModelRef("./xlmr")).check(Here())
    assert (warning.severity, warning.where) == ("warning", "model")
    assert "mlm" in warning.message
    _, bench, details = rotary(masked, tmp_path)
    assert bench.warnings == [warning.message] == [details["to_be_adapted"]]


def test_a_model_that_is_no_xlmr_is_refused_before_any_work(bert: Path, tmp_path: Path) -> None:
    class Here(Glance):
        def model(self, reference: ModelRef) -> Path:  # type: ignore[override]
            return bert

    (fault,) = Rope(model=ModelRef("./bert")).check(Here())
    assert (fault.severity, fault.where) == ("error", "model")
    assert "'bert'" in fault.message
    with pytest.raises(CheckpointError, match="xlm-roberta"):
        rotary(bert, tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_head_of_another_task_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.transformer(
        tmp_path / "classes",
        "AutoModelForSequenceClassification",
        "xlm-roberta",
        num_hidden_layers=1,
    )
    with pytest.raises(CheckpointError, match=r"classifier\.dense\.weight"):
        list_rotary_tensors(Checkpoint(folder))
