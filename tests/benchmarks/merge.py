"""Merging beside mergekit and sentence-transformers: wall, CPU, memory, and how far the results agree.

    python -m tests.benchmarks.merge [--size 0.6b] [--only linear ties] [--repeat 3]

builds checkpoints of Qwen3-0.6B's shape (596 M parameters, bf16, three shards; `--size small` has 8 layers
and a small vocabulary; `1.7b` and `4b` have the shapes of these models, 3.4 and 8 GB each; `--models 2` takes
fewer of them), runs the peers in turn, whole processes, and prints the machine and a table. Medians over
`--repeat` interleaved rounds; memory is the peak of RssAnon. Ratios of wall times: "x ours" to emberge's,
"x floor" to that of the floor, which reads all inputs, writes as many bytes as the output has, and does
nothing else (`merge_floor`).
Every run of emberge hashes its inputs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from emberge.devices import count_usable_cores

from tests.benchmarks.measure import Cost, machine_lines, median, run, warm

PYTHON = sys.executable
BIN = Path(PYTHON).parent


@dataclass(frozen=True)
class Method:
    """A method as mergekit and emberge call it: its options for both, and mergekit's for each model."""

    name: str
    mergekit: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """emberge's, beside `each`."""
    each: dict[str, float] = field(default_factory=dict)
    ours: str = ""
    """emberge's name where it is another one."""
    models: int = 4
    base: bool = True
    weighted: bool = True
    random: bool = False

    @property
    def strategy(self) -> dict[str, Any]:
        """The strategy as a recipe of emberge has it."""
        return {self.ours or self.name: {**self.each, **self.options}}


NORMALIZED = {"normalize": True}
HALF = {"density": 0.5}
METHODS = {
    "linear": Method("linear", base=False),
    "slerp": Method(
        "slerp", {"t": 0.5}, {"linear_threshold": 0.9995}, models=2, base=False, weighted=False
    ),
    "nuslerp": Method("nuslerp", models=2, base=False),
    "multislerp": Method("multislerp", {}, {"mode": "projected"}, ours="multi_slerp", base=False),
    "karcher": Method("karcher", {}, {"max_iter": 10, "tol": 1e-5}, base=False, weighted=False),
    "task_arithmetic": Method("task_arithmetic"),
    "model_stock": Method("model_stock", {}, {"clamp": False}, weighted=False),
    "ties": Method("ties", NORMALIZED, each=HALF),
    "dare_ties": Method("dare_ties", NORMALIZED, NORMALIZED, HALF, random=True),
    "dare_ties 1/density": Method(
        "dare_ties",
        NORMALIZED,
        {**NORMALIZED, "rescale_mode": "inverse_density"},
        HALF,
        random=True,
    ),
    "della": Method("della", NORMALIZED, NORMALIZED, HALF, random=True),
    "sce": Method("sce", {"select_topk": 0.5}, {"select_topk": 0.5}, weighted=False),
    "breadcrumbs": Method("breadcrumbs", each={**HALF, "gamma": 0.01}),
}
# Qwen3's sizes: (vocabulary, width, width inside, layers, heads).
SMALL = (8192, 1024, 3072, 8, 16)
FULL = (151936, 1024, 3072, 28, 16)
MIDDLE = (151936, 2048, 6144, 28, 16)
LARGE = (151936, 2560, 9728, 36, 32)
SIZES = {"small": SMALL, "0.6b": FULL, "1.7b": MIDDLE, "4b": LARGE}
PEERS = ["floor", "emberge", "mergekit", "mergekit float32", "st"]
PACKAGES = ("emberge", "torch", "numpy", "mergekit", "sentence-transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    methods = [*METHODS]
    parser.add_argument("--only", nargs="*", default=methods, choices=methods, metavar="METHOD")
    parser.add_argument("--models", type=int, default=4, help="merge at most so many")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, metavar="PEER")
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="emberge-benchmark-"))
    print("\n".join(machine_lines(PACKAGES)), flush=True)
    try:
        compare_all(folder, arguments)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


def compare_all(folder: Path, arguments: argparse.Namespace) -> None:
    """Build the checkpoints, run every method by every peer, and print the table."""
    checkpoints = build(folder / arguments.size, SIZES[arguments.size], arguments.models)
    print(f"{arguments.size}, medians of {arguments.repeat}")
    columns = f"{'wall s':>8}{'CPU s':>8}{'anon MB':>9}{'x ours':>8}{'x floor':>8}"
    print(f"{'method':<20}{'peer':<18}{columns}  agreement", flush=True)
    for name in arguments.only:
        compare(name, checkpoints, folder / "out", arguments)


