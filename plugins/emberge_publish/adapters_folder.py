"""Check and write a folder with one base and several adapters, which can be switched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from emberge import Artifact, CheckpointError, ModelRef, Preflight, Problem, StepRef, Workspace
from emberge.contracts import Model, TrainingDetails
from emberge.files import write_json, write_text
from emberge.merging import MergeInput, Tokenizer, build_result, describe_base, open_model
from emberge.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    Checkpoint,
    ModelPair,
    read_object,
    read_settings,
)
from emberge.results import OutFolder, find_adapted_base, read_artifact
from emberge.tensor_files import read_header
from emberge.tensor_names import PEFT_PREFIX
from emberge.wording import hide_folders, to_markdown
from emberge_evaluate import read_scores

_FOLDER, _SETTINGS = "adapters", "config_sentence_transformers.json"
_DORA = ".lora_magnitude_vector"
# What load_adapter reads and set_adapter switches; biases and modules saved whole would stay switched on.
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?[AB](?:\.weight)?")
# Prompts that encode_query and encode_document take by themselves; a model without them has empty ones.
_IMPLIED_PROMPTS = dict.fromkeys(("query", "document", "passage", "corpus"), "")
_COPIED_FILES = (ADAPTER_WEIGHTS, "LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")
_WHOLE = "'{}' is a whole model; train it with `lora`, or make an adapter of it by extract_lora"


def check_adapters(adapters: Mapping[str, ModelRef], context: Preflight) -> Iterator[Problem]:
    """Yield the problems of putting adapters into one folder; adapters still to be made have none."""
    inputs = []
    for name, reference in adapters.items():
        base, adapter = context.adapted_model(reference), context.adapter(reference)
        inputs.append(MergeInput(name, context.model(base or reference), adapter=adapter))
        if base is None and adapter is None and (reference.step or inputs[-1].folder):
            yield context.problem(_WHOLE.format(reference), f"adapters.{name}")
    for name, text in _find_problems(inputs):
        yield context.problem(text, f"adapters.{name}")


def _find_problems(adapters: Sequence[MergeInput]) -> Iterator[tuple[str, str]]:
    """Yield (name, problem) for each adapter that cannot be switched on, or differs from an earlier one."""
    for one in adapters:
        if not re.fullmatch(r"[A-Za-z]\w*", one.name):
            yield one.name, f"'{one.name}' is no name of an adapter; take letters, digits and _"
        if other := _find_whole_tensor(one):
            yield (
                one.name,
                f"'{one.name}' has more than low-rank factors ({other}), which set_adapter does not switch; "
                f"{'cut it to factors by merge_adapters with a rank, or ' * (_DORA in other)}"
                "publish it merged",
            )
    known: set[str] = set()  # names of adapters that differ from an earlier one, and what was said
    for first, second in combinations([one for one in adapters if one.folder], 2):
        is_known = not known.isdisjoint((first.name, second.name))
        texts = [] if is_known else list(_describe_differences(first, second))
        for text in (one for one in texts if one not in known):
            pair = f"'{first.name}' and '{second.name}'"
            yield second.name, f"{pair}: {text}; publish each in a folder of its own"
        known |= {second.name, *texts} if texts else set()


def _open(member: MergeInput) -> Checkpoint:
    assert member.folder is not None
    return open_model(member.folder, member.adapter)


def _find_whole_tensor(member: MergeInput) -> str | None:
    """Return the name of a tensor that is no factor; None without one, and before a hub's are fetched."""
    if member.folder is None or member.adapter is None:
        return None
    model = _open(member)
    if not model.has_weights or model.find_names() is None:
        return None
    names = read_header(Checkpoint(member.adapter).trunk / ADAPTER_WEIGHTS)[0]
    others = (name for name in names if not _FACTOR.fullmatch(name))
    return min(others, key=lambda name: _DORA in name, default=None)


def _describe_differences(first: MergeInput, second: MergeInput) -> Iterator[str]:
    """Yield what two adapters disagree on: base, modules, tokenizer, lengths, prompts of one name."""
    pair = ModelPair(_open(first), _open(second))
    has_weights = pair.first.has_weights and pair.second.has_weights
    if has_weights and first.folder != second.folder and _hash_base(first) != _hash_base(second):
        yield f"their bases, {first.folder} and {second.folder}, have other weights"
    elif first.adapter and second.adapter:
        yield from (*pair.find_differences(), *pair.find_stated_differences())
        if has_weights and _read_modules(pair.first) != _read_modules(pair.second):
            yield "the weights of their modules after the transformer differ"
        if not pair.same_tokenizer:
            yield from Tokenizer.list_differences(pair.first, pair.second)
        one, other = (
            _IMPLIED_PROMPTS | _read_prompts(model) for model in (pair.first, pair.second)
        )
        for name in [name for name in one if one[name] != other.get(name, one[name])]:
            yield f"the prompt '{name}' is {one[name]!r} in one and {other[name]!r} in the other"


def _hash_base(member: MergeInput) -> object:
    assert member.folder is not None
    return [origin["hash"] for origin in describe_base(Checkpoint(member.folder)).values()]


def _read_modules(model: Checkpoint) -> list[bytes]:
    """Return the contents of the weight files of the modules after the transformer."""
    modules = tuple(filter(None, model.folder_by_prefix))
    files = {spec.file for name, spec in model.specs.items() if name.startswith(modules)}
    return [file.read_bytes() for file in sorted(files)]


