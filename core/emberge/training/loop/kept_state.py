"""State that a finished training keeps in its result, from which another training continues.

A folder `training_state` beside the model has the weights after the last step and AdamW's moments, as
safetensors, and one JSON file with the options that the moments depend on. Everything in it is checked, as
the folder may be a stranger's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from emberge.errors import CheckpointError, EmbergeError
from emberge.files import read_json, replace_folder, require_inside, require_regular, write_json
from emberge.tensor_files import TensorSpec, read_header
from emberge.training.fit_options import FitOptions
from emberge.wording import join_some, printable

if TYPE_CHECKING:
    from torch import Tensor

_FACTS = "state.json"
_TENSORS = "tensors.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_COUNTER = "step"
# Largest number of steps that AdamW's counter in float32 counts exactly.
_MOST_STEPS = 2**24
_NAMED = 3


@dataclass(frozen=True)
class KeptState:
    """Facts about the state that a training keeps in its result, or will keep; no tensors.

    `facts` are the optimizer and the options on which its moments depend, as JSON values. `folder` is None
    before the training has run.
    """

    FOLDER: ClassVar[str] = "training_state"
    """Name of the state's folder in a result."""
    facts: Mapping[str, Any]
    folder: Path | None = None

    @classmethod
    def of(cls, options: FitOptions) -> Self:
        """Return the state that a training with these options keeps."""
        return cls(
            {
                "optimizer": "adamw",
                "adam_beta1": options.adam_beta1,
                "adam_beta2": options.adam_beta2,
                "adam_epsilon": options.adam_epsilon,
            }
        )

    @classmethod
    def find(cls, result: Path) -> Self:
        """Return the state in a training's result, without reading its tensors.

        Raises:
            CheckpointError: if the training kept none, or its JSON file cannot be read.
            UnsoundFileError: if a link leads out of the result.
        """
        folder = require_inside(result / cls.FOLDER, result)
        if not (folder / _FACTS).is_file():
            raise CheckpointError(
                f"from_state: {printable(result)} has no {cls.FOLDER}/{_FACTS}: it is no training that kept "
                "its state; write keep_state: true in that training, or leave from_state out"
            )
        return cls(_read_facts(folder), folder)

    def find_problems(self, options: FitOptions) -> Iterator[str]:
        """Yield a problem for each option with which the state's moments were not computed."""
        for name, value in self.of(options).facts.items():
            if (kept := self.facts.get(name)) != value:
                yield (
                    f"from_state: the state is of a training with {name}: {printable(str(kept), 80)}, and "
                    f"this one has {value}; write the same here, or leave from_state out"
                )


def _read_facts(folder: Path) -> Mapping[str, Any]:
    path = folder / _FACTS
    try:
        require_inside(path, folder)
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{printable(path)}: cannot be read as JSON ({error})") from None
    if not isinstance(facts, dict):
        raise CheckpointError(f"{printable(path)}: must be a JSON object")
    return facts


def write_kept_state(folder: Path, tensors: Mapping[str, Tensor], options: FitOptions) -> None:
    """Write whole parameters and moments, named as in a training state, into a new folder.

    Raises:
        EmbergeError: if a value is not finite.
    """
    import torch
    from safetensors.torch import save_file

    def fill(side: Path) -> None:
        save_file({n: t.detach().contiguous() for n, t in tensors.items()}, side / _TENSORS)
        write_json(side / _FACTS, KeptState.of(options).facts, durable=False)

    if wrong := [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]:
        raise EmbergeError(
            f"keep_state: {join_some(wrong, _NAMED)} has values that are not finite after the last step, so "
            "that no training can continue; lower learning_rate, or leave keep_state out"
        )
    replace_folder(folder, fill)


def read_kept_state(
    folder: Path, parameters: Mapping[str, Tensor], options: FitOptions
) -> dict[str, Tensor]:
    """Return the tensors of a kept state, checked against the parameters that shall continue from it.

    Raises:
        CheckpointError: if names, shapes or types differ from those of the parameters and their moments, if
            moments were computed with other options, or if a value is not finite or not possible.
    """
    from safetensors.torch import load_file

    for problem in KeptState(_read_facts(folder)).find_problems(options):
        raise CheckpointError(f"{printable(folder)}: {problem}")
    path = folder / _TENSORS
    try:
        require_regular(require_inside(path, folder), path.stat())
    except OSError as error:
        raise CheckpointError(f"{printable(path)}: cannot be read ({error.strerror})") from None
    specs, _ = read_header(path)
    _require_names(path, set(specs), parameters)
    _require_shapes(path, specs, parameters)
    tensors: dict[str, Tensor] = load_file(path)
    for name, tensor in tensors.items():
        if fault := _find_fault(name, tensor, parameters):
            raise CheckpointError(f"{printable(path)}: {name} {fault}; keep the state again")
    return tensors


def _require_names(path: Path, names: set[str], parameters: Mapping[str, Tensor]) -> None:
    """Require all parameters, and all or none of the moments of each."""
    wanted = set(parameters)
    for name in parameters:
        moments = {f"{key}.{name}" for key in (*_MOMENTS, _COUNTER)}
        wanted |= moments if moments & names else set()
    lacking, unknown = sorted(wanted - names), sorted(names - wanted)
    if lacking or unknown:
        parts = [
            f"{verb} {join_some([printable(name, 80) for name in some], _NAMED)}"
            for verb, some in (("lacks", lacking), ("has in addition", unknown))
            if some
        ]
        raise CheckpointError(
            f"{printable(path)}: {' and '.join(parts)}, so it is of another model, backbone or loss; "
            "continue with those that kept it, or leave from_state out"
        )


def _require_shapes(
    path: Path, specs: Mapping[str, TensorSpec], parameters: Mapping[str, Tensor]
) -> None:
    """Require each tensor's shape and type to be its parameter's; a counter is one number in float32."""
    for name, spec in specs.items():
        key, parameter = _split_name(name, parameters)
        shape = () if key == _COUNTER else tuple(parameter.shape)
        dtype = "float32" if key == _COUNTER else str(parameter.dtype).removeprefix("torch.")
        if (spec.shape, spec.dtype) != (shape, dtype):
            raise CheckpointError(
                f"{printable(path)}: {name} is {spec.dtype} {list(spec.shape)}, and this model's is {dtype} "
                f"{list(shape)}; continue with the model and the backbone that kept it"
            )


def _split_name(name: str, parameters: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    """Return which tensor of a parameter a name is of, "" for its values, and the parameter."""
    if name in parameters:
        return "", parameters[name]
    key, _, parameter = name.partition(".")
    return key, parameters[parameter]


def _find_fault(name: str, tensor: Tensor, parameters: Mapping[str, Tensor]) -> str:
    """Return why a tensor of a state has impossible values; "" if it has none."""
    import torch

    if not torch.isfinite(tensor).all():
        return "has values that are not finite"
    key = _split_name(name, parameters)[0]
    if key == "exp_avg_sq" and (tensor < 0).any():
        return "has means of squares below 0"
    if key == _COUNTER and not (1 <= float(tensor) <= _MOST_STEPS and float(tensor).is_integer()):
        return f"is {float(tensor):g}, which is no number of steps"
    return ""
