"""JSON Schemas of components and their options.

Where a value may have several forms, its kind (mapping, list, other) decides which schema it is held to. An
editor can so name the misspelt option, and not only state that none of all forms fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emberge.contracts import TASK_KINDS, StepRef
from emberge.options import forms
from emberge.options.forms import Form, Option, find_first_option, find_kinds
from emberge.options.option_docs import document_options
from emberge.plugins import Component, Plugins

Schema = dict[str, Any]
_VARIABLE = {"$ref": "#/$defs/variable"}


class SchemaWriter:
    """The writer of schemas of components and nested mappings, each written once as a definition."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self._records: dict[type, str] = {}
        self.definitions: dict[str, Schema] = {
            "variable": {
                "type": "string",
                "pattern": r"\$",
                "description": "$variable of a foreach, or text with one in it",
            }
        }

    def _define(self, name: str, write: Callable[[], Schema]) -> Schema:
        """Return a reference to the definition, which is written on first use and may refer to itself."""
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name].update(write())
        return {"$ref": f"#/$defs/{name}"}

    def write_components_by_name(self, *contracts: type) -> dict[str, Schema]:
        """Map each name of a component of the contracts to the schema of its options."""
        return {name: self._write_options(c) for name, c in self._map_by_name(contracts).items()}

    def _map_by_name(self, contracts: tuple[type, ...]) -> dict[str, Component]:
        by_name: dict[str, Component] = {}
        for name, components in self.plugins.of(*find_kinds(contracts)).items():
            if len(components) == 1:
                by_name[name] = components[0]
            by_name |= {component.full_name: component for component in components}
        return by_name

    def _write_options(self, component: Component) -> Schema:
        """Return the schema of a component's given options: a mapping, the first option's value, or null."""
        name = f"{component.kind}.{component.plugin}.{component.name}".replace(" ", "_")
        links = getattr(component.type, "links", None) or (component.type,)
        mapping = self._define(name, lambda: self._write_mapping(component, component.summary))
        value = _join_schemas(self._write_first_value(links), {"type": "null"})
        return {**_join_by_type(value, mapping), "description": component.summary}

    def _write_first_value(self, owners: tuple[type, ...]) -> Schema:
        """Return the schema of the value that stands for the first option of the classes."""
        first = find_first_option(*owners)
        return self._write_form(first.form) if first else _VARIABLE

    def _write_mapping(self, owner: Component | type, description: str) -> Schema:
        """Return the schema of a mapping of options, each with its documentation and default."""
        options = document_options(owner, self.plugins)
        schema: Schema = {
            "type": "object",
            "description": description,
            "properties": {option.name: self._write_option(option) for option in options},
            "additionalProperties": False,
        }
        required = [option.name for option in options if option.required]
        return {**schema, "required": required} if required else schema

    def _write_option(self, option: Option) -> Schema:
        doc = {"description": option.doc} if option.doc else {}
        default = {} if option.required else {"default": option.default}
        return {**self._write_form(option.form), **doc, **default}

    def _write_component(self, form: forms.OneComponent) -> Schema:
        """Return the schema of one component of these contracts: `name`, or `name: {options}`."""
        return _join_by_type(
            self._write_name(form.contracts), self._write_named_options(form.contracts, most=1)
        )

    def _write_several_components(self, form: forms.SeveralComponents) -> Schema:
        """Return the schema of a component, a list of components or, if unordered, a mapping by name."""
        part = self._write_component(forms.OneComponent(form.contracts))
        mapping = part["then"] if form.is_ordered else self._write_named_options(form.contracts)
        return _join_by_type(self._write_name(form.contracts), mapping, part)

    def _write_name(self, contracts: tuple[type, ...]) -> Schema:
        """Return the schema of a component's name, or of a text with a variable."""

        def write() -> Schema:
            named = self._map_by_name(contracts)
            summaries = [component.summary for component in named.values()]
            names = {"enum": list(named), "enumDescriptions": summaries}
            return {"if": {"type": "string", "pattern": r"\$"}, "then": {}, "else": names}

        return self._define(f"{_join_names(contracts)}.name", write)

    def _write_named_options(self, contracts: tuple[type, ...], most: int | None = None) -> Schema:
        """Return the schema of at most `most` components of these contracts, by name with their options."""

        def write() -> Schema:
            return {
                "type": "object",
                "if": {"propertyNames": {"pattern": r"^\$"}},
                "then": {"minProperties": 1, "maxProperties": 1},
                "else": {
                    "properties": self.write_components_by_name(*contracts),
                    "additionalProperties": False,
                    **({} if most is None else {"maxProperties": most}),
                },
            }

        return self._define(_join_names(contracts) + ("" if most else ".together"), write)

    def _write_form(self, form: Form) -> Schema:
        """Return the schema of a form's values; any of them may be a `$variable`."""
        match form:
            case forms.OneComponent():
                return self._write_component(form)
            case forms.SeveralComponents():
                return self._write_several_components(form)
            case forms.Record(owner):
                return self._write_record(owner)
            case forms.ByData(item):
                return self._write_by_data(item)
            case forms.Maybe(item):
                return {"if": {"type": "null"}, "then": {}, "else": self._write_form(item)}
            case forms.Many(item):
                value = self._write_form(item)
                return _join_by_type(value, items=value)
            case forms.Either():
                return _join_schemas(*(self._write_form(one) for one in form.forms))
            case _:
                schema = self._write_plain(form)
                any_text = not schema or schema.get("type") == "string"
                return schema if any_text else _join_schemas(schema, _VARIABLE)

    def _write_plain(self, form: Form) -> Schema:
        match form:
            case forms.Value():
                limits = form.limits.schema() if form.limits else {}
                return {"type": _TYPES[form.type], **limits}
            case forms.Choice(values):
                return {"enum": list(values)}
            case forms.PathForm():
                return {"type": "string"}
            case forms.Ref():
                is_step = issubclass(form.type, StepRef)
                return {"type": "string", "pattern": r"^\$" if is_step else "."}
            case forms.Schedule():
                return _build_schedule_schema(form)
            case forms.Fixed(items):
                count = {"minItems": len(items), "maxItems": len(items)}
                return {
                    "type": "array",
                    "prefixItems": [self._write_form(item) for item in items],
                    **count,
                }
            case forms.Table(item):
                return {"type": "object", "additionalProperties": self._write_form(item)}
            case _:
                return {}

    def _write_record(self, owner: type) -> Schema:
        """Return the schema of a nested dataclass: a mapping of its fields, or its first field's value."""
        if owner not in self._records:
            names = [recorded.__name__ for recorded in self._records]
            count = names.count(owner.__name__)
            self._records[owner] = f"{owner.__name__}.{count + 1}" if count else owner.__name__
        summary = (owner.__doc__ or "").partition("\n")[0]
        mapping = self._define(self._records[owner], lambda: self._write_mapping(owner, summary))
        return _join_by_type(self._write_first_value((owner,)), mapping)

    def _write_by_data(self, item: Form) -> Schema:
        """Return the schema of a value, or of `{default: …, by_task: …, by_dataset: …}`."""
        value = self._write_form(item)
        tasks = dict.fromkeys(TASK_KINDS, value)
        properties: Schema = {
            "default": value,
            "by_task": {"type": "object", "properties": tasks, "additionalProperties": False},
            "by_dataset": {"type": "object", "additionalProperties": value},
        }
        return {
            "if": {"type": "object", "anyOf": [{"required": [key]} for key in properties]},
            "then": {"properties": properties, "additionalProperties": False},
            "else": value,
        }


def _join_names(contracts: tuple[type, ...]) -> str:
    return "-or-".join(contract.__name__ for contract in contracts)


def _join_by_type(
    value: Schema, mapping: Schema | None = None, items: Schema | None = None
) -> Schema:
    """Return the schema of a mapping, a list of `items`, or a value of another kind."""
    if items is not None:
        array = {"type": "array", "items": items}
        value = {"if": {"type": "array"}, "then": array, "else": value}
    if mapping is None:
        return value
    return {"if": {"type": "object"}, "then": mapping, "else": value}


def _join_schemas(*schemas: Schema) -> Schema:
    return {} if {} in schemas else {"anyOf": list(schemas)}


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _build_schedule_schema(form: forms.Schedule) -> Schema:
    number: Schema = {"type": "number"}
    if form.within:
        number |= {"minimum": form.within[0], "maximum": form.within[1]}
    number = _join_schemas(number, _VARIABLE)
    values = _join_schemas(number, {"type": "array", "items": number, "minItems": 1})
    entry = {
        "type": "object",
        "properties": {"filter": {"type": "string"}, "value": values},
        "required": ["value"],
        "additionalProperties": False,
    }
    return _join_schemas(values, {"type": "array", "items": entry, "minItems": 1})
