"""Benchmark `soak`: mixed requests, good and bad, at a real endpoint while adapters are swapped under it.

Random cancels, disconnects, bad bodies and oversize prompts from more tenants than there are slots, and a new
version of a random tenant's adapter every second. Whatever was answered is compared, token by token, with a
stock engine without speculation (greedy, float32); afterwards nothing may be left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from adaptive.models import prepare
from tests.bench import result
from tests.bench.engine_process import EngineProcess
from tests.bench.soak_service import KV_CACHE_BYTES, MODEL, SoakService
from tests.integration.engine.prompts import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

TENANTS = tuple(f"tenant{number}" for number in range(7))
SLOTS = 4
TOKENS = 48
CONCURRENCY = 8
NEAR_TIE = 1e-3
MEMORY_BOUND = 96 << 20
"""Growth of endpoint and engine over the second half."""
WARM_REQUESTS = 1000
"""From so many on the second half begins with every page of the KV cache touched."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the stock engine answers, and the gap between its two best logits per position."""

    messages: list[dict[str, str]]
    ids: list[int]
    gaps: list[float]


@dataclasses.dataclass
class Report:
    """What came of it."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    drafters: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    ties: int = 0
    compared: int = 0
    swaps: int = 0
    memory: list[int] = dataclasses.field(default_factory=list)
    """Bytes after each quarter."""

    leaks: list[str] = dataclasses.field(default_factory=list)
    usage: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def growth(self) -> int:
        """Bytes that memory grew by over the second half."""
        return self.memory[-1] - self.memory[1]


def references(count: int) -> list[Reference]:
    """Greedy answers of a stock float32 engine without speculation."""
    # Half of the prompts are longer than a block, so that tenants read their own prefix cache.
    texts = [
        text if number % 2 else f"{' '.join(PROMPTS)} Now answer only this: {text}"
        for number, text in enumerate(PROMPTS[:count])
    ]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    engine = EngineProcess(
        plugin=False,
        model=str(prepare(MODEL, result.ROOT / ".adaptive")),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        seed=0,
    )
    try:
        answers = engine.answers(prompts, TOKENS)
    finally:
        engine.close()
    return [Reference(prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]


class Soak:
    """The clients."""

    def __init__(self, service: SoakService, known: Sequence[Reference], seed: int) -> None:
        self.report = Report()
        self._service = service
        self._known = known
        self._chance = random.Random(seed)  # noqa: S311  reproducible traffic, not secrecy
        self._stopped = asyncio.Event()

    async def run(self, requests: int) -> Report:
        """Send `requests` requests, swap meanwhile, then look for what was left behind."""
        for tenant in self._service.tenants:
            self._service.swap(tenant, scale=0.5, weight=1.0)
        numbers = iter(range(requests))
        swaps = asyncio.create_task(self._swap())
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as client:
            await asyncio.gather(*(self._client(client, numbers, requests) for _ in range(CONCURRENCY)))
        self._stopped.set()
        await swaps
        await self._drain(requests)
        return self.report

    async def _client(self, client: httpx.AsyncClient, numbers: Any, total: int) -> None:
        kinds: list[tuple[Callable[[httpx.AsyncClient], Awaitable[None]], float]] = [
            (self._answer, 0.5),
            (self._stream, 0.2),
            (self._cancel, 0.12),
            (self._disconnect, 0.05),
            (self._bad, 0.08),
            (self._oversize, 0.05),
        ]
        for number in numbers:
            if number in (total // 4, total // 2, 3 * total // 4, total - 1):
                self.report.memory.append(self._service.memory())
            kind = self._chance.choices([kind for kind, _ in kinds], [share for _, share in kinds])[0]
            try:
                await kind(client)
            except httpx.HTTPError as error:
                self.report.wrong.append(f"{kind.__name__}: {error!r}")

    async def _swap(self) -> None:
        while not self._stopped.is_set():
            tenant = self._chance.choice(self._service.tenants)
            scale, weight = self._chance.choice([0.2, 1.0, 3.0]), self._chance.choice([0.5, 1.0])
            await asyncio.to_thread(self._service.swap, tenant, scale=scale, weight=weight)
            self.report.swaps += 1
            try:
                await asyncio.wait_for(self._stopped.wait(), 1.0)
            except TimeoutError:
                continue

    # -- requests ------------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._chance.choice(self._service.tenants)}-key"}

    def _body(self, *, stream: bool) -> tuple[Reference, dict[str, Any]]:
        reference = self._chance.choice(self._known)
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": reference.messages,
            "temperature": 0,
            "max_tokens": self._chance.choice([1, 7, TOKENS, TOKENS]),
            "stream": stream,
            "return_token_ids": True,
        }
        if self._chance.random() < 0.2:
            body["speculation"] = {"max_lookahead": self._chance.randrange(4)}
        return reference, body

    async def _answer(self, client: httpx.AsyncClient) -> None:
        reference, body = self._body(stream=False)
        answer = await client.post(self._url, json=body, headers=self._headers())
        if self._expect(answer.status_code, 200, answer.text):
            self.report.drafters[answer.headers["x-adaptive-drafter"]] += 1
            self._compare(reference, answer.json()["choices"][0]["token_ids"], body["max_tokens"])
            self.report.outcomes["answered"] += 1

    async def _stream(self, client: httpx.AsyncClient, most_chunks: int | None = None) -> None:
        reference, body = self._body(stream=True)
        ids: list[int] = []
        chunks = 0
        async with client.stream("POST", self._url, json=body, headers=self._headers()) as answer:
            if not self._expect(answer.status_code, 200, "stream"):
                return
            self.report.drafters[answer.headers["x-adaptive-drafter"]] += 1
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:]).get("choices", []):
                        ids += choice.get("token_ids") or []
                    chunks += 1
                if most_chunks is not None and chunks > most_chunks:
                    break
        self._compare(reference, ids, body["max_tokens"], complete=most_chunks is None)
        self.report.outcomes["streamed" if most_chunks is None else "cancelled"] += 1

    async def _cancel(self, client: httpx.AsyncClient) -> None:
        await self._stream(client, self._chance.randrange(6))

    async def _disconnect(self, _client: httpx.AsyncClient) -> None:
        """Half a body, or a whole one, and gone."""
        _, body = self._body(stream=False)
        raw = json.dumps(body).encode()
        sent = raw if self._chance.random() < 0.5 else raw[: len(raw) // 2]
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._headers().items())
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\n{headers}\r\n"
        )
        _, writer = await asyncio.open_connection("127.0.0.1", self._service.settings.endpoint_port)
        writer.write(head.encode() + sent)
        await writer.drain()
        await asyncio.sleep(self._chance.random() / 2)
        writer.close()
        self.report.outcomes["disconnected"] += 1

    async def _bad(self, client: httpx.AsyncClient) -> None:
        _, body = self._body(stream=False)
        content, headers, status = self._chance.choice(
            [
                (b'{"messages": [', self._headers(), 400),
                (json.dumps(body | {"speculation": 3}).encode(), self._headers(), 400),
                (json.dumps(body | {"max_tokens": -1}).encode(), self._headers(), 400),
                (json.dumps(body | {"messages": "no"}).encode(), self._headers(), 400),
                (json.dumps(body | {"model": "other"}).encode(), self._headers(), 404),
                (json.dumps(body).encode(), {"authorization": "Bearer wrong"}, 401),
            ]
        )
        headers |= {"content-type": "application/json"}
        answer = await client.post(self._url, content=content, headers=headers)
        if self._expect(answer.status_code, status, answer.text) and "error" in answer.json():
            self.report.outcomes["bad, refused"] += 1

    async def _oversize(self, client: httpx.AsyncClient) -> None:
        _, body = self._body(stream=False)
        body["messages"] = [{"role": "user", "content": "word " * self._chance.randrange(1200, 3000)}]
        answer = await client.post(self._url, json=body, headers=self._headers())
        if self._expect(answer.status_code, 400, answer.text):
            self.report.outcomes["oversize, refused"] += 1

    # -- checks --------------------------------------------------------------------------------------------

    @property
    def _url(self) -> str:
        return f"{self._service.url}/v1/chat/completions"

    def _expect(self, status: int, wanted: int, text: str) -> bool:
        if status != wanted:
            self.report.wrong.append(f"status {status} instead of {wanted}: {text[:200]}")
        return status == wanted

    def _compare(
        self, reference: Reference, ids: list[int], max_tokens: int, *, complete: bool = True
    ) -> None:
        self.report.compared += 1
        expected = reference.ids[:max_tokens]
        if not complete:
            expected = expected[: len(ids)]
        if ids == expected:
            return
        first = next(
            (index for index, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]),
            min(len(ids), len(expected)),
        )
        if first < len(reference.gaps) and reference.gaps[first] < NEAR_TIE:
            self.report.ties += 1
        else:
            self.report.wrong.append(f"token {first} of {reference.messages[0]['content'][:40]!r} differs")

    async def _drain(self, requests: int) -> None:
        deadline = time.monotonic() + 60
        while True:
            state = self._service.engine()
            self.report.leaks = leaks(state, self._service.metrics())
            if not self.report.leaks or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        for row in state["slot_usage"]:
            self.report.usage.update(
                {name: row.get(name, 0) for name in ("hits", "misses", "evictions", "loads")}
            )
        growth = self.report.growth
        bound = MEMORY_BOUND if requests >= WARM_REQUESTS else MEMORY_BOUND + KV_CACHE_BYTES
        if growth > bound:
            self.report.leaks.append(f"memory grew by {growth >> 20} MiB over the second half")


def leaks(state: dict[str, Any], metrics: str) -> list[str]:
    """What a drained engine still holds."""
    found = [
        f"slot {slot['slot']} is held by {slot['requests']} requests"
        for slot in state["slots"]
        if slot["requests"]
    ]
    if state["requests"]:
        found.append(f"the runner holds {state['requests']} requests")
    if state["capture"].get("queue_depth", 0):
        found.append(f"the publisher's queue holds {state['capture']['queue_depth']} records")
    in_flight = {tenant: row["requests_in_flight"] for tenant, row in state["tenants"].items()}
    found += [f"{tenant} has {count} requests in flight" for tenant, count in in_flight.items() if count]
    for line in metrics.splitlines():
        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")) and not line.endswith(
            " 0.0"
        ):
            found.append(line)
    return found


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="100 requests")
    options = parser.parse_args(arguments)
    requests = 100 if options.quick else options.requests
    known = references(len(PROMPTS))
    with tempfile.TemporaryDirectory() as scratch:
        service = SoakService(Path(scratch), TENANTS, SLOTS)
        try:
            service.wait_ready()
            started = time.monotonic()
            report = asyncio.run(Soak(service, known, options.seed).run(requests))
            seconds = time.monotonic() - started
        finally:
            service.close()
    print(report)  # noqa: T201  progress
    if report.wrong or report.leaks or report.ties > max(requests // 200, 1):
        raise SystemExit(f"the soak failed: {report.wrong[:10]} {report.leaks} {report.ties} near-ties")
    counts = {
        **report.outcomes,
        **{f"assigned to {drafter}": count for drafter, count in report.drafters.items()},
        **{f"slot {name}": count for name, count in report.usage.items()},
        "compared with the stock engine": report.compared,
        "wrong outputs": len(report.wrong),
        "near-ties": report.ties,
        "swaps": report.swaps,
        "leaks": len(report.leaks),
        "memory growth over the second half, MiB": report.growth / (1 << 20),
        "seconds": seconds,
    }
    return result.write(
        "soak",
        "make bench NAME=soak",
        {f"{requests} requests": {name: result.spread([count]) for name, count in counts.items()}},
        {},
        f"{len(TENANTS)} tenants, {SLOTS - 1} slots beside turbo, {CONCURRENCY} clients, greedy, float32, up "
        f"to {TOKENS} new tokens; a new adapter version of a random tenant every second. A first difference "
        f"is wrong unless the stock engine's two best logits lie within {NEAR_TIE} there.",
    )
