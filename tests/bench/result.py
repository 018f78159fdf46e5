"""What a benchmark leaves behind: docs/benchmarks/NAME.json, and the page made from all of them."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = Path(os.environ.get("BENCH_DIRECTORY", ROOT / "docs" / "benchmarks"))
"""BENCH_DIRECTORY keeps the shards of one benchmark apart until `merge` joins them."""
PAGE = DIRECTORY.parent / "benchmarks.md"


def machine() -> str:
    """Processor model, cores and memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{model}, {os.cpu_count()} cores, {gib:.0f} GiB"


def commit() -> str:
    """The checkout's commit, marked when it has changes; BENCH_COMMIT names it where there is no checkout."""
    if named := os.environ.get("BENCH_COMMIT"):
        return named
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def command(name: str, arguments: Sequence[str]) -> str:
    """The command that runs a benchmark with these arguments."""
    text = f"make bench NAME={name}"
    return f'{text} ARGS="{" ".join(arguments)}"' if arguments else text


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, float]:
    """Spread of the ratios taken round by round, so that a drift of the machine's speed cancels."""
    return spread([a / b for a, b in zip(numerator, denominator, strict=True)])


def write(
    name: str,
    command: str,
    variants: Mapping[str, Any],
    ratio_table: Mapping[str, Any],
    notes: str,
) -> Path:
    """Write one benchmark's JSON and make the page anew."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / f"{name}.json"
    document = {
        "name": name,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "commit": commit(),
        "command": command,
        "notes": notes,
        "variants": variants,
        "ratios": ratio_table,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    make_page()
    return path


def merge(name: str, shards: Sequence[Path]) -> Path:
    """Join the results of shards that ran at once, each with all its variants interleaved.

    A shard holds other cells (workloads, temperatures) than the others, on cores of its own.
    """
    documents = [json.loads(path.read_text()) for path in shards]
    joined = dict(documents[0])
    for document in documents[1:]:
        for part in ("variants", "ratios"):
            twice = joined[part].keys() & document[part].keys()
            if twice:
                raise ValueError(f"{name}: {min(twice)!r} is in two shards: run them on other cells")
            joined[part] |= document[part]
    joined["machine"] += f"; {len(documents)} shards side by side, each on cores of its own"
    joined["command"] = f"make bench NAME={name}, in shards: " + "; ".join(
        sorted({document["command"].partition(f"NAME={name}")[2].strip() for document in documents})
    )
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps(joined, indent=2) + "\n")
    make_page()
    return path


def make_page() -> None:
    """Generate docs/benchmarks.md from every JSON file."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench NAME=…` from `docs/benchmarks/*.json`; do not edit.",
        "All variants of a benchmark are interleaved in one run; ratios are taken round by round.",
    ]
    for path in sorted(DIRECTORY.glob("*.json")):
        lines += _section(json.loads(path.read_text()))
    PAGE.write_text("\n".join(lines) + "\n")


def _section(document: Mapping[str, Any]) -> list[str]:
    figure = DIRECTORY / f"{document['name']}.svg"
    lines = [
        "",
        f"## {document['name']}",
        "",
        f"{document['date']}, {document['machine']}, commit {document['commit']}, `{document['command']}`.",
        "",
        document["notes"],
        "",
        *([f"![{figure.stem}](benchmarks/{figure.name})", ""] if figure.is_file() else []),
        "| variant | measure | median | min | max |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variant, measures in document["variants"].items():
        lines += [_row(variant, measure, values) for measure, values in measures.items()]
    lines += ["", "| ratio | median | min | max |", "| --- | --- | --- | --- |"]
    for ratio, values in document["ratios"].items():
        lines.append(f"| {ratio} | {values['median']:.3f} | {values['min']:.3f} | {values['max']:.3f} |")
    return lines


def _row(variant: str, measure: str, values: Mapping[str, float]) -> str:
    return f"| {variant} | {measure} | {values['median']:.2f} | {values['min']:.2f} | {values['max']:.2f} |"
