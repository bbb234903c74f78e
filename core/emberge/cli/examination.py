"""The examination of this machine by `emberge doctor`: hardware, libraries, plugins; without a network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.devices import count_usable_cores, find_accelerator_file, measure_memory
from emberge.errors import EmbergeError, RequirementError
from emberge.interpreter import read_available_memory
from emberge.plugins import load_plugins
from emberge.wording import count_noun, human_size, join_some

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_DISTRIBUTION = "emberge"
PURPOSES = {
    "audio": "sounds that are no WAV files, and mteb's tasks of sound",
    "demo": "the demo's model and corpora, which need no network",
    "export": "ONNX files",
    "pdf": "documents that are PDF files",
    "ray": "steps on a Ray cluster",
    "remote": "merges of models in buckets",
    "report": "charts of lines and trees in reports",
    "tensorboard": "event files of trainings",
}
"""The use of each extra of emberge; those for developers are left out."""


@dataclass
class Examination:
    """The examined machine as lines, and the faults that keep recipes from running on it."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, label: str, texts: Iterable[str]) -> None:
        """Add a line for each text, the first with the label."""
        for number, text in enumerate(texts):
            self.lines.append(f"{'' if number else label:<10}  {text}")

    def raise_faults(self) -> None:
        """Raise the faults as one error.

        Raises:
            RequirementError: if there are faults; has a line for each.
        """
        if self.faults:
            raise RequirementError("\n".join(self.faults))


def examine_machine(plugin_files: Iterable[Path] = ()) -> Examination:
    """Examine versions, torch, GPUs, memory, disk, caches, token, plugins and extras."""
    seen = Examination()
    system = f"Python {platform.python_version()}, {platform.platform()}"
    seen.add("emberge", [f"{importlib.metadata.version(_DISTRIBUTION)}, {system}"])
    torch = _import_torch(seen)
    seen.add("GPUs", _describe_gpus(torch, seen))
    seen.add("processor", [_describe_processor(torch)])
    free = human_size(read_available_memory())
    seen.add("memory", [f"{human_size(measure_memory())}, {free} free"])
    seen.add("disk", [f"{human_size(shutil.disk_usage('.').free)} free in {Path.cwd()}"])
    seen.add("caches", _describe_caches(seen))
    seen.add("token", [_describe_token()])
    seen.add("plugins", _describe_plugins(plugin_files, seen))
    seen.add("programs", [_describe_ffmpeg()])
    required, by_extra = _read_requirements()
    seen.add("libraries", _describe_libraries(required, seen))
    width = max(map(len, by_extra), default=0)
    extras = sorted(by_extra.items())
    seen.add("extras", (_describe_extra(name, needed, width) for name, needed in extras))
    return seen


def _import_torch(seen: Examination) -> Any:
    """Import torch and return it; None, with a fault, if that fails."""
    try:
        import torch
    except Exception as error:  # a broken build fails in many ways: a library, a driver, a symbol
        seen.faults.append(
            f"torch cannot be imported ({error}); pip install torch, the build for your machine"
        )
        return None
    seen.add("torch", [f"{torch.__version__}, {_name_build(torch)}"])
    return torch


def _name_build(torch: Any) -> str:
    if torch.version.cuda:
        return f"for CUDA {torch.version.cuda}"
    return f"for ROCm {torch.version.hip}" if torch.version.hip else "for processors alone"


def _describe_gpus(torch: Any, seen: Examination) -> Iterator[str]:
    count = torch.cuda.device_count() if torch is not None else 0
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        sizes = f"{human_size(total)}, {human_size(free)} free"
        yield f"cuda:{number}  {properties.name}, {sizes}, {_describe_precision(torch, number)}"
    driver = find_accelerator_file()
    if count == 0 and driver is not None and torch is not None:
        seen.faults.append(
            f"there is a GPU driver ({driver}), and torch, {_name_build(torch)}, sees no GPU; install the "
            "build of torch for it, or update the driver"
        )
    if count == 0:
        yield "none: models run on the processor"


def _describe_precision(torch: Any, number: int) -> str:
    with torch.cuda.device(number):
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return "trains in bfloat16" if has_bfloat16 else "trains in float32, as it has no fast bfloat16"


