"""`adaptive export`: a tenant's adapter merged into turbo, for a stock vLLM."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.client import call
from adaptive.cli.errors import clean_errors, fail
from adaptive.cli.extras import needs
from adaptive.cli.options import ADMIN_FIELDS, with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

FIELDS = (*ADMIN_FIELDS, "store_url", "model", "turbo", "lookahead")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="export")(with_settings(*FIELDS)(export))


def export(
    settings: Settings,
    tenant: Annotated[str, typer.Option(help="Tenant id.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Version to export. Default: the one that serves.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="speculators: `vllm serve DIRECTORY` finds the target and the lookahead in it. eagle3: for "
            "`vllm serve --speculative-config`.",
        ),
    ] = "speculators",
    output: Annotated[
        Path | None, typer.Option(help="Empty or new directory. Default: TENANT-vVERSION-FORMAT.")
    ] = None,
    target_name: Annotated[
        str | None,
        typer.Option(help="How the speculators format names the target. Default: its directory here."),
    ] = None,
) -> None:
    """Merge a tenant's adapter into turbo and write a checkpoint that a stock vLLM serves.

    The adapter is fetched from the store by the checksum that the controller knows, and must belong to the
    target and the turbo of these settings. What serves is exported with the weight it serves with.
    """
    with needs("learn"):
        from adaptive.models import ModelError  # noqa: PLC0415  commands load what they need
        from adaptive.speculator.adapter import AdapterError, load_adapter  # noqa: PLC0415  imports torch
        from adaptive.speculator.checkpoint import fingerprint  # noqa: PLC0415  same
        from adaptive.speculator.config import CheckpointError, SpeculatorConfig  # noqa: PLC0415  same
        from adaptive.speculator.export import ExportFormat, Verifier, export_merged  # noqa: PLC0415  same
        from collectors.store import StoreError, TensorStore  # noqa: PLC0415  same
        from learners.paths import drafter_directories  # noqa: PLC0415  same
    if form not in list(ExportFormat):
        fail(f"--format is {form!r}: choose {' or '.join(ExportFormat)}")
    serving = call(settings, "GET", f"/v1/tenants/{tenant}")
    if version is None and not serving["champion"]:
        fail(f"turbo serves {tenant}: name a --version to export (see `adaptive drafters list {tenant}`)")
    chosen = version or serving["champion"]
    found = call(settings, "GET", f"/v1/tenants/{tenant}/versions/{chosen}")
    weight = serving["weight"] if chosen == serving["champion"] else 1.0
    with (
        clean_errors(AdapterError, CheckpointError, ModelError, StoreError),
        tempfile.TemporaryDirectory(prefix="adaptive-export-") as temporary,
    ):
        target, turbo = drafter_directories(settings)
        file = TensorStore(settings.resolved_store_url).fetch(
            found["uri"], found["sha256"], Path(temporary) / "adapter.safetensors"
        )
        tensors, _ = load_adapter(
            file,
            SpeculatorConfig.from_directory(turbo),
            target_sha256=fingerprint(target),
            turbo_sha256=fingerprint(turbo),
        )
        directory = output or Path(f"{tenant}-v{chosen}-{form}")
        described = json.loads((target / "config.json").read_text())
        sha256 = export_merged(
            directory,
            turbo,
            tensors,
            weight=weight,
            form=ExportFormat(form),
            verifier=Verifier(target_name or str(target.resolve()), described["architectures"]),
            lookahead=settings.lookahead,
        )
    typer.echo(f"{tenant}@{chosen} (weight {weight:g}) merged into turbo: {directory} (sha256 {sha256})")
