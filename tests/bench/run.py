"""`make bench NAME=x`: run one benchmark and write its JSON and the page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Run the benchmark named by the first argument."""
    known = sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if "def main(arguments" in path.read_text()  # the others are helpers
    )
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        print(f"usage: make bench NAME=x with x one of {', '.join(known)}", file=sys.stderr)  # noqa: T201  a command
        return 2
    path = importlib.import_module(f"tests.bench.{sys.argv[1]}").main(sys.argv[2:])
    print(f"wrote {path}")  # noqa: T201  a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
