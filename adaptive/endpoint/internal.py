"""`GET /internal/engine`: what engine and endpoint hold, for operators and tools with the internal key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive.endpoint.limits import Limiter
    from adaptive.endpoint.tenants import TenantDirectory


def add_engine_route(app: Any, client: Any, directory: TenantDirectory, limiter: Limiter) -> None:
    """Serve the engine's slots, counters, pauses and capture, and the tenants the endpoint knows."""

    async def engine_state() -> dict[str, Any]:
        """Slots, counters, swap pauses, capture and tenants (internal)."""
        state: dict[str, Any] = (await client.collective_rpc("adapter_info"))[0]
        return state | {"tenants": tenants(directory, limiter)}

    app.add_api_route("/internal/engine", engine_state, methods=["GET"], include_in_schema=False)


def tenants(directory: TenantDirectory, limiter: Limiter) -> dict[str, dict[str, Any]]:
    """Account, policy in force and requests in flight per tenant; no keys, not even hashed."""
    in_flight = limiter.in_flight()
    return {
        tenant: {
            "state": account.state.value,
            "learn": account.learn,
            "keys": len(account.key_hashes),
            "policy_version": policy.policy_version if policy is not None else None,
            "version": version,
            "max_lookahead": policy.max_lookahead if policy is not None else None,
            "requests_in_flight": in_flight.get(tenant, 0),
            "requests_per_minute": account.requests_per_minute,
            "tokens_per_minute": account.tokens_per_minute,
            "concurrent_requests": account.concurrent_requests,
        }
        for tenant, (account, policy, version) in directory.overview().items()
    }
