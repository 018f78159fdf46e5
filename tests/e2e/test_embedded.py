"""The embedded defaults: no broker, no Docker, no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.e2e.service import Service


def test_a_request_is_served_and_its_trace_reaches_the_learner(embedded: Service) -> None:
    """A new tenant's key is served with drafts, and the learner stores the request for its replay."""
    client = embedded.client(embedded.admin.create_tenant("acme"))
    eventually(client.authorized, 30, "the endpoint to learn the key")
    answer = client.complete(
        ({"role": "user", "content": "What is the capital of France?"},), max_tokens=32, temperature=0
    )
    assert answer.verify_steps > 0

    def stored() -> bool:
        status = embedded.learner()
        return status is not None and "acme" in status.tenants and status.tenants["acme"].requests == 1

    eventually(stored, 60, "the learner to store the request")
