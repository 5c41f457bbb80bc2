"""Builds the documentation from the docstrings."""

import importlib
import importlib.metadata
import pkgutil
import re
from typing import TYPE_CHECKING

from rebracket import lab

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Rebracket"
author = "The Rebracket authors"
copyright = "The Rebracket authors"
version = release = importlib.metadata.version("rebracket")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Rebracket"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "none"  # the docstrings say more: shapes, ranges, units
autodoc_preserve_defaults = True
add_module_names = False
default_role = "code"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Cost", "notes"), ("Source", "references")]

SECTION = re.compile(r"\s*(Args|Returns|Raises|Yields|Example|Examples|Cost|Source|Attributes):\s*$")
SIGN = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")
EVERY = re.compile(r"^<!-- every module of (\S+) -->$", re.MULTILINE)
CLAIM = re.compile(r"^<!-- claim of (\w+) -->$", re.MULTILINE)


def escape(line: str) -> str:
    """Plain text with `code` in backticks as reStructuredText: the signs of the formulas mean themselves."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = re.split(r"(``[^`]*``|`[^`]*`)", line)
    return "".join(part if part.startswith("`") else SIGN.sub(r"\\\g<0>", part) for part in parts)


def is_equation(paragraph: list[str]) -> bool:
    """Whether a paragraph is set apart as a formula: indented, or with a sign and without a full stop."""
    indented = all(line.startswith("    ") for line in paragraph)
    signs = any(sign in paragraph[0] for sign in (" = ", " <= ", " in ["))
    return indented or (signs and not paragraph[-1].rstrip().endswith((".", ":", ",")))


def typeset(lines: list[str]) -> list[str]:
    """The text before the first section, its formulas as literal blocks."""
    done: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        rows = paragraph.strip("\n").split("\n")
        if is_equation(rows):
            done += ["::", "", *(f"    {row.strip()}" for row in rows), ""]
        else:
            done += [*(escape(row) for row in rows), ""]
    return done


def plain_text(app: "Sphinx", kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Reads a docstring as plain text, before its sections are read."""
    first = next((i for i, line in enumerate(lines) if SECTION.match(line)), len(lines))
    lines[:] = [*typeset(lines[:first]), *sections(lines[first:])]
    if kind in ("attribute", "data", "property") and lines:
        # Napoleon takes what is before a colon in the first line for a type.
        lines[:1] = lines[0].replace(": ", ":\n", 1).split("\n")


def sections(lines: list[str]) -> list[str]:
    """The sections of a docstring with the signs of their text escaped; examples stay as they are."""
    done, example = [], False
    for line in lines:
        if match := SECTION.match(line):
            example = match[1].startswith("Example")
        done.append(line if example else escape(line))
    return done


def every_module(app: "Sphinx", docname: str, source: list[str]) -> None:
    """Fills in the modules of an open folder, so that a new file is documented by being there."""
    source[0] = EVERY.sub(lambda match: "\n".join(map(module_block, module_names(match[1]))), source[0])


def quoted_claims(app: "Sphinx", docname: str, source: list[str]) -> None:
    """Quotes the question and the claim of an experiment from its class."""
    source[0] = CLAIM.sub(lambda match: quotation(match[1]), source[0])


def quotation(name: str) -> str:
    experiment = lab.load(name)
    claim = re.sub(r"([][*_`\\<>{}^#|~])", r"\\\1", experiment.claim)
    return f"**{experiment.question}**\n\n> {claim}"


def module_names(folder: str) -> list[str]:
    found = pkgutil.iter_modules(importlib.import_module(folder).__path__, folder + ".")
    return [module.name for module in found if not module.name.endswith(".base")]


def module_block(name: str) -> str:
    title = name.rpartition(".")[2]
    return f"## {title}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n"


def setup(app: "Sphinx") -> None:
    """Connects the readers above."""
    # Before napoleon, which is connected at the usual priority.
    app.connect("autodoc-process-docstring", plain_text, priority=100)
    app.connect("source-read", every_module)
    app.connect("source-read", quoted_claims)
