"""Stacked layers: a slice is a merge of its own, on any architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from emberge import load_plugins, parse_recipe, run_recipe
from emberge.cli.main import main
from emberge.tensor_names import shift_layer
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.tolerance import assert_combined

ARCHITECTURES = ("bert", "modernbert", "gemma3")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two siblings of three layers, `a` and `b`."""
    root = tmp_path_factory.mktemp(request.param)
    first = tiny.checkpoint(root / "a", request.param)
    tiny.checkpoint(root / "b", request.param, seed=1, like=first)
    return root


@pytest.fixture(scope="module")
def berts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("berts")
    first = tiny.checkpoint(root / "a")
    for seed, name in enumerate("bc", 1):
        tiny.checkpoint(root / name, seed=seed, like=first)
    return root


def stacked(folder: Path, options: str, out: Path) -> Path:
    """The result of a merge step with these options, whose models lie in `folder`."""
    plugins = load_plugins()
    text = f"steps: {{m: {{merge: {{{options}}}}}}}"
    recipe = parse_recipe(text, plugins, path=folder / "r.yaml")
    return run_recipe(recipe, out, plugins, quiet=True)["m"].path.resolve()


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def layer(name: str) -> int | None:
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    return numbers[0] if numbers else None


def test_slices_of_one_model_are_that_model(family: Path, tmp_path: Path) -> None:
    slices = "slices: [{models: [{model: ./a, layers: [0, 1]}]}, {models: [{model: ./a, layers: [1, 3]}]}]"
    made = stacked(family, f"{slices}, strategy: passthrough", tmp_path / "out")
    found, expected = weights(made), weights(family / "a")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_layers_come_from_where_they_are_taken_and_the_model_loads(
    family: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel

    slices = "slices: [{models: [{model: ./a, layers: [0, 3]}]}, {models: [{model: ./b, layers: [1, 3]}]}]"
    made = stacked(family, f"{slices}, strategy: passthrough", tmp_path / "out")
    found, first, second = (weights(f) for f in (made, family / "a", family / "b"))
    for name, tensor in found.items():
        number = layer(name)
        if number is not None and number >= 3:
            assert torch.equal(tensor, second[shift_layer(name, -2)]), name
        elif number is not None or "embed" in name:
            assert torch.equal(tensor, first[name]), name
        else:
            assert torch.equal(tensor, second[name]), f"{name} closes the last slice"
    config = json.loads((made / "config.json").read_text())
    assert config["num_hidden_layers"] == 5
    kinds = json.loads((family / "a" / "config.json").read_text()).get("layer_types")
    if kinds:
        assert config["layer_types"] == [*kinds, *kinds[1:3]]
    model = AutoModel.from_pretrained(made)
    assert sorted(model.state_dict()) == sorted(n for n in found if n in model.state_dict())
    with torch.no_grad():
        assert model(torch.tensor([[2, 7, 9, 3]])).last_hidden_state.isfinite().all()


def test_layers_of_a_nested_text_trunk_are_counted_there(tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = tiny.checkpoint(tmp_path / "a", "qwen3-vl", sentence_transformer=False)
    before = json.loads((folder / "config.json").read_text())
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    before["text_config"]["layer_types"] = kinds  # a list of the kinds, as in other classes
    (folder / "config.json").write_text(json.dumps(before))
    slices = "slices: [{models: [{model: ./a, layers: [0, 2]}]}, {models: [{model: ./a, layers: [1, 3]}]}]"
    made = stacked(tmp_path, f"{slices}, strategy: passthrough", tmp_path / "out")
    config = json.loads((made / "config.json").read_text())
    changes = {"num_hidden_layers": 4, "layer_types": [*kinds[:2], *kinds[1:]]}
    assert config == {**before, "text_config": {**before["text_config"], **changes}}
    _, report = AutoModel.from_pretrained(made, output_loading_info=True)
    assert not report["missing_keys"]


def test_a_stack_is_a_sentence_transformer_still(berts: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    slices = "slices: [{models: [{model: ./a, layers: [0, 2]}]}, {models: [{model: ./b, layers: [0, 3]}]}]"
    made = stacked(berts, f"{slices}, strategy: passthrough", tmp_path / "out")
    model = SentenceTransformer(str(made), device="cpu")
    assert len(model[0].auto_model.encoder.layer) == 5
    assert model.encode(["open the file"]).shape == (1, 32)


def test_each_slice_has_its_own_models_weights_base_and_strategy(
    berts: Path, tmp_path: Path
) -> None:
    options = """
        strategy: linear,
        slices: [
          {models: [{model: ./a, layers: [0, 2], weight: [1, 0]},
                    {model: ./b, layers: [1, 3], weight: [0, 1]}]},
          {models: [{model: ./b, layers: [2, 3], weight: 0.5, options: {trim: {density: 1}}}],
           base: {model: ./c, layers: [0, 1]}, strategy: {ties: {normalize: false}}}]
    """
    found = weights(stacked(berts, options, tmp_path / "out"))
    a, b, c = (weights(berts / name) for name in "abc")
    for name, tensor in found.items():
        number = layer(name)
        if number == 0 or "embeddings" in name:
            # The weights go from one model to the other over the slice.
            assert_combined(tensor, [a[name]], [1])
        elif number == 1:
            assert_combined(tensor, [b[shift_layer(name, 1)]], [1])
        else:
            base = c[shift_layer(name, -2)] if number == 2 else c[name]
            assert_combined(tensor, [base, b[name], base], [1, 0.5, -0.5])


def test_what_is_measured_over_a_model_is_measured_over_a_slice(
    berts: Path, tmp_path: Path
) -> None:
    """Slices with other models than their neighbours do not share sums."""
    options = """
        strategy: {layer_softmax: {normalise: mean}},
        slices: [
          {models: [{model: ./a, layers: [0, 1]}, {model: ./b, layers: [0, 1]}],
           base: {model: ./c, layers: [0, 1]}},
          {models: [{model: ./a, layers: [1, 3]}, {model: ./b, layers: [1, 3]},
                    {model: ./b, layers: [0, 2]}],
           base: {model: ./c, layers: [1, 3]}}]
    """
    found = weights(stacked(berts, options, tmp_path / "out"))
    assert all(tensor.isfinite().all() for tensor in found.values())


WRONG: dict[str, str] = {
    "slices: [{models: [{model: ./a, layers: [0, 9]}]}], strategy: passthrough": (
        "'./a [0, 9] of slice 0' has layers 0 to 2, and the slice takes [0, 9]"
    ),
    "slices: [{models: [{model: ./a, layers: [2, 2]}]}], strategy: passthrough": (
        "'layers' are [first, end] with the end left out, not [2, 2]"
    ),
    "slices: [{models: [{model: ./a, layers: [0, 2]}, {model: ./b, layers: [0, 1]}]}], strategy: linear": (
        "all 'layers' of a slice must be the same number of layers"
    ),
    "slices: [{models: []}], strategy: linear": "'models' of a slice is empty",
    "strategy: linear": "it takes either 'models' or 'slices', which stack layers of models",
    "models: [./a], slices: [{models: [{model: ./a, layers: [0, 1]}]}], strategy: linear": (
        "it takes either 'models' or 'slices'"
    ),
    "base: ./c, slices: [{models: [{model: ./a, layers: [0, 1]}]}], strategy: linear": (
        "with 'slices' each slice has its own base and weights"
    ),
    "slices: [{models: [{model: ./a}]}], strategy: linear": "needs the option 'layers'",
    "slices: [{models: [{model: ./a, layers: [0, 1], weight: [{filter: mpl, value: 1}, {value: 0}]}]}], "
    "strategy: linear": "the filter 'mpl'",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_slice_is_refused_before_any_work(
    options: str, berts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = berts / "wrong.yaml"
    path.write_text(f"steps:\n  m:\n    merge: {{{options}}}\n")
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:3: " in said
    assert WRONG[options] in said


def test_layers_of_other_shapes_do_not_stack(
    berts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.checkpoint(tmp_path / "wide", intermediate_size=96)
    path = berts / "unlike.yaml"
    one, other = "{model: ./a, layers: [0, 1]}", f"{{model: {tmp_path / 'wide'}, layers: [0, 1]}}"
    slices = f"[{{models: [{one}]}}, {{models: [{other}]}}]"
    path.write_text(f"steps: {{m: {{merge: {{slices: {slices}, strategy: passthrough}}}}}}")
    assert main(["check", str(path)]) == 2
    assert "stack models of one architecture" in capsys.readouterr().err
