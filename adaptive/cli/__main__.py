"""`python -m adaptive.cli`, which is what `adaptive` runs."""

from __future__ import annotations

from adaptive.cli.main import app

if __name__ == "__main__":
    app(prog_name="adaptive")
