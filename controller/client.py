"""A small typed client of the admin API; needs httpx and pydantic only, none of the controller's extra.

>>> with ControlClient("http://127.0.0.1:8100", key) as control:
...     control.create_tenant("acme", learn=True).champion
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import httpx
from pydantic import BaseModel

from controller.names import KeyScope
from controller.schemas import (
    AuditState,
    DecisionState,
    EngineState,
    ErasureState,
    KeySummary,
    LearnerState,
    NewKey,
    Page,
    RolloutState,
    Series,
    TenantDetail,
    TenantSummary,
    VersionDetail,
    VersionState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ModelT = TypeVar("ModelT", bound=BaseModel)
TIMEOUT_SECONDS: Final = 30.0
PAGE: Final = 1000


class ControlRefusedError(Exception):
    """The API answered with a problem.

    Args:
        status: HTTP status.
        detail: What is wrong and what to do about it.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ControlClient:
    """Calls the admin API; changing calls carry an Idempotency-Key, so that a retry never acts twice.

    Args:
        url: Where the controller listens.
        key: The admin key, or a tenant's key of the API.
        transport: httpx transport, for tests.

    Every method raises ControlRefusedError for a problem, and httpx.TransportError where nobody answers.
    """

    def __init__(self, url: str, key: str, transport: httpx.BaseTransport | None = None) -> None:
        # No proxy of the environment: the key is for the controller only.
        self._http = httpx.Client(
            base_url=url,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            transport=transport,
            headers={"Authorization": f"Bearer {key}"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def request(self, method: str, path: str, body: Any = None, *, if_match: str | None = None) -> Any:
        """Make one call and return its JSON; None where the answer has no body."""
        headers = {} if if_match is None else {"If-Match": if_match}
        if method != "GET":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        answer = self._http.request(method, path, json=body, headers=headers)
        if not answer.is_success:
            raise ControlRefusedError(answer.status_code, _explain(answer))
        return answer.json() if answer.content else None

    def items(self, path: str) -> Iterator[Any]:
        """Read every page of a list."""
        after = ""
        while True:
            page = self.request("GET", f"{path}?limit={PAGE}{after}")
            yield from page["data"]
            if not page["has_more"]:
                return
            after = f"&after={page['last_id']}"

    def create_tenant(self, tenant: str, *, learn: bool = False) -> TenantDetail:
        """Add a tenant."""
        return self._one(TenantDetail, "POST", "/v1/tenants", {"id": tenant, "learn": learn})

    def tenants(self) -> Iterator[TenantSummary]:
        """List tenants by name."""
        return self._many(TenantSummary, "/v1/tenants")

    def tenant(self, tenant: str) -> TenantDetail:
        """Show all that is known of a tenant."""
        return self._one(TenantDetail, "GET", f"/v1/tenants/{tenant}")

    def patch_tenant(self, tenant: str, *, if_match: str | None = None, **changes: Any) -> TenantDetail:
        """Change fields of a tenant; see `controller.schemas.TenantPatch`."""
        return self._one(TenantDetail, "PATCH", f"/v1/tenants/{tenant}", changes, if_match)

    def erase_tenant(self, tenant: str) -> ErasureState:
        """Begin the erasure of a tenant."""
        return self._one(ErasureState, "DELETE", f"/v1/tenants/{tenant}")

    def job(self, job: str) -> ErasureState:
        """Show how far a job is."""
        return self._one(ErasureState, "GET", f"/v1/jobs/{job}")

    def create_key(self, tenant: str, scope: KeyScope = KeyScope.INFERENCE) -> NewKey:
        """Make a key; it is shown only in this answer."""
        return self._one(NewKey, "POST", f"/v1/tenants/{tenant}/keys", {"scope": scope.value})

    def keys(self, tenant: str) -> Iterator[KeySummary]:
        """List the valid keys of a tenant."""
        return self._many(KeySummary, f"/v1/tenants/{tenant}/keys")

    def rotate_key(self, tenant: str, key: str, grace_seconds: float = 0.0) -> NewKey:
        """Make a key in place of another."""
        body = {"grace_seconds": grace_seconds}
        return self._one(NewKey, "POST", f"/v1/tenants/{tenant}/keys/{key}/rotate", body)

    def revoke_key(self, tenant: str, key: str) -> None:
        """Make a key invalid."""
        self.request("DELETE", f"/v1/tenants/{tenant}/keys/{key}")

    def versions(self, tenant: str) -> Iterator[VersionState]:
        """List a tenant's versions, newest first."""
        return self._many(VersionState, f"/v1/tenants/{tenant}/versions")

    def version(self, tenant: str, version: int) -> VersionDetail:
        """Show one version with its lineage."""
        return self._one(VersionDetail, "GET", f"/v1/tenants/{tenant}/versions/{version}")

    def delete_version(self, tenant: str, version: int) -> None:
        """Delete the bytes of a version that is not in use."""
        self.request("DELETE", f"/v1/tenants/{tenant}/versions/{version}")

    def promote(self, tenant: str, version: int) -> TenantDetail:
        """Put a version in service."""
        return self._one(TenantDetail, "POST", f"/v1/tenants/{tenant}/promote", {"version": version})

    def rollback(self, tenant: str) -> TenantDetail:
        """Return to what served before."""
        return self._one(TenantDetail, "POST", f"/v1/tenants/{tenant}/rollback")

    def rollouts(self, tenant: str | None = None) -> Iterator[RolloutState]:
        """List the rollouts of a tenant, newest first, or of all."""
        return self._many(
            RolloutState, "/v1/rollouts" if tenant is None else f"/v1/tenants/{tenant}/rollouts"
        )

    def rollout(self, tenant: str, version: int) -> RolloutState:
        """Show how far the rollout of a version is, with its numbers."""
        return self._one(RolloutState, "GET", f"/v1/tenants/{tenant}/rollouts/{version}")

    def abort_rollout(self, tenant: str, version: int) -> RolloutState:
        """End a rollout; its version stays a candidate."""
        return self._one(RolloutState, "POST", f"/v1/tenants/{tenant}/rollouts/{version}/abort")

    def decisions(self, tenant: str | None = None) -> Iterator[DecisionState]:
        """List the decisions about a tenant, newest first, or about all."""
        return self._many(
            DecisionState, "/v1/decisions" if tenant is None else f"/v1/tenants/{tenant}/decisions"
        )

    def series(self, tenant: str) -> Series:
        """Show a tenant's last hour."""
        return self._one(Series, "GET", f"/v1/tenants/{tenant}/series")

    def engines(self) -> Iterator[EngineState]:
        """List the engines."""
        return self._many(EngineState, "/v1/engines")

    def erasures(self) -> Iterator[ErasureState]:
        """List every erasure, under way or done."""
        return self._many(ErasureState, "/v1/erasures")

    def learners(self) -> Iterator[LearnerState]:
        """List the learners."""
        return self._many(LearnerState, "/v1/learners")

    def audit(self, limit: int = 100) -> Page[AuditState]:
        """Show the newest entries of the audit log."""
        return Page[AuditState].model_validate(self.request("GET", f"/v1/audit?limit={limit}"))

    def _one(
        self, model: type[ModelT], method: str, path: str, body: Any = None, if_match: str | None = None
    ) -> ModelT:
        return model.model_validate(self.request(method, path, body, if_match=if_match))

    def _many(self, model: type[ModelT], path: str) -> Iterator[ModelT]:
        return (model.model_validate(item) for item in self.items(path))


def _explain(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}, which is no controller: check --control-port"
