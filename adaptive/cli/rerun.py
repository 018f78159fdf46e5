"""`adaptive drafters rerun`: train an update again from the log and compare the bytes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adaptive.cli.display import print_json
from adaptive.cli.errors import WRONG_USE, clean_errors, fail
from adaptive.cli.extras import needs
from adaptive.cli.options import with_settings
from adaptive.settings import Settings  # noqa: TC001  the signatures are evaluated

if TYPE_CHECKING:
    from learners.manifest import Manifest
    from learners.rerun import Rerun

FIELDS = ("home", "log_url", "store_url", "tracking_url", "model", "turbo")


def register(app: typer.Typer) -> None:
    """Add the command to `adaptive drafters`."""
    app.command(name="rerun")(with_settings(*FIELDS)(rerun))


def rerun(
    settings: Settings,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN_ID]", help="MLflow run of the update, published or refused.")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="update.json of the run, instead of RUN_ID: MLflow is not asked then.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the adapter made now.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train an update again from its stored offsets and seed, and compare it with what was made then.

    Reads its traces from the log and their features from the store, trains, and judges on the same hold-out;
    publishes and records nothing. Exit code 0: the same bytes and scores. 1: they differ, or it cannot be run
    again and the reason is printed: retention has passed, the tenant was erased or declines learning, or the
    target or turbo was replaced.
    """
    if (run is None) == (manifest is None):
        fail("name what to run again: either RUN_ID or --manifest FILE", WRONG_USE)
    with needs("learn"):
        from adaptive.models import ModelError  # noqa: PLC0415  commands load what they need
        from adaptive.speculator.config import CheckpointError  # noqa: PLC0415  same
        from collectors.store import StoreError  # noqa: PLC0415  same
        from collectors.transport import TransportError  # noqa: PLC0415  same
        from learners.assembly import run_again  # noqa: PLC0415  imports torch
        from learners.manifest import ManifestError  # noqa: PLC0415  same
        from learners.mlflow import TrackingError  # noqa: PLC0415  same
        from learners.rerun import RerunError  # noqa: PLC0415  same
    errors = (
        *(RerunError, ManifestError, TrackingError),
        *(TransportError, StoreError, CheckpointError, ModelError),
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with clean_errors(*errors), tempfile.TemporaryDirectory(prefix="adaptive-rerun-") as temporary:
        directory = Path(temporary)
        described = _manifest(settings, run, manifest, directory)
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task("loading", total=None)
            result = run_again(
                settings,
                described,
                directory,
                lambda stage, done, total: bars.update(
                    task, description=stage, completed=done, total=total or None
                ),
            )
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(result.adapter, output)
    _show(described, result, as_json=as_json)
    raise typer.Exit(0 if result.same_adapter and result.same_scores else 1)


def _manifest(settings: Settings, run: str | None, file: Path | None, directory: Path) -> Manifest:
    from learners.manifest import MANIFEST, read_manifest  # noqa: PLC0415  imports torch

    if run is not None:
        from learners.mlflow import MlflowTracker  # noqa: PLC0415  slow

        tracker = MlflowTracker(settings.resolved_tracking_url, settings.home / "mlartifacts", "", "")
        file = tracker.artifact(run, MANIFEST, directory)
    assert file is not None
    return read_manifest(file)


def _show(manifest: Manifest, result: Rerun, *, as_json: bool) -> None:
    plan = manifest.plan
    if as_json:
        print_json(
            {
                "tenant": plan.tenant,
                "version": plan.version,
                "seed": plan.seed,
                "trace_first_offset": plan.first_offset,
                "trace_last_offset": plan.last_offset,
                "adapter_sha256": result.adapter_sha256,
                "expected_sha256": manifest.adapter_sha256,
                "same_adapter": result.same_adapter,
                "same_scores": result.same_scores,
                "tau": result.judgement.challenger.total.tau,
                "publish": result.judgement.verdict.publish,
                "differences": result.differences,
            }
        )
        return
    typer.echo(
        f"{plan.tenant}@{plan.version}: {len(manifest.training)} requests trained on, "
        f"{len(manifest.holdout)} held out, seed {plan.seed}"
    )
    typer.echo(f"sha256 now   {result.adapter_sha256}")
    typer.echo(f"sha256 then  {manifest.adapter_sha256}")
    typer.echo(
        f"tau {result.judgement.challenger.total.tau:.4f} now, {manifest.challenger_score.tau:.4f} then, "
        f"turbo {manifest.turbo_score.tau:.4f}"
    )
    if result.same_adapter and result.same_scores:
        typer.echo("the same adapter, byte for byte, and the same scores")
        return
    what = "scores differ" if result.same_adapter else "the adapters differ"
    why = f"; so does the environment ({'; '.join(result.differences)})" if result.differences else ""
    typer.echo(f"{what}{why}", err=True)
