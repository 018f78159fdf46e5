"""A real `adaptive serve` process on its own home, with accounts written as the controller writes them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai

from adaptive import contracts
from adaptive.contracts import PolicyDecided, TenantChanged, TenantState
from adaptive.internal_key import internal_key
from adaptive.settings import Settings
from collectors.open import open_transport
from deploy.kafka.broker import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
MODEL = "smollm2-135m"
START_SECONDS = 300
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-log-requests")
"""Flags of `vllm serve`, passed on."""


class Server:
    """One endpoint with its engine; `acme` and `other` have keys from the start."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        models = ROOT / ".adaptive" / "models"
        (home / "models").symlink_to(models)
        self.settings = Settings(home=home, endpoint_port=free_port())
        self.log_path = home / "serve.log"
        self._log = open_transport(self.settings.resolved_log_url)
        self._revision = 0
        self._clients: list[openai.OpenAI] = []
        for tenant in ("acme", "other"):
            self.account(tenant)
            self.policy(tenant)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ADAPTIVE_")},
            "ADAPTIVE_HOME": str(home),
            "ADAPTIVE_ENDPOINT_PORT": str(self.settings.endpoint_port),
            "ADAPTIVE_DTYPE": "float32",
            "ADAPTIVE_MAX_MODEL_LEN": "1024",
            "ADAPTIVE_KV_CACHE_GIB": "0.5",
            "ADAPTIVE_CAPTURE": "false",
            "ADAPTIVE_LOAD_FLOOR": "false",  # drafts however loaded the machine is
            "ADAPTIVE_ACCEPTANCE_DETAILS": "true",
        }
        with self.log_path.open("wb") as output:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("adaptive")), "serve", *FLAGS, *flags],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
            )

    # -- life ----------------------------------------------------------------------------------------------

    def newcomer(self, tenant: str) -> openai.OpenAI:
        """A new tenant's client, once the endpoint knows its key."""
        self.account(tenant)
        self.policy(tenant)
        deadline = time.monotonic() + 20
        while self.get("/v1/models", f"{tenant}-key").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return self.client(tenant)

    def wait_ready(self) -> None:
        """Until it serves and knows its accounts."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, self.logs()[-5000:]
            assert time.monotonic() < deadline, self.logs()[-5000:]
            try:
                if self.get("/v1/models", "other-key").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)

    def terminate(self) -> None:
        """SIGTERM, as an orchestrator would."""
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Stop it, whatever it does."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def logs(self) -> str:
        """Everything the processes wrote."""
        return self.log_path.read_text(errors="replace")

    # -- accounts ------------------------------------------------------------------------------------------

    def account(self, tenant: str, state: TenantState = TenantState.ACTIVE, **quotas: int) -> None:
        """Write a tenant's account; its key is `<tenant>-key`."""
        self._revision += 1
        changed = TenantChanged(
            tenant=tenant,
            revision=self._revision,
            state=state,
            key_hashes=[hashlib.sha256(f"{tenant}-key".encode()).hexdigest()],
            learn=False,
            share=False,
            freeze=False,
            changed_at=time.time(),
            **quotas,
        )
        self._log.send(contracts.TOPIC_TENANT_CHANGED, tenant, contracts.encode(changed))

    def policy(self, tenant: str) -> None:
        """Write a policy without control groups, so that turbo drafts for every request."""
        decided = PolicyDecided(
            tenant=tenant,
            policy_version=1,
            champion=None,
            weight=1.0,
            max_lookahead=8,
            control_share=0.0,
            off_share=0.0,
            reason="test",
            decided_at=time.time(),
        )
        self._log.send(contracts.TOPIC_POLICY_DECIDED, tenant, contracts.encode(decided))

    # -- requests ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.settings.endpoint_port}"

    def client(self, tenant: str = "acme", **options: Any) -> openai.OpenAI:
        """The official client with a tenant's key; it does not retry."""
        client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=f"{tenant}-key", **({"max_retries": 0} | options)
        )
        self._clients.append(client)
        return client

    def get(
        self, path: str, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """A plain GET."""
        return httpx.get(self.url + path, headers=_bearer(key) | dict(headers or {}), timeout=60)

    def post(
        self,
        path: str,
        body: Any = None,
        key: str | None = "acme-key",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A plain POST of JSON, or of bytes as they are."""
        given = {"content-type": "application/json"} | _bearer(key) | dict(headers or {})
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(self.url + path, headers=given, timeout=120, **content)

    def request(self, method: str, path: str, key: str | None) -> httpx.Response:
        """A request without a body."""
        return httpx.request(method, self.url + path, headers=_bearer(key), timeout=60)

    def process_alive(self) -> bool:
        """Whether the engine still answers."""
        return self.get("/health").status_code == 200

    def engine(self) -> dict[str, Any]:
        """`/internal/engine`."""
        key = internal_key(self.settings)
        state: dict[str, Any] = self.get("/internal/engine", headers={"x-adaptive-internal-key": key}).json()
        return state


def _bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key is not None else {}
