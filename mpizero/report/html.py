"""Just enough HTML to write a page that cannot be broken by what stands in it: every text is escaped."""

from __future__ import annotations

import html
from typing import final


@final
class Markup(str):
    """Text that is HTML already."""


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """`<name attribute="...">children</name>`; children that are not Markup are escaped. `class_` stands for class."""
    opening = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
                      for key, value in attributes.items())
    inner = "".join(child if isinstance(child, Markup) else html.escape(child) for child in children)
    return Markup(f"<{name}{opening}>{inner}</{name}>")


def void(name: str, /, **attributes: str) -> Markup:
    """An element without an end, as <img>."""
    return Markup(element(name, **attributes).removesuffix(f"</{name}>"))
