"""Who looks at the dashboard: a signed cookie that names a key, and what that key opens now.

The cookie holds the key's id, never the key. What it opens is looked up again on every request, so a revoked
key ends its sessions at once; another admin key ends all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from itsdangerous import BadSignature, URLSafeTimedSerializer

if TYPE_CHECKING:
    from fastapi import Request, Response

COOKIE: Final = "adaptive_session"
LIFETIME_SECONDS: Final = 12 * 3600


@dataclass(frozen=True, slots=True)
class Session:
    """What the cookie says."""

    key_id: str
    """Of the tenant's key; `admin` is the admin key."""
    nonce: str


class Sessions:
    """Makes and reads session cookies.

    Args:
        admin_key: What the signatures derive from, so that controllers with one key share sessions and
            restarts end none.
    """

    def __init__(self, admin_key: str) -> None:
        self._admin_key: Final = admin_key.encode()
        self._secret: Final = hmac.digest(self._admin_key, b"adaptive dashboard sessions", "sha256")
        self._serializer: Final = URLSafeTimedSerializer(
            self._secret, salt="session", signer_kwargs={"digest_method": hashlib.sha256}
        )

    def is_admin_key(self, given: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(given.encode(), self._admin_key)

    def start(self, request: Request, response: Response, key_id: str) -> None:
        """Set the cookie of a new session."""
        value = self._serializer.dumps([key_id, secrets.token_urlsafe(16)])
        response.set_cookie(
            COOKIE,
            value,
            max_age=LIFETIME_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def end(self, response: Response) -> None:
        """Take the cookie away."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def read(self, request: Request) -> Session | None:
        """Read the session of a request; None where there is none, or it is forged or too old."""
        value = request.cookies.get(COOKIE)
        if value is None:
            return None
        try:
            key_id, nonce = self._serializer.loads(value, max_age=LIFETIME_SECONDS)
        except (BadSignature, ValueError, TypeError):
            return None
        return Session(str(key_id), str(nonce))

    def form_token(self, session: Session) -> str:
        """What a form of this session must bring along: no other site can know it."""
        return hmac.new(self._secret, f"form {session.nonce}".encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session: Session, given: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(given.encode(), self.form_token(session).encode())
