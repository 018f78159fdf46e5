"""What deploy/kafka's broker does besides serving."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
STARTER = """
import sys, time
from pathlib import Path
from tests.kafka_broker import quick_broker
broker = quick_broker(Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""


def test_a_broker_of_tests_and_benchmarks_ends_with_its_killed_owner(tmp_path: Path) -> None:
    """SIGKILL of the process that started it leaves no broker behind."""
    owner = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    broker = Path(f"/proc/{int(owner.stdout.readline())}")
    assert broker.exists()
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 10
    while broker.exists():
        assert time.monotonic() < deadline, "the broker still runs"
        time.sleep(0.05)
