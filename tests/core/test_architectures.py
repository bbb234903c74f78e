"""A plugin's model class is known in every process to checks, trainings, merges and evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from emberge import PluginError, Plugins, hookimpl
from emberge.architectures import Architecture, find_config_class, read_model_types
from emberge.cli.main import main
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder

from tests.support import architecture_plugin, tiny
from tests.support.commands import environment, python
from tests.support.places import ROOT
from tests.support.training_data import retrieval

HEAVY = "{'torch', 'transformers', 'tests.support.tiny_architecture'}"
PLUGIN = Path(architecture_plugin.__file__)
RECIPE = """\
seed: 1
steps:
  members:
    foreach: {{draw: [1]}}
    train:
      model: {model}
      data: [{{path: {data}, task: retrieval}}]
      sampler: [{{bagging: {{ratio: 0.6, draw: $draw}}}}, {{batch_shuffle: {{batch_size: 7}}}}]
      loss: infonce
      max_steps: 3
      learning_rate: 1.0e-2
  merged:
    merge: {{models: [$members, {model}]}}
  scored:
    evaluate:
      models: [$members, $merged]
      evaluators: {{mean_loss: {{}}}}
"""


def write_mixer(folder: Path, seed: int = 0) -> Path:
    """A tiny model of the plugin's class in the layout of SentenceTransformers."""
    from tests.support.tiny_architecture import MixerConfig, MixerModel

    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    torch.manual_seed(seed)
    MixerModel(MixerConfig(vocab_size=size)).save_pretrained(folder)
    tiny.write_modules(folder, 16)
    return folder


@pytest.fixture(scope="module")
def mixer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixer(tmp_path_factory.mktemp("models") / "mixer")


@pytest.fixture(scope="module")
def recipe(mixer: Path) -> Path:
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(30).rows]
    data = mixer.with_name("pairs.jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = mixer.with_name("recipe.yaml")
    path.write_text(RECIPE.format(model=mixer, data=data))
    return path


def test_tables_of_transformers_are_read_from_their_source() -> None:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    # A few types are added to the table by other lines of the source.
    assert {"bert", "xlm-roberta", "qwen3"} < read_model_types("CONFIG_MAPPING_NAMES")
    assert read_model_types("CONFIG_MAPPING_NAMES") < {*CONFIG_MAPPING_NAMES}
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    assert read_model_types("MODEL_FOR_MASKED_LM_MAPPING_NAMES") == {*masked}


def test_check_accepts_a_plugins_model_type_and_names_an_unknown_one(
    recipe: Path, capsys: pytest.CaptureFixture[str], mixer: Path
) -> None:
    assert main(["check", str(recipe), "--plugin", str(PLUGIN)]) == 0
    said = capsys.readouterr()
    assert "acme_mixer" not in said.out + said.err
    # In a process of its own, to which nobody has registered the model.
    words = ("-m", "emberge", "check", str(recipe))
    done = python(*words, env=environment(PYTHONPATH=str(ROOT)), fails=True)
    assert f"{mixer}/config.json" in done.stderr
    assert "'acme_mixer', and no plugin" in done.stderr


def test_a_saved_model_embeds_the_same_and_loads_its_head(mixer: Path) -> None:
    Plugins().register(architecture_plugin, "architecture_plugin")
    encoder = TextEncoder().load(mixer, device="cpu", dtype="float32")
    texts = ["sort a list", "the weather of a bank", "open"]
    found = torch.from_numpy(TextEmbedder(encoder).embed(texts))
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from tests.support.tiny_architecture import MixerModel

    given = AutoTokenizer.from_pretrained(mixer)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = MixerModel.from_pretrained(mixer)(given["input_ids"], given["attention_mask"])[0]
    mask = given["attention_mask"][..., None]
    pooled = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    torch.testing.assert_close(found, pooled)
    config = find_config_class("acme_mixer").from_pretrained(mixer)
    assert type(AutoModelForMaskedLM.from_config(config)).__name__ == "MixerForMaskedLM"


def test_registering_the_plugin_imports_neither_torch_nor_its_classes() -> None:
    code = (
        "import sys; from pathlib import Path; from emberge import load_plugins;"
        f"load_plugins([Path({str(PLUGIN)!r})]); print(sorted({HEAVY} & set(sys.modules)))"
    )
    assert python("-c", code, env=environment(PYTHONPATH=str(ROOT))).stdout.strip() == "[]"


def test_code_in_a_models_folder_is_never_run(mixer: Path, tmp_path: Path) -> None:
    Plugins().register(architecture_plugin, "architecture_plugin")
    folder = write_mixer(tmp_path / "model")
    trace = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Mixer: ...\n")
    config = json.loads((folder / "config.json").read_text())
    mapped = {"AutoConfig": "modeling_evil.Mixer", "AutoModel": "modeling_evil.Mixer"}
    for model_type in ("acme_mixer", "acme_unknown"):
        changed = {**config, "model_type": model_type, "auto_map": mapped}
        (folder / "config.json").write_text(json.dumps(changed))
        problems = TextEncoder().describe(folder).problems
        if model_type == "acme_mixer":
            assert problems == ()
            encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
            assert type(encoder.module.trunk).__name__ == "MixerModel", "ours, by its model type"
        else:
            (problem,) = problems
            assert "is not run" in problem
            assert f"{folder}/config.json" in problem
    assert not trace.exists()


ONE = Architecture(config="acme.models:Config", model="acme.models:Model")


def register(plugin: str, **added: object) -> None:
    class Module:
        @staticmethod
        @hookimpl
        def register_architectures() -> object:
            return added

    Plugins().register(Module, plugin)


def test_a_model_type_of_two_plugins_is_refused_with_both_names() -> None:
    register("first", acme_shared=ONE)
    register("first", acme_shared=ONE)  # loaded again, as each run in a process does
    with pytest.raises(PluginError, match=r"plugins 'first' and 'second'.*'acme_shared'.*block"):
        register("second", acme_shared=ONE)


@pytest.mark.parametrize("place", ["acme.models.Model", "acme/models.py:Model"])
def test_a_class_not_written_as_module_and_class_is_refused(place: str) -> None:
    with pytest.raises(PluginError, match=f"'mine': '{place}' .*'module:Class'"):
        register("mine", acme_misplaced=Architecture(config="acme:Config", model=place))


def test_a_value_that_is_no_architecture_names_the_plugin() -> None:
    with pytest.raises(PluginError, match="'acme_other' of plugin 'mine' must be an Architecture"):
        register("mine", acme_other="acme.models:Model")
    register("mine", acme_missing=Architecture(config="no_such_module:C", model="no_such_module:M"))
    with pytest.raises(PluginError, match=r"'acme_missing' of plugin 'mine'.*no_such_module"):
        find_config_class("acme_missing")
    module = architecture_plugin.MODULE
    wrong = Architecture(config=f"{module}:MixerConfig", model=f"{module}:MixerModel")
    register("mine", acme_misnamed=wrong)
    with pytest.raises(PluginError, match=r"'acme_misnamed' of plugin 'mine'.*acme_mixer"):
        find_config_class("acme_misnamed")
    Plugins().register(architecture_plugin, "architecture_plugin")
    find_config_class("acme_mixer")
    with pytest.raises(PluginError, match=r"'acme_mixer' of plugin 'architecture_plugin'.*process"):
        register("architecture_plugin", acme_mixer=ONE)
