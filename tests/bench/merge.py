"""`python -m tests.bench.merge NAME SHARD.json…`: join the shards of one benchmark (see result.merge)."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench import result

if __name__ == "__main__":
    print(f"wrote {result.merge(sys.argv[1], [Path(path) for path in sys.argv[2:]])}")  # noqa: T201  a command
