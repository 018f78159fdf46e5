"""JSON Schema of every message, made from `adaptive.contracts`: its fields, types, defaults and docstrings.

The log carries msgpack, of which these schemas describe the JSON form: struct fields by name, verify steps as
arrays, keys of partition maps as strings of digits.
"""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any, Final

import msgspec

from adaptive import contracts

DIRECTORY: Final = Path("docs") / "schemas"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """JSON Schema text of every message by file name, `<Message>.v<schema version>.json`."""
    fields = _field_docstrings()
    made = {}
    for message in contracts.Message.__args__:
        schema = msgspec.json.schema(message, ref_template="#/$defs/{name}")
        for name, definition in schema["$defs"].items():
            _describe(definition, fields.get(name, {}))
        document = {"$schema": _DIALECT, "x-encoding": "msgpack", **schema}
        name = f"{message.__name__}.v{contracts.SCHEMA_VERSION}.json"
        made[name] = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return made


def write(directory: Path = DIRECTORY) -> list[Path]:
    """Write every schema to a directory; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in schemas().items():
        paths.append(directory / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def stale(directory: Path = DIRECTORY) -> list[str]:
    """Names of the files that are missing from a directory or differ from the code."""
    return [
        name
        for name, text in schemas().items()
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    ]


def _describe(definition: dict[str, Any], docstrings: dict[str, str]) -> None:
    """Add the docstrings of fields; structs that travel as arrays have theirs in `prefixItems`."""
    for field, text in docstrings.items():
        if field in definition.get("properties", {}):
            definition["properties"][field]["description"] = text
    if "prefixItems" in definition:
        for item, field in zip(definition["prefixItems"], docstrings, strict=False):
            item["title"] = field
            if docstrings[field]:
                item["description"] = docstrings[field]


def _field_docstrings() -> dict[str, dict[str, str]]:
    """The string below each field of each struct, by struct and field; empty where there is none."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(contracts)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        name = ""
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                name = line.target.id
                fields[name] = ""
            elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and name:
                fields[name] = " ".join(str(line.value.value).split())
    # Structs that travel by name get a description only where there is one.
    return {
        struct: texts if struct == "VerifyStep" else {field: text for field, text in texts.items() if text}
        for struct, texts in found.items()
    }