def compare(name: str, checkpoints: list[Path], out: Path, arguments: argparse.Namespace) -> None:
    """Run one method by every peer in turn, `repeat` times, and print its lines."""
    costs: dict[str, list[Cost]] = {peer: [] for peer in arguments.peers}
    method = METHODS[name]
    used = checkpoints[: method.models + 1]
    for _ in range(arguments.repeat):
        for peer, found in costs.items():
            target = out / peer.replace(" ", "-")
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            warm(used)
            found.append(run(*command(peer, method, used, target)))
    medians = {peer: median(found) for peer, found in costs.items()}
    for peer, cost in medians.items():
        agreement = ""
        if peer not in ("emberge", "floor") and "emberge" in medians and not method.random:
            agreement = agree(out / "emberge", out / peer.replace(" ", "-"))
        print(
            f"{name:<20}{peer:<18}{cost.wall:8.2f}{cost.cpu:8.2f}{cost.anonymous / 1e6:9.0f}"
            f"{ratio(cost, medians.get('emberge'))}{ratio(cost, medians.get('floor'))}  {agreement}",
            flush=True,
        )
    shutil.rmtree(out)


def ratio(cost: Cost, to: Cost | None) -> str:
    """How many times as long as another a run took; a blank without the other."""
    return f"{cost.wall / to.wall:8.2f}" if to else " " * 8


def command(
    peer: str, method: Method, checkpoints: list[Path], target: Path
) -> tuple[list[str], dict[str, str]]:
    """The command line of a peer, and its environment."""
    base, *models = checkpoints
    environment = {
        "OMP_NUM_THREADS": str(count_usable_cores()),
        "HF_HUB_OFFLINE": "1",
        "EMBERGE_HASH_CACHE": "never",  # a first merge of these models
    }
    if peer == "floor":
        used = [*models, base] if method.base else models
        words = ["-m", "tests.benchmarks.merge_floor", str(target), *map(str, used)]
        return [PYTHON, *words], environment
    config = target.parent / f"{target.name}.yaml"
    if peer == "emberge":
        entries = [
            {"model": str(m), "weight": 1.0 / len(models)} if method.weighted else str(m)
            for m in models
        ]
        step: dict[str, Any] = {"models": entries, "strategy": method.strategy}
        if method.base:
            step["base"] = str(base)
        config.write_text(yaml.safe_dump({"steps": {"merged": {"merge": step}}}))
        return [
            str(BIN / "emberge"),
            "run",
            str(config),
            "--out",
            str(target),
            "--quiet",
        ], environment
    if peer == "st":
        return [PYTHON, "-c", st_script(method, base, models, target)], environment
    config.write_text(
        yaml.safe_dump(mergekit_config(method, base, models, peer.endswith("float32")))
    )
    return [str(BIN / "mergekit-yaml"), str(config), str(target), "--quiet"], environment


def mergekit_config(
    method: Method, base: Path, models: list[Path], float32: bool
) -> dict[str, Any]:
    """mergekit's YAML for a method."""
    weight = {"weight": 1.0 / len(models)} if method.weighted else {}
    parameters = {**weight, **method.each}
    config = {
        "models": [
            {"model": str(m), "parameters": parameters} if parameters else {"model": str(m)}
            for m in models
        ],
        "merge_method": method.name,
        **({"parameters": method.mergekit} if method.mergekit else {}),
        **({"dtype": "float32", "out_dtype": "bfloat16"} if float32 else {"dtype": "bfloat16"}),
    }
    if method.base:
        config["base_model"] = str(base)
    if method.name == "slerp":
        config["base_model"] = str(models[0])
    return config


def st_script(method: Method, base: Path, models: list[Path], target: Path) -> str:
    """sentence-transformers' own merge, its models loaded in bf16 and merged in float32."""
    parameters: dict[str, Any] = dict(method.mergekit)
    if method.weighted:
        parameters["weight"] = [1.0 / len(models)] * len(models)
    parameters |= {k: [v] * len(models) for k, v in method.each.items()}
    extra = f", base_model={str(base)!r}" if method.base else ""
    return (
        "from sentence_transformers import SentenceTransformer as S\n"
        f"m = S.merge({[str(m) for m in models]!r}, {method.name!r}{extra}, "
        f"parameters={parameters!r}, dtype='float32', out_dtype='bfloat16', "
        "model_kwargs={'dtype': 'bfloat16'})\n"
        f"m.save_pretrained({str(target)!r})\n"
    )


