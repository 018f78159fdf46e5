"""The demo's HTTP client: the endpoint as a tenant sees it, the admin API as an operator does."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adaptive.contracts import Arm
    from adaptive.workloads import Message

_TIMEOUT: Final = httpx.Timeout(300.0, connect=10.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """One answered request."""

    output_tokens: int
    seconds: float
    drafter: str
    version: int
    verify_steps: int
    accepted: int
    histogram: tuple[int, ...]
    """Verify steps by the number of drafts they accepted; empty without acceptance details."""


class RequestFailedError(Exception):
    """The endpoint did not answer a request."""


class EndpointClient:
    """Chat completions for one tenant."""

    def __init__(self, base_url: str, key: str, model: str, internal_key: str) -> None:
        self._http = httpx.Client(
            base_url=base_url, timeout=_TIMEOUT, trust_env=False, headers={"authorization": f"Bearer {key}"}
        )
        self._model = model
        self._internal_key = internal_key

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        seed: int | None = None,
        arm: Arm | None = None,
    ) -> Completion:
        """Answer one prompt.

        Args:
            messages: chat messages.
            max_tokens: most output tokens.
            temperature: 0 for greedy.
            seed: sampling seed.
            arm: force this arm (needs the internal key; never becomes training data).

        Raises:
            RequestFailedError: transport error, a status other than 200, or an answer that is none.
        """
        headers = (
            {}
            if arm is None
            else {"x-adaptive-arm": arm.value, "x-adaptive-internal-key": self._internal_key}
        )
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if seed is not None:
            body["seed"] = seed
        started = time.perf_counter()
        try:
            response = self._http.post("/v1/chat/completions", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise RequestFailedError(f"{type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - started
        if response.status_code != httpx.codes.OK:
            raise RequestFailedError(f"HTTP {response.status_code}: {response.text[:300]}")
        try:
            return _completion(response, seconds)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestFailedError(
                f"not an answer of the endpoint ({type(error).__name__}: {error}): {response.text[:300]}"
            ) from error

    def authorized(self) -> bool:
        """Whether the endpoint knows the key."""
        return self._http.get("/v1/models").status_code == httpx.codes.OK

    def engine(self) -> dict[str, Any]:
        """The engine's internal state."""
        response = self._http.get("/internal/engine", headers={"x-adaptive-internal-key": self._internal_key})
        response.raise_for_status()
        state: dict[str, Any] = response.json()
        return state

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _completion(response: httpx.Response, seconds: float) -> Completion:
    answer = response.json()
    details = (answer.get("metrics") or {}).get("speculative_decoding") or {}
    return Completion(
        output_tokens=answer["usage"]["completion_tokens"],
        seconds=seconds,
        drafter=response.headers["x-adaptive-drafter"],
        version=int(response.headers["x-adaptive-drafter-version"]),
        verify_steps=details.get("num_spec_steps", 0),
        accepted=details.get("num_accepted_draft_tokens", 0),
        histogram=tuple(details.get("acceptance_histogram", ())),
    )


class AdminClient:
    """The few admin calls the demo makes."""

    def __init__(self, base_url: str, admin_key: str) -> None:
        self._http = httpx.Client(
            base_url=base_url, timeout=30.0, trust_env=False, headers={"authorization": f"Bearer {admin_key}"}
        )

    def create_tenant(self, tenant: str) -> str:
        """Create a learning tenant and return a key for it."""
        created = self._http.post("/v1/tenants", json={"id": tenant, "learn": True})
        if created.status_code != httpx.codes.CONFLICT:
            created.raise_for_status()
        key = self._http.post(f"/v1/tenants/{tenant}/keys")
        key.raise_for_status()
        return str(key.json()["key"])

    def tenant(self, tenant: str) -> dict[str, Any]:
        """What the controller knows of a tenant."""
        response = self._http.get(f"/v1/tenants/{tenant}")
        response.raise_for_status()
        state: dict[str, Any] = response.json()
        return state

    def pin(self, tenant: str, version: int) -> None:
        """Make a version (0: turbo) serve whatever the policy finds."""
        self._http.patch(f"/v1/tenants/{tenant}", json={"pin": version}).raise_for_status()

    def versions(self, tenant: str) -> list[dict[str, Any]]:
        """Published versions, oldest first."""
        response = self._http.get(f"/v1/tenants/{tenant}/versions")
        response.raise_for_status()
        data: list[dict[str, Any]] = response.json()["data"]
        return sorted(data, key=lambda version: version["version"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