def _describe_processor(torch: Any) -> str:
    text = count_noun(count_usable_cores(), "usable core")
    if torch is not None:
        text += f", {count_noun(torch.get_num_threads(), 'thread')} of torch"
    limit = os.environ.get("OMP_NUM_THREADS")
    return f"{text} (OMP_NUM_THREADS={limit})" if limit else text


# ── caches and token ────────────────────────────────────────────────────────────────────────────


def _describe_caches(seen: Examination) -> Iterator[str]:
    from huggingface_hub.constants import HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE

    hub, cache = Path(HF_HUB_CACHE), _find_emberge_cache()
    repositories = len([*hub.glob("*--*")])
    offline = "; HF_HUB_OFFLINE is set: nothing is downloaded" if HF_HUB_OFFLINE else ""
    yield f"{_describe_folder(hub)}, {count_noun(repositories, 'repository')} of the hub{offline}"
    datasets = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets")
    if datasets.is_dir():
        yield f"{_describe_folder(datasets)}, datasets"
    yield f"{_describe_folder(cache)}, hashes of emberge"
    for folder, variable in ((hub, "HF_HOME"), (cache, "XDG_CACHE_HOME")):
        if not os.access(_find_existing(folder), os.W_OK):
            seen.faults.append(
                f"{folder} cannot be written to; set {variable} to a folder of yours"
            )


def _find_emberge_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emberge"


def _find_existing(folder: Path) -> Path:
    """Return the folder, or the nearest of those around it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _describe_folder(folder: Path) -> str:
    free = human_size(shutil.disk_usage(_find_existing(folder)).free)
    return f"{folder}: {human_size(_measure_folder(folder))}, {free} free"


def _measure_folder(folder: Path) -> int:
    """Return the bytes of the regular files in a folder; links are not followed."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            if not os.path.islink(path) and os.path.exists(path):
                total += os.lstat(path).st_size
    return total


def _describe_token() -> str:
    """Return whether the hub's token is present, without the token."""
    from huggingface_hub import get_token

    hub_token = "present" if get_token() else "none; gated models and uploads need `hf auth login`"
    return f"hub: {hub_token}"


def _describe_plugins(files: Iterable[Path], seen: Examination) -> Iterator[str]:
    try:
        plugins = load_plugins(files)
    except EmbergeError as error:
        seen.faults.append(str(error))
        yield "one cannot be loaded, see below"
        return
    loaded = len(plugins.manager.get_plugins())
    blocked = f"; EMBERGE_BLOCK leaves out {', '.join(plugins.blocked)}" if plugins.blocked else ""
    yield f"{loaded} loaded, {count_noun(len(plugins.components), 'component')}{blocked}"


def _describe_ffmpeg() -> str:
    if shutil.which("ffmpeg"):
        return "ffmpeg: present"
    return "ffmpeg: missing; mteb's tasks of sound need it"


# ── libraries ───────────────────────────────────────────────────────────────────────────────────


def _read_requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Return what emberge always requires here, and what each extra requires."""
    from packaging.requirements import Requirement

    required: list[Requirement] = []
    by_extra: dict[str, list[Requirement]] = {extra: [] for extra in PURPOSES}
    for text in importlib.metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required.append(requirement)
            continue
        for extra, requirements in by_extra.items():
            if requirement.marker.evaluate({"extra": extra}):
                requirements.append(requirement)
    return required, by_extra


def _find_lacks(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Yield each required library that is missing here, or too old."""
    for requirement in requirements:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is not {requirement.specifier}"


def _describe_libraries(required: list[Requirement], seen: Examination) -> Iterator[str]:
    lacks = [*_find_lacks(required)]
    if lacks:
        names = " ".join(
            f"'{library.name}{library.specifier}'"
            for library in required
            if [*_find_lacks([library])]
        )
        seen.faults.append(f"{join_some(lacks, len(lacks))}; pip install {names}")
    fitting = len(required) - len(lacks)
    yield f"{fitting} of {len(required)} that emberge needs are here in versions that fit"


def _describe_extra(extra: str, requirements: list[Requirement], width: int) -> str:
    lacks = [*_find_lacks(requirements)]
    text = f"{extra:<{width}}  {'missing' if lacks else 'present'}  {PURPOSES[extra]}"
    return f"{text}: pip install '{_DISTRIBUTION}[{extra}]' ({join_some(lacks)})" if lacks else text
