"""`python -m deploy.kafka format|start|stop DIRECTORY [--port N] [--heap-mib N]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.kafka.broker import Broker, BrokerError


def main() -> None:
    """Run one command; a start leaves the broker running and prints its log URL."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kafka", description=__doc__)
    parser.add_argument("command", choices=("format", "start", "stop"))
    parser.add_argument("directory", type=Path, help="state of the broker: configuration, data, log")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; default: as before, or free")
    parser.add_argument("--heap-mib", type=int, default=256, help="Java heap")
    arguments = parser.parse_args()
    broker = Broker(arguments.directory, arguments.port, heap_mib=arguments.heap_mib)
    try:
        getattr(broker, arguments.command)()
    except (BrokerError, OSError) as error:
        sys.exit(str(error))
    if arguments.command == "start":
        sys.stdout.write(f"kafka://{broker.address}\n")


if __name__ == "__main__":
    main()
