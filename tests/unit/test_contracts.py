"""The messages' bytes: what a released version wrote must be readable for ever.

`contracts_v1.json` holds the bytes (hex) of every message of schema version 1, once with every field set and
once with only those that have no default. A new schema version adds a file and keeps this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive import contracts
from adaptive.contracts import (
    AdapterReference,
    Arm,
    ArmCounters,
    ArmScore,
    ArmScored,
    DrafterPublished,
    EngineTelemetry,
    ErasureAcknowledged,
    FeatureReference,
    HoldoutScore,
    Message,
    PolicyDecided,
    RemovedItems,
    SamplingSummary,
    SlotState,
    SlotUsage,
    TenantChanged,
    TenantErased,
    TenantState,
    TraceRecord,
    VerifyStep,
    Watermark,
)

GOLDEN: dict[str, str] = json.loads(Path(__file__).with_name("contracts_v1.json").read_text())

ADAPTER = AdapterReference(
    tenant="acme",
    version=7,
    uri="file:///store/acme/7.safetensors",
    sha256="5" * 64,
    target_sha256="1" * 64,
    turbo_sha256="2" * 64,
    rank=32,
)
SCORE = HoldoutScore(
    tau=2.75, acceptance_per_position=[0.75, 0.5, 0.25, 0.125], verify_steps=1200, requests=31
)
MESSAGES: dict[str, Message] = {
    "trace": TraceRecord(
        trace_id="request-1:1",
        tenant="acme",
        request_id="request-1",
        segment=1,
        created_at=1767225600.5,
        target_sha256="1" * 64,
        turbo_sha256="2" * 64,
        tokenizer_sha256="3" * 64,
        prompt_ids=[1, 300, 49151],
        prompt_length=3,
        output_start=256,
        output_ids=[5, 6, 7, 8],
        steps=[
            VerifyStep(
                arm=Arm.ADAPTER,
                version=7,
                output_offset=0,
                drafted=[5, 6, 9, 10],
                accepted=2,
                confidences=[2.5, 0.25, -0.5, -20.0],
            ),
            VerifyStep(Arm.TURBO, 0, 3, [9], 0, [0.0]),
        ],
        sampling=SamplingSummary(temperature=0.7, top_p=0.9, top_k=40, seed=11, max_tokens=96),
        finished=True,
        features=FeatureReference(
            uri="file:///store/acme/traces/ab/cd.safetensors",
            sha256="4" * 64,
            feature_start=2,
            rows=4,
            dtype="bfloat16",
            bytes=18432,
            feature_layers=(2, 15, 27),
            hidden_size=576,
        ),
        share=True,
        schema_version=1,
    ),
    "trace_minimal": TraceRecord(
        trace_id="r:0",
        tenant="t",
        request_id="r",
        segment=0,
        created_at=0.0,
        target_sha256="",
        turbo_sha256="",
        tokenizer_sha256="",
        prompt_ids=[],
        prompt_length=0,
        output_start=0,
        output_ids=[],
        steps=[],
        sampling=SamplingSummary(),
        finished=False,
    ),
    "scored": ArmScored(
        tenant="acme",
        trace_id="request-1:1",
        scored_at=1767225601.0,
        target_sha256="1" * 64,
        turbo_sha256="2" * 64,
        context_length=259,
        lookahead=4,
        scores=[
            ArmScore(Arm.TURBO, 0, verify_steps=40, drafted=160, accepted=60),
            ArmScore(Arm.ADAPTER, 7, 31, 124, 69, accepted_per_position=[28, 20, 13, 8]),
        ],
        generation=2,
        schema_version=1,
    ),
    "scored_minimal": ArmScored(
        tenant="t",
        trace_id="r:0",
        scored_at=0.0,
        target_sha256="",
        turbo_sha256="",
        context_length=0,
        lookahead=0,
        scores=[],
    ),
    "published": DrafterPublished(
        adapter=ADAPTER,
        created_at=1767225600.0,
        turbo=SCORE,
        challenger=SCORE,
        champion=SCORE,
        gain_lower=0.01,
        gain_upper=0.08,
        tokens_trained=20000,
        training_seconds=61.5,
        mlflow_run_id="a1b2",
        trace_first_offset={0: 10, 3: 0},
        trace_last_offset={0: 99, 3: 7},
        seed=5,
        schema_version=1,
    ),
    "published_minimal": DrafterPublished(
        adapter=ADAPTER,
        created_at=0.0,
        turbo=SCORE,
        challenger=SCORE,
        champion=None,
        gain_lower=0.0,
        gain_upper=0.0,
        tokens_trained=0,
        training_seconds=0.0,
        mlflow_run_id="",
        trace_first_offset={},
        trace_last_offset={},
    ),
    "policy": PolicyDecided(
        tenant="acme",
        policy_version=12,
        champion=ADAPTER,
        weight=0.5,
        max_lookahead=4,
        control_share=0.05,
        off_share=0.01,
        reason="promoted: gain 0.04 to 0.08",
        decided_at=1767225600.0,
        schema_version=1,
    ),
    "policy_canary": PolicyDecided(
        tenant="acme",
        policy_version=13,
        champion=None,
        weight=1.0,
        max_lookahead=4,
        control_share=0.05,
        off_share=0.01,
        reason="version 8 on trial",
        decided_at=1767225602.0,
        challenger=AdapterReference("acme", 8, "file:///8", "3" * 64, "1" * 64, "2" * 64, 32),
        canary_share=0.25,
    ),
    "policy_minimal": PolicyDecided(
        tenant="acme",
        policy_version=1,
        champion=None,
        weight=0.0,
        max_lookahead=4,
        control_share=0.0,
        off_share=0.0,
        reason="",
        decided_at=0.0,
    ),
    "tenant": TenantChanged(
        tenant="acme",
        revision=3,
        state=TenantState.SUSPENDED,
        key_hashes=["6" * 64, "7" * 64],
        learn=True,
        share=True,
        freeze=True,
        changed_at=1767225600.0,
        schema_version=1,
    ),
    "tenant_minimal": TenantChanged(
        tenant="acme",
        revision=1,
        state=TenantState.ACTIVE,
        key_hashes=[],
        learn=False,
        share=False,
        freeze=False,
        changed_at=0.0,
    ),
    "telemetry": EngineTelemetry(
        engine_id="127.0.0.1:8000",
        started_at=1767225600.0,
        reported_at=1767225601.0,
        target_sha256="1" * 64,
        turbo_sha256="2" * 64,
        counters=[
            ArmCounters(
                tenant="acme",
                arm=Arm.ADAPTER,
                version=7,
                requests=3,
                verify_steps=100,
                drafted=400,
                accepted=180,
                accepted_per_position=[80, 50, 30, 20],
                emitted=280,
                engine_seconds=12.5,
            ),
            ArmCounters(tenant="acme", arm=Arm.OFF, version=0),
        ],
        slots=[SlotState(slot=1, tenant="acme", version=7, weight=0.5, requests=2)],
        acknowledged={"acme": 12},
        refused={"other": "rank is 8, this engine holds rank 32"},
        swap_pause_ms=[1.5, 0.75],
        traces_published=42,
        traces_dropped=1,
        queue_depth=3,
        schema_version=1,
        refused_policies={"other": 4},
    ),
    "telemetry_minimal": EngineTelemetry(
        engine_id="e",
        started_at=0.0,
        reported_at=0.0,
        target_sha256="",
        turbo_sha256="",
        counters=[],
        slots=[],
        acknowledged={},
        refused={},
        swap_pause_ms=[],
    ),
    "erased": TenantErased(
        tenant="acme",
        erasure_id="erase_1",
        generation=2,
        erased_at=1767225600.0,
        watermarks=[Watermark("adaptive.trace.recorded.v1", 3, 1200), Watermark("x.dlq", 0, 0)],
        kafka_gone_by=1767830400.0,
        sealed=True,
        last_version=7,
        policy_version=12,
        revision=3,
        retired=[ADAPTER],
        schema_version=1,
    ),
    "erased_minimal": TenantErased(tenant="t", erasure_id="e", generation=0, erased_at=0.0, watermarks=[]),
    "acknowledged": ErasureAcknowledged(
        tenant="acme",
        erasure_id="erase_1",
        process="learner",
        acknowledged_at=1767225601.0,
        done=True,
        removed=[RemovedItems("replay", 31), RemovedItems("mlflow runs", 4)],
        retired=["acme@7", "turbo 2222"],
        waiting="MLflow is away",
        schema_version=1,
    ),
    "acknowledged_minimal": ErasureAcknowledged(
        tenant="t", erasure_id="e", process="engine e", acknowledged_at=0.0, done=False
    ),
}
# Fields appended to messages that were released before them.
_APPENDED: dict[str, tuple[str, dict[str, Any]]] = {
    "trace_generation": ("trace_minimal", {"generation": 2}),
    "published_lineage": ("published_minimal", {"derived_from": ["acme", "other"]}),
    "tenant_generation": (
        "tenant_minimal",
        {"generation": 2, "retention_seconds": 86400.0, "retention_bytes": 1 << 30},
    ),
    "trace_shared_object": (
        "trace_minimal",
        {
            "features": FeatureReference(
                "file:///s/o.safetensors", "4" * 64, 0, 4, "bfloat16", 18432, (2, 15, 27), 576, 12, 16
            )
        },
    ),
}
_APPENDED["tenant_quotas"] = (
    "tenant_minimal",
    {"requests_per_minute": 60, "tokens_per_minute": 0, "concurrent_requests": 4},
)
_APPENDED["telemetry_choice"] = (
    "telemetry_minimal",
    {
        "counters": [
            ArmCounters(
                tenant="acme",
                arm=arm,
                version=0,
                verify_steps=3,
                drafted=12,
                accepted=9,
                early_stops=2,
                lookahead_chosen=[1, 0, 2, 0, 0, 0, 0, 0, 1],
                verify_steps_by_context=[1, 2, 0, 0],
                accepted_by_context=[4, 5, 0, 0],
            )
            for arm in (Arm.NGRAM, Arm.PREDICTION)
        ],
        "calibration_error": {"acme": 0.0125},
        "steps": 40,
        "floor_steps": 10,
    },
)
_APPENDED["telemetry_slots"] = (
    "telemetry_minimal",
    {"slot_usage": [SlotUsage("acme", 12, 3, 2, 4), SlotUsage("other")]},
)
MESSAGES |= {
    name: msgspec.structs.replace(MESSAGES[base], **added) for name, (base, added) in _APPENDED.items()
}
NAMES = pytest.mark.parametrize("name", MESSAGES)


def decoded(name: str, data: bytes) -> Message:
    """Decode as the type of the named message."""
    message: Message = contracts.decode(data, type(MESSAGES[name]))  # type: ignore[type-var]  # one of the union
    return message


def test_every_message_has_golden_bytes() -> None:
    """No message type and no sample is without its bytes."""
    assert GOLDEN.keys() == MESSAGES.keys()
    assert {type(message) for message in MESSAGES.values()} == set(contracts.Message.__args__)


@NAMES
def test_version_1_bytes_decode(name: str) -> None:
    """What version 1 wrote reads as what version 1 meant."""
    assert decoded(name, bytes.fromhex(GOLDEN[name])) == MESSAGES[name]


@NAMES
def test_bytes_are_those_of_version_1(name: str) -> None:
    """The encoding of the current version has not moved: a change here needs a new version and its file.

    Names, order, types and left-out defaults are compared, not the width of a map's header: msgspec widens it
    when a struct passes 15 fields, and every reader takes either.
    """
    written, golden = (
        json.dumps(msgspec.to_builtins(msgspec.msgpack.decode(data)))
        for data in (contracts.encode(MESSAGES[name]), bytes.fromhex(GOLDEN[name]))
    )
    assert written == golden


@NAMES
def test_unknown_fields_are_ignored(name: str) -> None:
    """A newer producer may add fields: to the message, to every struct in it and to a verify step."""
    raw = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[name]))

    def extended(value: Any) -> Any:
        if isinstance(value, dict):
            grown = {key: extended(item) for key, item in value.items()}
            # Mappings keyed by tenant or partition are data, not structs.
            if all(isinstance(key, str) and key not in {"acme", "other"} for key in value) and value:
                grown["field_of_the_future"] = {"nested": [1, 2]}
            return grown
        if isinstance(value, list):
            items = [extended(item) for item in value]
            is_step = bool(items) and isinstance(items[0], str) and items[0] in {"adapter", "turbo"}
            return [*items, "future"] if is_step else items
        return value

    grown = msgspec.msgpack.encode(extended(raw))
    assert b"field_of_the_future" in grown
    assert decoded(name, grown) == MESSAGES[name]


@NAMES
def test_every_field_with_a_default_may_be_missing(name: str) -> None:
    """An older producer did not know the newer fields: they read as their defaults."""
    raw = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[name]))
    fields = msgspec.structs.fields(type(MESSAGES[name]))
    for field in fields:
        if not field.required:
            raw.pop(field.name, None)
    found = decoded(name, msgspec.msgpack.encode(raw))
    for field in fields:
        value = getattr(found, field.name)
        if field.required:
            assert value == getattr(MESSAGES[name], field.name)
        else:
            assert value == (
                field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            )


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"weight": "heavy"}, r"\$\.weight"),
        ({"champion": {"tenant": "acme"}}, r"\$\.champion"),
        ({"policy_version": 1.5}, r"\$\.policy_version"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], path: str) -> None:
    """A poison record says where it is poisoned."""
    raw = msgspec.msgpack.decode(bytes.fromhex(GOLDEN["policy"])) | change
    with pytest.raises(msgspec.ValidationError, match=path):
        contracts.decode(msgspec.msgpack.encode(raw), PolicyDecided)


def test_a_missing_field_is_named() -> None:
    """A field without a default is never guessed."""
    raw = msgspec.msgpack.decode(bytes.fromhex(GOLDEN["policy"]))
    del raw["policy_version"]
    with pytest.raises(msgspec.ValidationError, match="policy_version"):
        contracts.decode(msgspec.msgpack.encode(raw), PolicyDecided)


@given(st.binary(max_size=40))
def test_garbage_is_a_msgspec_error(data: bytes) -> None:
    """Whatever a topic holds, a consumer has one kind of error to catch."""
    try:
        contracts.decode(data, PolicyDecided)
    except msgspec.MsgspecError:
        return
    raise AssertionError(f"{data!r} decoded")


def test_topics_carry_their_version_and_are_listed() -> None:
    """Names that operators create topics by; the compacted ones are those that describe a state."""
    assert sorted(contracts.TOPICS) == [
        "adaptive.arm.scored.v1",
        "adaptive.drafter.published.v1",
        "adaptive.engine.telemetry.v1",
        "adaptive.erasure.acknowledged.v1",
        "adaptive.policy.decided.v1",
        "adaptive.tenant.changed.v1",
        "adaptive.tenant.erased.v1",
        "adaptive.trace.recorded.v1",
    ]
    assert sorted(contracts.COMPACTED_TOPICS) == [
        "adaptive.drafter.published.v1",
        "adaptive.policy.decided.v1",
        "adaptive.tenant.changed.v1",
        "adaptive.tenant.erased.v1",
    ]
