"""The JSON Schema of a recipe, with the options of every installed plugin, so that editors can help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from emberge.contracts import TASK_KINDS, Step, limits_of
from emberge.plugins import Component, Plugins
from emberge.recipes.docs.option_docs import Documented, document_options
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options.option_forms import Form, first_option, kinds_of
from emberge.recipes.parse.foreach import LOGSPACE, NAME

Schema = dict[str, Any]
_VARIABLE = {"$ref": "#/$defs/variable"}
_NAMED_BY_VARIABLE = {
    "type": "object",
    "patternProperties": {r"^\$": {}},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}


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
        column_schema = {"anyOf": [values, logspace_schema]}
        product = {"type": "object", "minProperties": 1, "additionalProperties": column_schema}
        row = {"type": "object", "minProperties": 1}
        rows = {"type": "array", "minItems": 1, "items": row}
        foreach = {
            "description": "{a: [values], b: [values]} for the product, or a list of rows {a: value}.",
            "anyOf": [product, rows],
        }
        return {
            "type": "object",
            "properties": {"foreach": foreach, **kinds},
            "additionalProperties": False,
            "oneOf": [{"required": [name]} for name in kinds] or [{"not": {}}],
        }

    def given_options(self, component: Component) -> Schema:
        """Return the schema of a component's given options: a mapping, the first option's value, or null."""
        name = f"{component.kind}.{component.plugin}.{component.name}".replace(" ", "_")
        reference = self.define(
            name,
            lambda: self.options(document_options(component, self.plugins), component.summary),
        )
        first = _find_short_form(component)
        choices = [reference, {"type": "null"}]
        if first is not None:
            choices.append(_exclude_mappings(self.form(first)))
        return {"anyOf": choices, "description": component.summary}

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
        """Return a reference to the schema of one component of these contracts."""
        name = "-or-".join(contract.__name__ for contract in contracts)
        return self.define(name, lambda: self.component(contracts))

    def component(self, contracts: tuple[type, ...]) -> Schema:
        """Return the schema of a component: `name`, or `name: {options}`."""
        named = self.components_by_name(contracts)
        words = [{"const": name, "description": c.summary} for name, c in named.items()]
        mapping = {
            "type": "object",
            "properties": {
                name: self.given_options(component) for name, component in named.items()
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        }
        return {"anyOf": [*words, mapping, _VARIABLE, _NAMED_BY_VARIABLE]}

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
        choices = [part, {"type": "array", "items": part, "minItems": 1}]
        if not form.ordered:
            # Defined once under a name, since the component may contain components of the same
            # kind.
            name = "-and-".join(contract.__name__ for contract in form.contracts)
            choices.append(
                self.define(f"{name}.together", lambda: self.parts_by_name(form.contracts))
            )
        return {"anyOf": choices}

    def parts_by_name(self, contracts: tuple[type, ...]) -> Schema:
        """Return the schema of several components with their options, by name."""
        properties = {
            name: self.given_options(c) for name, c in self.components_by_name(contracts).items()
        }
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def record(self, form: forms.Record) -> Schema:
        """Return the schema of a nested dataclass: a mapping of its fields, or its first field's value."""
        owner = form.type
        options = document_options(owner, self.plugins)
        summary = (owner.__doc__ or "").partition("\n")[0]
        reference = self.define(self.record_name(owner), lambda: self.options(options, summary))
        first = _find_first_form(owner)
        return {"anyOf": [reference, _exclude_mappings(self.form(first))]} if first else reference

    def by_data(self, form: forms.ByData) -> Schema:
        """Return the schema of a value, or of `{default: …, by_task: …, by_dataset: …}`."""
        item = self.form(form.item)
        tasks = dict.fromkeys(TASK_KINDS, item)
        by_data_schema = {
            "type": "object",
            "properties": {
                "default": item,
                "by_task": {"type": "object", "properties": tasks, "additionalProperties": False},
                "by_dataset": {"type": "object", "additionalProperties": item},
            },
            "additionalProperties": False,
            "minProperties": 1,
        }
        return _join_choices(item, by_data_schema)


def _find_first_form(owner: type) -> Form | None:
    first = first_option(owner)
    return first.form if first else None


def _find_short_form(component: Component) -> Form | None:
    links = getattr(component.type, "links", None) or (component.type,)
    return next((form for form in map(_find_first_form, links) if form is not None), None)


def _exclude_mappings(schema: Schema) -> Schema:
    """Return the schema without the alternative of a mapping, which is always read as options."""
    return {"allOf": [{"not": {"type": "object"}}, schema]}


def _join_choices(*schemas: Schema) -> Schema:
    """Return the schema of a choice; a schema that is itself a choice is split into its alternatives."""
    choices: list[Schema] = []
    for schema in schemas:
        choices += schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    return {"anyOf": [c for i, c in enumerate(choices) if c not in choices[:i]]}


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
    return _join_choices(item, {"type": "array", "items": item})


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
