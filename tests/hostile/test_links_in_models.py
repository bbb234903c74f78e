"""A model folder's links, pipes and code: what leads out of it, or runs, comes into no result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.errors import EmbergeError
from emberge.model_folder import Checkpoint, copy_model
from emberge_encoder import Layout

from tests.support.json_files import edit
from tests.support.whole import merge

SECRET = "what nobody else may read"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that a model's links lead to."""
    place = tmp_path / "private"
    place.mkdir()
    for name in ("secret", "config.json", "model.safetensors"):
        (place / name).write_text(SECRET)
    return place


@pytest.fixture
def model(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "model"))


def link(place: Path, target: Path | str) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("NOTICE.txt", "nothing there"),
        ("config.json", "config.json"),
        ("model.safetensors", "model.safetensors"),
        ("1_Pooling", "."),
    ],
)
def test_a_link_out_of_a_model_is_refused_before_anything_is_written(
    model: Path, bert: Path, private: Path, tmp_path: Path, name: str, target: str
) -> None:
    link(model / name, private / target)
    with pytest.raises(EmbergeError, match=r"links to .*private.*put a copy"):
        merge(tmp_path / "out", model, bert)
    assert not (tmp_path / "out").exists()
    with pytest.raises(EmbergeError, match="put a copy"):
        copy_model(model, tmp_path / "copy")
    assert not [
        p for p in (tmp_path / "copy").rglob("*") if p.is_file() and SECRET in p.read_text()
    ]


def test_a_link_out_of_a_model_is_refused_where_it_is_loaded(model: Path, private: Path) -> None:
    link(model / "1_Pooling", private)
    with pytest.raises(EmbergeError, match="put a copy"):
        Layout.read(model)


def test_shards_that_an_index_names_may_not_lead_out(model: Path, private: Path) -> None:
    (model / "weights.part").symlink_to(private / "model.safetensors")
    (model / "model.safetensors").unlink()
    content = {"weight_map": {"a": "weights.part"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="put a copy"):
        _ = Checkpoint(model).specs


def test_links_inside_a_model_and_to_it_are_followed(
    model: Path, bert: Path, tmp_path: Path
) -> None:
    (model / "texts").mkdir()
    (model / "texts" / "terms").write_text("mine")
    link(model / "LICENSE", "texts/terms")
    link(tmp_path / "named", model)
    out = merge(tmp_path / "out", tmp_path / "named", bert)
    assert (out / "LICENSE").read_text() == "mine"
    assert not (out / "LICENSE").is_symlink()


@pytest.mark.parametrize("place", ["hub/models--me--m/snapshots/main", "hub/m/snapshots/main"])
def test_blobs_are_a_hub_caches_alone(model: Path, bert: Path, tmp_path: Path, place: str) -> None:
    snapshot = tmp_path / place
    shutil.copytree(model, snapshot)
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir()
    (blobs / "0").write_text("mine")
    link(snapshot / "LICENSE", "../../blobs/0")
    if "models--" in place:
        out = merge(tmp_path / "out", snapshot, bert)
        assert (out / "LICENSE").read_text() == "mine"
        shutil.rmtree(blobs)
        link(blobs, tmp_path)
    with pytest.raises(EmbergeError, match="put a copy"):
        merge(tmp_path / "other", snapshot, bert)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("config.json", os.mkfifo),
        ("LICENSE", os.mkfifo),
        ("tokenizer.json", lambda place: place.symlink_to("/dev/zero")),
    ],
)
def test_pipes_and_devices_are_named_and_not_read(
    model: Path, bert: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    (model / name).unlink(missing_ok=True)
    make(model / name)
    with pytest.raises(EmbergeError, match=rf"{name}: (not a regular file|links to)"):
        merge(tmp_path / "out", model, bert)


def test_a_json_file_beyond_all_bounds_is_refused_by_its_size(
    model: Path, bert: Path, tmp_path: Path
) -> None:
    with (model / "tokenizer_config.json").open("ab") as file:
        file.truncate(65 << 20)
    with pytest.raises(EmbergeError, match=r"tokenizer_config\.json: has .*at most"):
        merge(tmp_path / "out", model, bert)


# ── code ────────────────────────────────────────────────────────────────────────────────────────


def with_code(folder: Path, model_type: str) -> Path:
    """Name code in every file of a folder where a library would look for it."""
    (folder / "modeling_own.py").write_text("raise SystemExit")
    for name, mapped in (
        ("config.json", {"AutoModel": "modeling_own.Own"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["modeling_own.Own", None]}),
    ):
        content = json.loads((folder / name).read_text())
        content |= {"model_type": model_type, "auto_map": mapped}
        (folder / name).write_text(json.dumps(content).replace("auto_map", "auto\\u005fmap"))
    settings = {"max_seq_length": 8, "model_args": {"trust_remote_code": True}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def assert_without_code(folder: Path) -> None:
    assert not list(folder.rglob("*.py"))
    for path in folder.rglob("*.json"):
        content = json.dumps(json.loads(path.read_text()))
        assert "auto_map" not in content, path.name
        assert "trust_remote_code" not in content, path.name


@pytest.mark.parametrize("model_type", ["bert", "emberge_routed"])
def test_a_parents_code_comes_into_no_result(
    model: Path, bert: Path, tmp_path: Path, model_type: str
) -> None:
    other = with_code(Path(shutil.copytree(bert, tmp_path / "other")), model_type)
    assert_without_code(merge(tmp_path / "out", with_code(model, model_type), other))
    copy_model(model, tmp_path / "copy", link=True)
    assert_without_code(tmp_path / "copy")


def test_a_plugins_class_comes_with_the_plugins_code_and_not_with_a_parents(
    model: Path, tmp_path: Path
) -> None:
    from emberge.model_folder import copy_template
    from emberge.plugins import load_plugins
    from emberge_moe import modeling_emberge_routed as own
    from emberge_moe.routed_format import AUTO_MAP

    load_plugins()
    (model / "modeling_emberge_routed.py").write_text("raise SystemExit")
    edit(model, "config.json", model_type="emberge_routed", auto_map=AUTO_MAP)
    copy_template(Checkpoint(model), tmp_path / "out", dtype="float32")
    code = (tmp_path / "out" / "modeling_emberge_routed.py").read_text()
    assert code == Path(str(own.__file__)).read_text()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["auto_map"] == AUTO_MAP


@pytest.mark.parametrize("name", ["nomic-ai/nomic-bert-2048", "somebody/else"])
def test_code_on_the_hub_is_named_for_nomics_mixture_alone(
    model: Path, tmp_path: Path, name: str
) -> None:
    from emberge.model_folder import copy_template

    mapped = {"AutoModel": f"{name}--modeling_hf_nomic_bert.NomicBertModel"}
    edit(model, "config.json", model_type="nomic_bert", num_experts=8, auto_map=mapped)
    copy_template(Checkpoint(model), tmp_path / "out", dtype="float32")
    copied = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ("auto_map" in copied) is (name == "nomic-ai/nomic-bert-2048")
