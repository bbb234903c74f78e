"""Model names of mergekit: `path@revision+adapter@revision`, or a mapping with these parts."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_mergekit.config.reading import ConfigValue, Faults

_UNSUPPORTED = {"override_architecture": "tensors are matched by their names here, so leave it out"}


@dataclass(frozen=True)
class ModelName:
    """Model as mergekit names it: `path@revision+adapter@revision`."""

    path: str
    revision: str | None
    adapter: str | None
    adapter_revision: str | None
    line: int

    @property
    def key(self) -> tuple[str | None, ...]:
        """The value that is equal for two names of one model."""
        return (self.path, self.revision, self.adapter, self.adapter_revision)

    def __str__(self) -> str:
        return self.path + (f"@{self.revision}" if self.revision else "")


def read_model(value: ConfigValue, faults: Faults) -> ModelName | None:
    """Return a model's name, read from text or from mergekit's long form; report a malformed one."""
    if isinstance(value.value, dict):
        return _read_long_model(value, faults)
    text = value.value
    if not isinstance(text, str) or not text.strip():
        faults.add(value.line, f"{value.label} names a model, not {value.words}")
        return None
    model_text, plus, adapter = text.partition("+")
    path, revision = _split_revision(model_text)
    adapter_path, adapter_revision = _split_revision(adapter)
    if "+" in adapter or "@" in (revision or "") or "@" in (adapter_revision or ""):
        faults.add(value.line, f"'{text}' is no model: write path@revision+adapter@revision")
        return None
    if not path or (plus and not adapter_path):
        faults.add(value.line, f"'{text}' is no model: something is missing beside the plus sign")
        return None
    return ModelName(path, revision, adapter_path or None, adapter_revision, value.line)


def _split_revision(text: str) -> tuple[str, str | None]:
    path, at, revision = text.partition("@")
    return path, revision if at else None


def _read_long_model(mapping: ConfigValue, faults: Faults) -> ModelName | None:
    mapping.refuse_unknown(("model", "lora"), faults, _UNSUPPORTED)
    entries = {key: entry for key, entry in mapping.entries.items() if entry.value is not None}
    if "model" not in entries:
        faults.add(mapping.line, f"{mapping.label} needs 'model'")
        return None
    model = _read_path(entries["model"], faults)
    adapter = _read_path(entries["lora"], faults) if "lora" in entries else (None, None)
    if model[0] is None:
        return None
    return ModelName(model[0], model[1], adapter[0], adapter[1], mapping.line)


def _read_path(value: ConfigValue, faults: Faults) -> tuple[str | None, str | None]:
    if isinstance(value.value, str):
        return _split_revision(value.value)
    if not isinstance(value.value, dict):
        faults.add(value.line, f"{value.label} is `{{path, revision}}`, not {value.words}")
        return None, None
    value.refuse_unknown(("path", "revision"), faults)
    path = read_text(value.entries.get("path"), faults)
    if path is None:
        faults.add(value.line, f"{value.label} needs 'path'")
    return path, read_text(value.entries.get("revision"), faults)


def read_text(entry: ConfigValue | None, faults: Faults) -> str | None:
    """Return the entry's text; None if it is missing or, after reporting it, not a text."""
    if entry is None or entry.value is None:
        return None
    if not isinstance(entry.value, str):
        faults.add(entry.line, f"{entry.label} is a text, not {entry.words}")
        return None
    return entry.value
