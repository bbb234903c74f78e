"""Models as mergekit names them: `path@revision+adapter@revision`, or a mapping of the same."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_mergekit.config.reading import ConfigValue, Faults


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


def read_model(found: ConfigValue, faults: Faults) -> ModelName | None:
    """Read a model's name, from text or mergekit's long form."""
    if isinstance(found.value, dict):
        return _read_long_model(found, faults)
    text = found.value
    if not isinstance(text, str) or not text.strip():
        faults.add(found.line, f"{found.label} names a model, not {found.words}")
        return None
    main, plus, adapter = text.partition("+")
    path, revision = _split_revision(main)
    adapter_path, adapter_revision = _split_revision(adapter)
    if "+" in adapter or "@" in (revision or "") or "@" in (adapter_revision or ""):
        faults.add(found.line, f"'{text}' is no model: write path@revision+adapter@revision")
        return None
    if not path or (plus and not adapter_path):
        faults.add(found.line, f"'{text}' is no model: something is missing beside the plus sign")
        return None
    return ModelName(path, revision, adapter_path or None, adapter_revision, found.line)


def _split_revision(text: str) -> tuple[str, str | None]:
    path, at, revision = text.partition("@")
    return path, revision if at else None


def _read_long_model(found: ConfigValue, faults: Faults) -> ModelName | None:
    found.refuse_unknown(("model", "lora", "override_architecture"), faults)
    given = {key: one for key, one in found.entries.items() if one.value is not None}
    if "override_architecture" in given:
        faults.add(
            given["override_architecture"].line,
            "'override_architecture' is not supported; tensors are matched by their names here, "
            "so leave it out",
        )
    if "model" not in given:
        faults.add(found.line, f"{found.label} needs 'model'")
        return None
    model = _read_path(given["model"], faults)
    adapter = _read_path(given["lora"], faults) if "lora" in given else (None, None)
    if model[0] is None:
        return None
    return ModelName(model[0], model[1], adapter[0], adapter[1], found.line)


def _read_path(found: ConfigValue, faults: Faults) -> tuple[str | None, str | None]:
    if isinstance(found.value, str):
        return _split_revision(found.value)
    if not isinstance(found.value, dict):
        faults.add(found.line, f"{found.label} is `{{path, revision}}`, not {found.words}")
        return None, None
    found.refuse_unknown(("path", "revision"), faults)
    path = read_text(found.entries.get("path"), faults)
    if path is None:
        faults.add(found.line, f"{found.label} needs 'path'")
    return path, read_text(found.entries.get("revision"), faults)


def read_text(found: ConfigValue | None, faults: Faults) -> str | None:
    """Return a text, or None where there is none."""
    if found is None or found.value is None:
        return None
    if not isinstance(found.value, str):
        faults.add(found.line, f"{found.label} is a text, not {found.words}")
        return None
    return found.value
