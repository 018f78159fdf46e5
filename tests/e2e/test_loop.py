"""The loop closes on real parts, and no part's death stops serving."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from adaptive.contracts import Arm
from adaptive.workloads import load
from tests.waiting import eventually

if TYPE_CHECKING:
    from adaptive.workloads.prompt import Message
    from tests.e2e.service import Service

PROMPT: tuple[Message, ...] = ({"role": "user", "content": "What is the capital of France?"},)


def test_traffic_becomes_an_adapter_in_service_although_the_learner_is_killed(service: Service) -> None:
    """A far tenant's traffic is learned from and its adapter put in service without a failed request.

    The learner is killed in mid-training: serving goes on, it resumes from ledger, offset and checkpoint, and
    no trace is used twice.
    """
    key = service.admin.create_tenant("format")
    client = service.client(key)
    eventually(client.authorized, 30, "the endpoint to learn the key")
    player = service.traffic(lambda: service.client(key), "format")
    player.start()
    try:
        eventually(lambda: training_step(service, "format") > 2, 400, "an update in mid-training")
        status = service.learner()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        served = player.served
        eventually(lambda: player.served > served + 5, 120, "requests served after the learner's death")
        eventually(lambda: restarted(service, status.pid), 120, "the learner to run again")
        eventually(lambda: bool(service.admin.tenant("format")["champion"]), 400, "an adapter in service")
    finally:
        player.stop()
    assert player.failed == 0, player.errors
    champion = service.admin.tenant("format")["champion"]
    eventually(
        lambda: client.complete(PROMPT, max_tokens=4, temperature=0, arm=Arm.ADAPTER).version >= champion,
        30,
        "the endpoint to serve the champion",
    )
    assert max(client.engine()["pauses_ms"]) < 20
    learned = service.learner()
    assert learned is not None
    assert learned.tenants["format"].requests <= player.served


def test_serving_goes_on_with_the_last_policy_without_a_controller(service: Service) -> None:
    """With the controller killed, known keys still work and the arm in force still drafts."""
    key = service.admin.create_tenant("steady")
    client = service.client(key)
    eventually(client.authorized, 30, "the endpoint to learn the key")
    before = client.complete(PROMPT, max_tokens=16, temperature=0)
    service.stack.processes["control"].kill()
    answers = [client.complete(PROMPT, max_tokens=16, temperature=0) for _ in range(5)]
    assert {answer.output_tokens for answer in answers} == {before.output_tokens}
    eventually(lambda: reachable(service), 60, "the supervisor to start the controller again")


def test_forced_arms_are_obeyed_and_named(service: Service) -> None:
    """With the internal key an arm can be forced: headers name it, and off verifies no drafts."""
    client = service.client(service.admin.create_tenant("forced"))
    eventually(client.authorized, 30, "the endpoint to learn the key")
    prompt = load("format").probe[0].messages
    off, turbo, adapter = (
        client.complete(prompt, max_tokens=32, temperature=0, arm=arm)
        for arm in (Arm.OFF, Arm.TURBO, Arm.ADAPTER)
    )
    assert (off.drafter, off.verify_steps) == ("off", 0)
    assert (turbo.drafter, turbo.version) == ("turbo", 0)
    assert turbo.verify_steps > 0
    # This tenant has no adapter: turbo stands in, and the header says so.
    assert (adapter.drafter, adapter.version) == ("turbo", 0)


def training_step(service: Service, tenant: str) -> int:
    """Training step the learner is at, 0 while it is not training."""
    status = service.learner()
    state = status.tenants[tenant].training if status is not None and tenant in status.tenants else ""
    return int(state.removeprefix("training step ").split("/")[0]) if state.startswith("training step") else 0


def restarted(service: Service, old_pid: int) -> bool:
    """Whether another learner process is running."""
    status = service.learner()
    return (
        status is not None
        and status.state == "running"
        and status.pid != old_pid
        and time.time() - status.updated_at < 10
    )


def reachable(service: Service) -> bool:
    """Whether the controller answers."""
    import httpx  # noqa: PLC0415  only here

    try:
        return bool(service.admin.tenant("steady"))
    except httpx.HTTPError:
        return False
