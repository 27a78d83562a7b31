"""The docstrings below the fields of a dataclass or pydantic model."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["field_docs"]


def field_docs(kind: Any) -> Mapping[str, str]:
    """The docstring below each field of a class, read from the source. Empty where there is no source."""
    docs: dict[str, str] = {}
    for own in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(own))).body
        except (OSError, TypeError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = text
    return docs
