"""Playing a tenant's traffic."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from adaptive.demo.client import RequestFailedError
from adaptive.demo.traffic import TEMPERATURE, TrafficPlayer
from tests.unit.demo.prompts import answer, prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptive.demo.client import Completion


class Server:
    """Answers every client, and watches how many ask at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.busy = 0
        self.most_busy = 0
        self.closed = 0
        self.fail: Callable[[int], bool] = lambda _: False

    def complete(self, messages: Any, **arguments: Any) -> Completion:
        """Take a moment to answer."""
        with self.lock:
            number = len(self.asked)
            self.asked.append((messages[-1]["content"], arguments))
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        time.sleep(0.002)
        with self.lock:
            self.busy -= 1
        if self.fail(number):
            raise RequestFailedError(f"HTTP 500 of request {number}")
        return answer(tokens=7)

    def close(self) -> None:
        """Count the clients that end."""
        with self.lock:
            self.closed += 1


def play(server: Server, until: Callable[[TrafficPlayer], bool], concurrency: int = 3) -> TrafficPlayer:
    """Play five prompts over and over until a condition holds."""
    player = TrafficPlayer(
        lambda: server,  # type: ignore[arg-type,return-value]  # a stand-in
        prompts(5),
        concurrency=concurrency,
        max_tokens=48,
    )
    player.start()
    deadline = time.monotonic() + 10
    while not until(player):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    player.stop()
    return player


def test_prompts_go_round_at_a_fixed_concurrency() -> None:
    """In order, from the start again when they are used up; at no time more than asked for."""
    server = Server()
    play(server, lambda player: player.served >= 12)
    assert server.most_busy == 3
    seeds = sorted(arguments["seed"] for _, arguments in server.asked)
    assert seeds == list(range(len(server.asked)))
    for prompt, arguments in server.asked:
        assert prompt == f"question {arguments['seed'] % 5}"
        assert arguments == {"max_tokens": 48, "temperature": TEMPERATURE, "seed": arguments["seed"]}


def test_answers_are_counted() -> None:
    """When `stop` returns every request has ended, and every client is closed."""
    server = Server()
    player = play(server, lambda player: player.served >= 9)
    assert player.served == len(server.asked)
    assert player.output_tokens == 7 * player.served
    assert (player.failed, player.errors) == (0, [])
    assert server.closed == 3
    assert server.busy == 0
    asked = len(server.asked)
    time.sleep(0.02)
    assert len(server.asked) == asked


def test_failures_are_counted_and_do_not_stop_the_traffic() -> None:
    """Each failed request is in the report; its client goes on with the next one."""
    server = Server()
    server.fail = lambda number: number == 1
    player = play(server, lambda player: player.served >= 6, concurrency=2)
    assert player.failed == 1
    assert player.errors == ["HTTP 500 of request 1"]
    assert player.served == len(server.asked) - 1


def test_stop_does_not_wait_out_the_pause_after_a_failure() -> None:
    """A server that fails throughout is no reason to hang."""
    server = Server()
    server.fail = lambda _: True
    started = time.monotonic()
    player = play(server, lambda player: player.failed >= 1, concurrency=1)
    assert time.monotonic() - started < 0.4
    assert player.served == 0
