"""The JSON Schema of a recipe, with the options of every installed plugin, so that editors can help.

Where a value may have several forms, its kind (mapping, list, other) decides which schema it is held to. An
editor can so name the misspelt option, and not only state that none of all forms fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge.contracts import TASK_KINDS, Step, limits_of
from emberge.plugins import Component, Plugins
from emberge.recipes.docs.option_docs import Documented, document_options
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options.option_forms import Form, first_option, kinds_of
from emberge.recipes.parse.foreach import LOGSPACE, NAME

Schema = dict[str, Any]
_VARIABLE = {"$ref": "#/$defs/variable"}


def recipe_schema(plugins: Plugins) -> Schema:
    """Return the JSON Schema (2020-12) of recipes that use these plugins.

    The schema has every component's options with documentation and defaults, and refuses all other options.
    Every value may be a `$variable`.

    Raises:
        PluginError: if an option's type cannot be found or expressed in a recipe.
    """
    writing = _SchemaWriter(plugins)
    steps = {"type": "object", "minProperties": 1, "additionalProperties": False}
    steps["patternProperties"] = {f"^{NAME}$": writing.step()}
    steps["description"] = "Steps by id; each is `kind: {options}`, with foreach beside the kind."
    seed: Schema = {"type": "integer", "minimum": 0, "default": 0}
    seed["description"] = "What every draw of the recipe follows from."
    name: Schema = {"type": "string", "minLength": 1}
    plugins_needed: Schema = {"anyOf": [name, {"type": "array", "items": name}]}
    plugins_needed["description"] = (
        "Plugins that the recipe needs: files, relative to the recipe, or names of installed plugins."
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "emberge recipe",
        "type": "object",
        "properties": {"seed": seed, "plugins": plugins_needed, "steps": steps},
        "patternProperties": {"^x-": {}},
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": writing.definitions,
    }


class _SchemaWriter:
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

    def define(self, name: str, write: Callable[[], Schema]) -> Schema:
        """Return a reference to the definition, which is written on first use and may refer to itself."""
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name].update(write())
        return {"$ref": f"#/$defs/{name}"}

    def record_name(self, owner: type) -> str:
        """Return the definition's name for a nested dataclass: its class name, numbered if shared."""
        if owner not in self._records:
            equal_name_count = sum(
                recorded_class.__name__ == owner.__name__ for recorded_class in self._records
            )
            self._records[owner] = (
                f"{owner.__name__}.{equal_name_count + 1}" if equal_name_count else owner.__name__
            )
        return self._records[owner]

    # ── components ──────────────────────────────────────────────────────────────────────────────

    def components_by_name(self, contracts: tuple[type, ...]) -> dict[str, Component]:
        """Map every name that a recipe may use to a component that follows the contracts."""
        by_name: dict[str, Component] = {}
        for name, components in self.plugins.of(*kinds_of(contracts)).items():
            if len(components) == 1:
                by_name[name] = components[0]
            by_name |= {component.full_name: component for component in components}
        return by_name

    def step(self) -> Schema:
        """Return the schema of a step: `kind: {options}`, with `foreach` at the same level."""
        kinds = {
            name: self.given_options(c) for name, c in self.components_by_name((Step,)).items()
        }
        values = {"type": "array", "minItems": 1}
        logspace_schema = {
            "type": "object",
            "properties": {LOGSPACE: {"type": "array", "minItems": 3, "maxItems": 3}},
            "required": [LOGSPACE],
            "additionalProperties": False,
            "description": "[first, last, count]: numbers at equal ratios, with four digits.",
        }
        column_schema = _join_choices(values, logspace_schema)
        product = {"type": "object", "minProperties": 1, "additionalProperties": column_schema}
        row = {"type": "object", "minProperties": 1}
        rows = {"type": "array", "minItems": 1, "items": row}
        foreach = {
            "description": "{a: [values], b: [values]} for the product, or a list of rows {a: value}.",
            **_join_choices(product, rows),
        }
        return {
            "type": "object",
            "properties": {"foreach": foreach, **kinds},
            "additionalProperties": False,
            "if": {"required": ["foreach"]},
            "then": {"minProperties": 2, "maxProperties": 2},
            "else": {"minProperties": 1, "maxProperties": 1},
        }

    def given_options(self, component: Component) -> Schema:
        """Return the schema of a component's given options: a mapping, the first option's value, or null."""
        name = f"{component.kind}.{component.plugin}.{component.name}".replace(" ", "_")
        reference = self.define(
            name,
            lambda: self.options(document_options(component, self.plugins), component.summary),
        )
        cases = _Cases(mappings=(reference,), others=({"type": "null"},))
        first = _find_short_form(component)
        if first is not None:
            cases += _Cases.of(self.form(first)).without_mappings()
        return {**cases.schema(), "description": component.summary}

    def options(self, options: list[Documented], description: str) -> Schema:
        """Return the schema of a mapping of options."""
        schema: Schema = {
            "type": "object",
            "description": description,
            "properties": {option.name: self.option(option) for option in options},
            "additionalProperties": False,
        }
        required = [option.name for option in options if option.required]
        return {**schema, "required": required} if required else schema

    def option(self, option: Documented) -> Schema:
        """Return the schema of one option with its documentation and default."""
        schema = dict(self.form(option.form, option.within))
        if option.doc:
            schema["description"] = option.doc
        if not option.required:
            schema["default"] = option.default
        return schema

    def part(self, contracts: tuple[type, ...]) -> Schema:
        """Return the schema of one component of these contracts: `name`, or `name: {options}`."""
        name = "-or-".join(contract.__name__ for contract in contracts)
        word = self.define(f"{name}{_WORD}", lambda: self.component_name(contracts))
        mapping = self.define(name, lambda: self.named_options(contracts, most=1))
        return _Cases(mappings=(mapping,), others=(word,)).schema()

    def component_name(self, contracts: tuple[type, ...]) -> Schema:
        """Return the schema of a component's name, or of a text with a variable."""
        named = self.components_by_name(contracts)
        return {
            "if": {"type": "string", "pattern": r"\$"},
            "then": {},
            "else": {
                "enum": list(named),
                "enumDescriptions": [component.summary for component in named.values()],
            },
        }

    def named_options(self, contracts: tuple[type, ...], most: int | None = None) -> Schema:
        """Return the schema of at most `most` components of these contracts, by name with their options."""
        components = self.components_by_name(contracts)
        limit = {} if most is None else {"maxProperties": most}
        return {
            "type": "object",
            "if": {"propertyNames": {"pattern": r"^\$"}},
            "then": {"minProperties": 1, "maxProperties": 1},
            "else": {
                "properties": {name: self.given_options(c) for name, c in components.items()},
                "additionalProperties": False,
                **limit,
            },
        }

    # ── forms ───────────────────────────────────────────────────────────────────────────────────

    def form(self, form: Form, within: tuple[float, float] | None = None) -> Schema:
        """Return the schema of a form's values; any of them may be a `$variable`."""
        if isinstance(form, forms.Schedule):
            return _join_choices(_schedule_schema(within), _VARIABLE)
        schema = _FORMS[type(form)](self, form)
        any_text = not schema or schema.get("type") == "string" or isinstance(form, forms.Part)
        return schema if any_text else _join_choices(schema, _VARIABLE)

    def parts(self, form: forms.Parts) -> Schema:
        """Return the schema of a component, a list of components or, if unordered, a mapping by name."""
        part = self.part(form.contracts)
        cases = _Cases.of(part) + _Cases(lists=({"type": "array", "items": part, "minItems": 1},))
        if not form.ordered:
            # Defined once under a name, since the component may contain components of the same
            # kind.
            name = "-and-".join(contract.__name__ for contract in form.contracts)
            together = self.define(f"{name}.together", lambda: self.named_options(form.contracts))
            cases = cases.without_mappings() + _Cases(mappings=(together,))
        return cases.schema()

    def record(self, form: forms.Record) -> Schema:
        """Return the schema of a nested dataclass: a mapping of its fields, or its first field's value."""
        owner = form.type
        options = document_options(owner, self.plugins)
        summary = (owner.__doc__ or "").partition("\n")[0]
        reference = self.define(self.record_name(owner), lambda: self.options(options, summary))
        cases = _Cases(mappings=(reference,))
        first = _find_first_form(owner)
        if first is not None:
            cases += _Cases.of(self.form(first)).without_mappings()
        return cases.schema()

    def by_data(self, form: forms.ByData) -> Schema:
        """Return the schema of a value, or of `{default: …, by_task: …, by_dataset: …}`."""
        item = self.form(form.item)
        tasks = dict.fromkeys(TASK_KINDS, item)
        by_data_schema: Schema = {
            "type": "object",
            "properties": {
                "default": item,
                "by_task": {"type": "object", "properties": tasks, "additionalProperties": False},
                "by_dataset": {"type": "object", "additionalProperties": item},
            },
            "additionalProperties": False,
            "minProperties": 1,
        }
        cases = _Cases.of(item)
        if cases.mappings:
            is_by_data = {"anyOf": [{"required": [key]} for key in by_data_schema["properties"]]}
            by_data_schema = {
                "type": "object",
                "if": is_by_data,
                "then": by_data_schema,
                "else": _any_of(cases.mappings),
            }
        return (cases.without_mappings() + _Cases(mappings=(by_data_schema,))).schema()