def _read_prompts(model: Checkpoint) -> dict[str, str]:
    return dict(read_settings(model.folder).get("prompts") or {})


def write_adapters_folder(
    adapters: Mapping[str, ModelRef], evaluations: Sequence[StepRef], workspace: Workspace
) -> Artifact:
    """Write the base, the prompts of all adapters and each adapter in `adapters/NAME`; return the artifact.

    Raises:
        CheckpointError: if the adapters do not fit together, or sentence-transformers would not load one.
    """
    models = {name: workspace.model(reference) for name, reference in adapters.items()}
    inputs = [MergeInput(n, one.folder, adapter=one.adapter) for n, one in models.items()]
    problems = [_WHOLE.format(adapters[one.name]) for one in inputs if one.adapter is None]
    if problems := problems or [text for _, text in _find_problems(inputs)]:
        raise CheckpointError("\n".join(problems))
    template = _open(inputs[0])
    prompts = {name: text for one in inputs for name, text in _read_prompts(_open(one)).items()}

    def complete(folder: Path) -> None:
        for one in inputs:
            _copy_adapter(one, folder / _FOLDER / one.name)
        settings = read_settings(folder)
        if prompts != (settings.get("prompts") or {}):
            write_json(folder / _SETTINGS, {**settings, "prompts": prompts}, durable=False)
        _require_loadable(folder, folder / template.locate_in_trunk(""))
        results = [workspace.artifact(one) for one in evaluations]
        tables = [
            f"{_explain_columns(models, at)}\n{(at / one.table).read_text('utf-8')}"
            for at, one in results
            if one.kind == "scores"
        ]
        if tables:  # the run puts the section into the card
            write_text(folder / "README.md", "\n".join(["## Scores\n", *tables]), durable=False)

    tensors = [spec.with_name(name) for name, spec in template.specs.items()]
    key = [one.fingerprint for one in models.values()]
    build_result(workspace, tensors, template=template, key=key, complete=complete)
    facts = {n: _describe_adapter(adapters[n], one.artifact) for n, one in models.items()}
    base = find_adapted_base(next(iter(models.values())), next(iter(adapters.values())))
    return Artifact(
        kind="file",
        parents=(base.reference or base.name, *(one.text for one in adapters.values())),
        details={"adapters": facts},
        origin="changed",
        made_by=f"adding the adapters {', '.join(adapters)} to",
        base=base,
    )


def _explain_columns(models: Mapping[str, Model], evaluation: Path) -> str:
    """Return a paragraph on the columns of an evaluation: the folder's adapters, merges, and other models."""
    adapters = {model.name: name for name, model in models.items()}
    scores, out = read_scores(evaluation), OutFolder(evaluation.parent)
    words, others = [], []
    for name in dict.fromkeys(scores.find_column(column).model for column in scores.models):
        artifact = read_artifact(out.locate_link(name))
        if name in adapters:
            words.append(f"{name} is the adapter {adapters[name]} on the base")
        else:
            is_merge = artifact is not None and artifact.origin == "merged"
            others.append(f"the merged model {name}" if is_merge else name)
    if others:
        words.append(f"for comparison, and not in this folder as adapters: {', '.join(others)}")
    return f"Columns: {to_markdown('; '.join(words))}.\n"


def _describe_adapter(reference: ModelRef, artifact: Artifact | None) -> dict[str, Any]:
    """Return how an adapter came about, as far as its artifact states it."""
    facts: dict[str, Any] = {"from": reference.text}
    if artifact is not None and artifact.adapter is not None:
        facts["rank"] = max(artifact.adapter.ranks.values(), default=0)
    if artifact is not None and isinstance(artifact.details, TrainingDetails):
        facts["loss"] = artifact.details.loss
        facts["rows"] = {name: used.rows for name, used in artifact.details.datasets.items()}
        facts["examples_seen"] = artifact.details.examples
    return facts


def _copy_adapter(member: MergeInput, out: Path) -> None:
    """Copy an adapter's weights and licences, and its config without a path of this machine."""
    assert member.adapter is not None
    trunk = Checkpoint(member.adapter).trunk
    out.mkdir(parents=True, exist_ok=True)
    for path in trunk.iterdir():
        if path.name.startswith(_COPIED_FILES):
            shutil.copyfile(path, out / path.name)
    config = read_object(trunk / ADAPTER_CONFIG)
    base = hide_folders(str(config.get("base_model_name_or_path") or ""))
    write_json(out / ADAPTER_CONFIG, {**config, "base_model_name_or_path": base}, durable=False)


def _require_loadable(folder: Path, trunk: Path) -> None:
    """Require that the base's class has the modules that adapters change, and that factors are finite."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        config = AutoConfig.from_pretrained(trunk, local_files_only=True, trust_remote_code=False)
        model = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    modules = {f"{PEFT_PREFIX}{name}" for name, _ in model.named_modules()}
    for path in sorted((folder / _FOLDER).iterdir()):
        if hasattr(torch.nn.ModuleDict, path.name):
            raise CheckpointError(
                f"'{path.name}' is a word of torch; give the adapter another name"
            )
        for key, factor in load_file(path / ADAPTER_WEIGHTS).items():
            match = _FACTOR.fullmatch(key)
            if match is None or match["module"] not in modules or not factor.isfinite().all():
                raise CheckpointError(
                    f"'{path.name}': '{key}' is no finite factor of a module of {type(model).__name__}; "
                    "merge_adapters with this adapter alone gives modules their usual names"
                )
