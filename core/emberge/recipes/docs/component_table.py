"""The table of components that `emberge list` prints: by kind, one line per component."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from emberge.errors import PluginError, suggest
from emberge.plugins import KINDS, Component, Plugins
from emberge.recipes.docs.describe import describe_clash, sort_components
from emberge.wording import plural

# The distribution whose components are listed without naming their plugin.
_OWN_DISTRIBUTION = "emberge"
_NARROWEST = 40


def list_components(
    plugins: Plugins,
    words: Sequence[str] = (),
    *,
    kind: str | None = None,
    width: int | None = None,
) -> str:
    """Return the components by kind as a table, one line each.

    Only components that have every one of `words` in their name, kind or documentation are listed and, if
    `kind` is not None, only components of this kind. Lines are cut to `width` characters, unless it is None.

    Raises:
        PluginError: if the kind does not exist, or no component has the words.
    """
    if kind is not None and kind not in KINDS:
        hint = suggest(kind, KINDS) or f"; kinds: {', '.join(KINDS)}"
        raise PluginError(f"there is no kind '{kind}'{hint}")
    of_kind = [c for c in sort_components(plugins) if kind in (None, c.kind)]
    listed = [component for component in of_kind if _has_words(component, words)]
    if words and not listed:
        hint = suggest(words[0], [c.name for c in of_kind]) or "; `emberge list` names all"
        raise PluginError(
            f"no component has '{' '.join(words)}' in its name or documentation{hint}"
        )
    return "\n".join(_format_table(listed, plugins, width))


def _has_words(component: Component, words: Sequence[str]) -> bool:
    text = "\n".join((component.kind, component.full_name, component.doc)).casefold()
    return all(word.casefold() in text for word in words)


def _format_table(
    components: Sequence[Component], plugins: Plugins, width: int | None
) -> Iterator[str]:
    # A name that two plugins use is written with its plugin.
    names = [c.full_name if describe_clash(c, plugins) else c.name for c in components]
    name_width = max(map(len, names), default=0)
    last_kind = None
    for component, name in zip(components, names, strict=True):
        if component.kind != last_kind:
            yield from [""] if last_kind else []
            yield plural(component.kind).capitalize()
            last_kind = component.kind
        is_clear = component.source.distribution == _OWN_DISTRIBUTION or name != component.name
        plugin_mark = "" if is_clear else f" ({component.plugin})"
        start = f"  {name:<{name_width}}  "
        summary = component.summary
        if width is not None:
            left = max(width, _NARROWEST) - len(start) - len(plugin_mark)
            summary = textwrap.shorten(summary, max(left, 2), placeholder=" …")
        yield f"{start}{summary}{plugin_mark}".rstrip()