def _find_first_form(owner: type) -> Form | None:
    first = first_option(owner)
    return first.form if first else None


def _find_short_form(component: Component) -> Form | None:
    links = getattr(component.type, "links", None) or (component.type,)
    return next((form for form in map(_find_first_form, links) if form is not None), None)


# Ending of the definitions of components' names.
_WORD = ".name"
_KINDS = ("object", "array")


@dataclass(frozen=True)
class _Cases:
    """Alternatives for a value by its kind: for a mapping, for a list, and for all else."""

    mappings: tuple[Schema, ...] = ()
    lists: tuple[Schema, ...] = ()
    others: tuple[Schema, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> _Cases:
        """Sort a schema's alternatives by the kind of value that they are for."""
        if set(schema) == {"anyOf"}:
            return sum(map(cls.of, schema["anyOf"]), cls())
        kind = schema.get("if", {}).get("type")
        if kind in _KINDS and set(schema) == {"if", "then", "else"}:
            return cls.of(schema["then"]) + cls.of(schema["else"])
        name = str(schema.get("$ref", ""))
        if name.endswith(_WORD) or schema == _VARIABLE or {"enum", "const"} & schema.keys():
            return cls(others=(schema,))
        kind = "object" if name else schema.get("type")
        if kind is None:
            return cls((schema,), (schema,), (schema,))
        if kind == "object":
            return cls(mappings=(schema,))
        return cls(lists=(schema,)) if kind == "array" else cls(others=(schema,))

    def __add__(self, other: _Cases) -> _Cases:
        return _Cases(
            self.mappings + other.mappings, self.lists + other.lists, self.others + other.others
        )

    def without_mappings(self) -> _Cases:
        """Return the cases without mappings, which are always read as options."""
        return _Cases((), self.lists, self.others)

    def schema(self) -> Schema:
        """Return the schema in which a value's kind decides which alternatives it is held to."""
        others = self.others
        if any(str(one.get("$ref", "")).endswith(_WORD) for one in others):
            others = tuple(one for one in others if one != _VARIABLE)  # a name may be one
        schema = _any_of(others) if others else None
        for kind, alternatives in (("array", self.lists), ("object", self.mappings)):
            if not alternatives:
                continue
            chosen = _any_of(alternatives)
            schema = (
                chosen if schema is None else {"if": {"type": kind}, "then": chosen, "else": schema}
            )
        return schema if schema is not None else {"not": {}}


def _any_of(choices: Sequence[Schema]) -> Schema:
    different = [c for i, c in enumerate(choices) if c not in choices[:i]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _join_choices(*schemas: Schema) -> Schema:
    """Return the schema of a choice, its alternatives sorted by the kind of value."""
    return {} if {} in schemas else sum(map(_Cases.of, schemas), _Cases()).schema()


def _build_value_schema(_: _SchemaWriter, form: forms.Value) -> Schema:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema = TypeAdapter(form.type).json_schema()
    except PydanticInvalidForJsonSchema:
        return {}
    limits = limits_of(form.type)
    return {} if "$defs" in schema else {**schema, **(limits.schema() if limits else {})}


def _schedule_schema(within: tuple[float, float] | None) -> Schema:
    number: Schema = {"type": "number"}
    if within:
        number |= {"minimum": within[0], "maximum": within[1]}
    number = _join_choices(number, _VARIABLE)
    depth = {"type": "array", "items": number, "minItems": 1}
    entry = {
        "type": "object",
        "properties": {"filter": {"type": "string"}, "value": _join_choices(number, depth)},
        "required": ["value"],
        "additionalProperties": False,
    }
    return _join_choices(number, depth, {"type": "array", "items": entry, "minItems": 1})


def _build_reference_schema(_: _SchemaWriter, form: forms.Ref) -> Schema:
    step_only = {"scores", "report"} <= set(form.type.accepts)
    return {"type": "string", "pattern": r"^\$" if step_only else "."}


def _list_schema(writing: _SchemaWriter, form: forms.Many) -> Schema:
    item = writing.form(form.item)
    return _join_choices(item, {"type": "array", "items": item}) if item else {}


def _build_tuple_schema(writing: _SchemaWriter, form: forms.Fixed) -> Schema:
    items = [writing.form(item) for item in form.items]
    count = len(items)
    return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}


_FORMS: Mapping[type, Callable[[_SchemaWriter, Any], Schema]] = {
    forms.Value: _build_value_schema,
    forms.Choice: lambda _, form: {"enum": list(form.values)},
    forms.Anything: lambda _w, _f: {},
    forms.Folder: lambda _w, _f: {"type": "string"},
    forms.Ref: _build_reference_schema,
    forms.Part: lambda writing, form: writing.part(form.contracts),
    forms.Parts: _SchemaWriter.parts,
    forms.Record: _SchemaWriter.record,
    forms.Many: _list_schema,
    forms.Fixed: _build_tuple_schema,
    forms.Table: lambda writing, form: {
        "type": "object",
        "additionalProperties": writing.form(form.item),
    },
    forms.ByData: _SchemaWriter.by_data,
    forms.Maybe: lambda writing, form: _join_choices(writing.form(form.item), {"type": "null"}),
    forms.Either: lambda writing, form: _join_choices(*(writing.form(one) for one in form.forms)),
}
