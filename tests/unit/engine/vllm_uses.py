"""Finds, in our source, what it uses of vLLM: imports, overridden methods and inherited attributes."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("adaptive/engine", "adaptive/endpoint")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the packages that may import vLLM, parsed."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, ast.parse(path.read_text())


def imports(tree: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of what is imported from vLLM at run time; name is empty for a whole module."""
    found: set[tuple[str, str]] = set()
    for node in _run_time(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "vllm"}
    return found


def _run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_time(child)


def subclasses() -> Iterator[tuple[type, ast.ClassDef]]:
    """Our classes that derive from one of vLLM's, with their source."""
    for name, tree in modules():
        nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in nodes:
            if not node.bases:
                continue
            found = getattr(importlib.import_module(name), node.name)
            if vllm_bases(found):
                yield found, node


def vllm_bases(found: type) -> list[type]:
    """The bases of a class that are vLLM's."""
    return [base for base in found.__mro__[1:] if base.__module__.split(".")[0] == "vllm"]


def own_methods(node: ast.ClassDef) -> set[str]:
    """Names of the methods a class defines."""
    return {item.name for item in node.body if isinstance(item, ast.FunctionDef)}


def overridden(found: type, node: ast.ClassDef) -> set[str]:
    """Its methods that replace one of vLLM's (dunder methods other than __init__ aside)."""
    return {
        name
        for name in own_methods(node)
        if (name == "__init__" or not name.startswith("__"))
        and any(name in vars(base) for base in vllm_bases(found))
    }


def inherited(node: ast.ClassDef) -> set[str]:
    """Names that a class reads from `self` or `super()` and neither defines nor sets itself."""
    read: set[str] = set()
    declared = own_methods(node)
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute):
            owner = item.value
            of_self = isinstance(owner, ast.Name) and owner.id == "self"
            of_super = isinstance(owner, ast.Call) and ast.unparse(owner) == "super()"
            if of_super or (of_self and isinstance(item.ctx, ast.Load)):
                read.add(item.attr)
            elif of_self:
                declared.add(item.attr)
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        declared |= {target.id for target in targets if isinstance(target, ast.Name)}
    return read - declared - {"__init__"}


def is_function(found: type, name: str) -> bool:
    """Whether an inherited name is a method of vLLM's (and not of torch's or an attribute)."""
    return any(inspect.isfunction(vars(base).get(name)) for base in vllm_bases(found))


def defining(found: type, name: str) -> Any:
    """The vLLM class whose version of a method is used."""
    return next(base for base in vllm_bases(found) if name in vars(base))