def agree(ours: Path, theirs: Path) -> str:
    """Share of values that differ, and the largest difference relative to the tensor's scale."""
    from safetensors import safe_open

    def index(folder: Path) -> dict[str, Path]:
        found = {}
        for file in sorted(folder.rglob("*.safetensors")):
            if ".work" not in file.parts:
                with safe_open(file, "pt") as opened:
                    found |= {name.removeprefix("model."): (file, name) for name in opened.keys()}  # noqa: SIM118
        return found

    mine, other = index(ours), index(theirs)
    differing = total = 0
    worst = 0.0
    for name, (file, key) in other.items():
        if name not in mine:
            continue
        with safe_open(file, "pt") as b, safe_open(mine[name][0], "pt") as a:
            x, y = a.get_tensor(mine[name][1]).float(), b.get_tensor(key).float()
        differing += int((x != y).sum())
        total += x.numel()
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)))
    share = 100 * differing / max(total, 1)
    return f"{share:.2f} % of values differ, at most {worst:.1e} of the tensor's largest"


def build(folder: Path, sizes: tuple[int, ...], models: int = 4) -> list[Path]:
    """The base and its siblings, bf16 in three shards; kept if they are there already."""
    paths = [folder / name for name in ("base", *(f"model{i}" for i in range(1, models + 1)))]
    missing = [path for path in paths if not (path / "config.json").is_file()]
    if not missing:
        return paths
    _require_room(folder, sizes, len(missing) + 2)  # with an output of two peers
    import torch
    from transformers import Qwen3Config

    from tests.support import tiny

    vocabulary, width, inside, layers, heads = sizes
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inside,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
    for number, path in enumerate(paths):
        if path not in missing:
            continue
        path.mkdir(parents=True, exist_ok=True)
        tiny.write_tokenizer(path)
        generator = torch.Generator().manual_seed(0)
        noise = torch.Generator().manual_seed(number)
        shards: list[dict[str, Any]] = [{}, {}, {}]
        shapes = tensor_shapes(config)
        for position, (name, shape) in enumerate(shapes.items()):
            tensor = torch.randn(shape, generator=generator) * 0.02 + (
                1.0 if len(shape) == 1 else 0.0
            )
            if number:
                tensor += torch.randn(shape, generator=noise) * 0.002
            shards[3 * position // len(shapes)][name] = tensor.bfloat16()
        write_shards(path, shards)
        config.save_pretrained(path)
    return paths


def _require_room(folder: Path, sizes: tuple[int, ...], models: int) -> None:
    """End when the disk is too small, before it is full."""
    vocabulary, width, inside, layers, heads = sizes
    each = 2 * (vocabulary * width + layers * width * (2 * heads * 128 + 2 * 8 * 128 + 3 * inside))
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if models * each > free:
        raise SystemExit(
            f"{folder}: needs {models * each / 1e9:.0f} GB and has {free / 1e9:.0f} GB; "
            "take fewer --models, a smaller --size, or another --folder"
        )


def tensor_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Qwen3ForCausalLM with tied embeddings."""
    d, f, h = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * h, config.num_key_value_heads * h
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d)}
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "self_attn.q_proj.weight": (q, d),
            at + "self_attn.k_proj.weight": (kv, d),
            at + "self_attn.v_proj.weight": (kv, d),
            at + "self_attn.o_proj.weight": (d, q),
            at + "self_attn.q_norm.weight": (h,),
            at + "self_attn.k_norm.weight": (h,),
            at + "mlp.gate_proj.weight": (f, d),
            at + "mlp.up_proj.weight": (f, d),
            at + "mlp.down_proj.weight": (d, f),
            at + "input_layernorm.weight": (d,),
            at + "post_attention_layernorm.weight": (d,),
        }
    return {**shapes, "model.norm.weight": (d,)}


def write_shards(path: Path, shards: list[dict[str, Any]]) -> None:
    """Write shards and their index."""
    from safetensors.torch import save_file

    where, size = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, path / name, {"format": "pt"})
        where |= dict.fromkeys(shard, name)
        size += sum(t.nbytes for t in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
