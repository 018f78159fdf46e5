"""Plays a tenant's traffic at a fixed concurrency until told to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from adaptive.demo.client import EndpointClient, RequestFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adaptive.workloads import Prompt

TEMPERATURE = 0.7


class TrafficPlayer:
    """One tenant's clients; each thread sends the next prompt as soon as its last answer is in."""

    def __init__(
        self,
        make_client: Callable[[], EndpointClient],
        prompts: Sequence[Prompt],
        *,
        concurrency: int,
        max_tokens: int,
    ) -> None:
        self._make_client = make_client
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        self.served = 0
        self.failed = 0
        self.output_tokens = 0
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._play, daemon=True) for _ in range(concurrency)]

    def start(self) -> None:
        """Begin sending."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the requests in flight end, send no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _play(self) -> None:
        client = self._make_client()
        try:
            while not self._stop.is_set():
                with self._lock:
                    number = self._next
                    self._next += 1
                prompt = self._prompts[number % len(self._prompts)]
                try:
                    answer = client.complete(
                        prompt.messages,
                        max_tokens=min(self._max_tokens, prompt.max_tokens),
                        temperature=TEMPERATURE,
                        seed=number,
                    )
                except RequestFailedError as error:
                    with self._lock:
                        self.failed += 1
                        self.errors.append(str(error))
                    self._stop.wait(0.5)
                else:
                    with self._lock:
                        self.served += 1
                        self.output_tokens += answer.output_tokens
        finally:
            client.close()
