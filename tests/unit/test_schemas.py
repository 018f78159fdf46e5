"""Messages stay readable: their exported schemas, every released byte, and whatever fields may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect
from typer.testing import CliRunner

from adaptive import contracts, schemas
from adaptive.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Callable


DIRECTORY = Path(__file__).parents[2] / schemas.DIRECTORY
MESSAGES: tuple[Any, ...] = contracts.Message.__args__
STEMS = {
    "trace": contracts.TraceRecord,
    "telemetry": contracts.EngineTelemetry,
    "published": contracts.DrafterPublished,
    "policy": contracts.PolicyDecided,
    "tenant": contracts.TenantChanged,
    "erased": contracts.TenantErased,
    "acknowledged": contracts.ErasureAcknowledged,
    "scored": contracts.ArmScored,
}
GOLDEN = [
    (file.stem, name, bytes.fromhex(text))
    for file in sorted(Path(__file__).parent.glob("contracts_v*.json"))
    for name, text in json.loads(file.read_text()).items()
]


def test_committed_schemas_are_those_of_the_code() -> None:
    """After a change of the contracts: `adaptive traces schemas`."""
    assert schemas.stale(DIRECTORY) == []
    assert {path.name for path in DIRECTORY.glob("*.json")} == set(schemas.schemas())


def test_the_command_checks_and_writes(tmp_path: Path) -> None:
    """--check fails with the names of the files until they are written."""
    run = CliRunner().invoke
    command = ["traces", "schemas", "--output", str(tmp_path / "s")]
    missing = run(app, [*command, "--check"])
    assert missing.exit_code == 1
    assert "TraceRecord.v1.json" in missing.stderr
    assert run(app, command).exit_code == 0
    assert run(app, [*command, "--check"]).exit_code == 0
    changed = tmp_path / "s" / "PolicyDecided.v1.json"
    changed.write_text(changed.read_text() + " ")
    stale = run(app, [*command, "--check"])
    assert stale.exit_code == 1
    assert "PolicyDecided.v1.json" in stale.stderr
    assert "TraceRecord" not in stale.stderr


def test_fields_are_described() -> None:
    """The docstrings of fields reach the schema, those of verify steps by position."""
    found = json.loads((DIRECTORY / "TraceRecord.v1.json").read_text())["$defs"]
    assert found["TraceRecord"]["properties"]["created_at"]["description"] == "Unix seconds."
    items = found["VerifyStep"]["prefixItems"]
    assert [item["title"] for item in items] == list(contracts.VerifyStep.__struct_fields__)
    assert items[1]["description"].startswith("Adapter version")


@pytest.mark.parametrize(
    ("version", "name", "data"), GOLDEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_released_byte_decodes_and_fits_its_schema(version: str, name: str, data: bytes) -> None:
    """Of every released schema version, read by this one; and the schema tells the truth about them."""
    message_type: Any = STEMS[name.partition("_")[0]]
    message = contracts.decode(data, message_type)
    assert version.startswith("contracts_v")
    document = json.loads(
        (DIRECTORY / f"{message_type.__name__}.v{contracts.SCHEMA_VERSION}.json").read_text()
    )
    jsonschema.Draft202012Validator(document).validate(json.loads(msgspec.json.encode(message)))
    broken = json.loads(msgspec.json.encode(message)) | {"tenant": 5, "engine_id": 5, "adapter": 5}
    assert not jsonschema.Draft202012Validator(document).is_valid(broken)


@pytest.mark.parametrize("message_type", MESSAGES, ids=lambda one: one.__name__)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_messages_survive_a_round_trip(message_type: Any, data: st.DataObject) -> None:
    """Whatever values their fields may take, by msgpack and by JSON."""
    message = data.draw(_strategy(inspect.type_info(message_type)))
    assert contracts.decode(contracts.encode(message), message_type) == message
    assert msgspec.json.decode(msgspec.json.encode(message), type=message_type) == message


def _strategy(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    simple: dict[type, Callable[[], st.SearchStrategy[Any]]] = {
        inspect.StrType: lambda: st.text(max_size=8),
        inspect.IntType: lambda: st.integers(-(2**63), 2**63 - 1),
        inspect.FloatType: lambda: st.floats(allow_nan=False, allow_infinity=False),
        inspect.BoolType: st.booleans,
        inspect.NoneType: st.none,
    }
    if type(kind) in simple:
        return simple[type(kind)]()
    if isinstance(kind, inspect.EnumType):
        return st.sampled_from(list(kind.cls))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        items = st.lists(_strategy(kind.item_type), max_size=3)
        return items if isinstance(kind, inspect.ListType) else items.map(tuple)
    if isinstance(kind, inspect.DictType):
        return st.dictionaries(_strategy(kind.key_type), _strategy(kind.value_type), max_size=3)
    if isinstance(kind, inspect.UnionType):
        return st.one_of([_strategy(one) for one in kind.types])
    assert isinstance(kind, inspect.StructType), f"a field of a new kind of type: {kind}"
    return st.builds(kind.cls, **{field.name: _strategy(field.type) for field in kind.fields})
