"""The dashboard's pages and forms; whoever asks signs in with a key first."""

# ruff: noqa: TC001  FastAPI evaluates annotations at run time
from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import ValidationError

from controller.context import Control, ControlDependency
from controller.dashboard import actions
from controller.dashboard.page import DEFAULT_WINDOW, WINDOWS, tenant_list, tenant_page
from controller.dashboard.rendering import protect, render
from controller.dashboard.sessions import Session, Sessions
from controller.dashboard.viewers import Door, Viewer, find_viewer, sign_in
from controller.errors import ConflictError, ControlError, NotFoundError
from controller.models import Tenant
from controller.operation import Operation

router = APIRouter(include_in_schema=False)
_STATIC: Final = Path(__file__).with_name("static")
_FILES: Final = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_DONE: Final = {
    "promote": "Promoted: engines take the version over within seconds.",
    "rollback": "Rolled back: engines follow within seconds.",
    "freeze": "Frozen: nothing is trained or published for this tenant.",
    "unfreeze": "Unfrozen: learning goes on.",
}


def _door(request: Request) -> Door:
    door = request.app.state.dashboard
    assert isinstance(door, Door)
    return door


def _sessions(request: Request) -> Sessions:
    return _door(request).sessions


SessionsDependency = Annotated[Sessions, Depends(_sessions)]


def _signed_in(
    request: Request, control: ControlDependency, sessions: SessionsDependency
) -> tuple[Session, Viewer] | None:
    session = sessions.read(request)
    viewer = None if session is None else find_viewer(control.database, session.key_id)
    return None if session is None or viewer is None else (session, viewer)


SignedIn = Annotated[tuple[Session, Viewer] | None, Depends(_signed_in)]


@router.get("/")
def index(
    request: Request,
    control: ControlDependency,
    sessions: SessionsDependency,
    signed_in: SignedIn,
    tenant: str | None = None,
    window: str = DEFAULT_WINDOW,
    q: str = "",
    done: str = "",
) -> Response:
    """Show one tenant, or the form to sign in."""
    if signed_in is None:
        # An expired session is no wrong key: the form says nothing.
        return render("sign_in.html", had_session=sessions.read(request) is not None, error=None)
    session, viewer = signed_in
    return _page(
        control, sessions, session, viewer, tenant, window=window, prefix=q[:63], done=_DONE.get(done)
    )


@router.post("/dashboard/sign-in")
def begin(
    request: Request, control: ControlDependency, sessions: SessionsDependency, key: Annotated[str, Form()]
) -> Response:
    """Start a session with the admin key or a tenant's key."""
    if not _same_site(request):
        return _refuse_form()
    viewer = sign_in(control.database, sessions, key)
    if viewer is None:
        door, address = _door(request), request.client.host if request.client else "unknown"
        door.metrics.turned_away.labels("key").inc()
        if door.rates.wait(None, address) is not None:
            error = "Too many wrong keys: wait a second, then try again."
            return render("sign_in.html", HTTPStatus.TOO_MANY_REQUESTS, had_session=False, error=error)
        return render(
            "sign_in.html",
            HTTPStatus.UNAUTHORIZED,
            had_session=False,
            error="This key opens nothing: use the admin key (ADAPTIVE_ADMIN_KEY, or the file admin_key of "
            "ADAPTIVE_HOME) or a tenant's key of scope tenant:read or tenant:write.",
        )
    response = protect(RedirectResponse("/", HTTPStatus.SEE_OTHER))
    sessions.start(request, response, viewer.principal.name)
    return response


@router.post("/dashboard/sign-out")
def end(
    request: Request, sessions: SessionsDependency, signed_in: SignedIn, form_token: Annotated[str, Form()]
) -> Response:
    """End the session in this browser."""
    if signed_in is not None and not (
        _same_site(request) and sessions.is_form_token(signed_in[0], form_token)
    ):
        return _refuse_form()
    response = protect(RedirectResponse("/", HTTPStatus.SEE_OTHER))
    sessions.end(response)
    return response


@router.post("/dashboard/tenants/{tenant_id}/{action}")
def act(
    request: Request,
    control: ControlDependency,
    sessions: SessionsDependency,
    signed_in: SignedIn,
    tenant_id: str,
    action: str,
    form_token: Annotated[str, Form()],
    seen: Annotated[int, Form()],
    window: Annotated[str, Form()] = DEFAULT_WINDOW,
    version: Annotated[str, Form()] = "",
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Promote, roll back, freeze or unfreeze; the first time round, ask whether that is meant.

    Where scripts run, the question is a dialog of the page and the form comes confirmed.
    """
    if signed_in is None:
        error = "Your session ended before this was done: sign in and try again."
        return render("sign_in.html", HTTPStatus.UNAUTHORIZED, had_session=False, error=error)
    session, viewer = signed_in
    if not (_same_site(request) and sessions.is_form_token(session, form_token)):
        return _refuse_form()
    if not viewer.may_change or viewer.tenant not in {None, tenant_id}:
        return render(
            "refused.html",
            HTTPStatus.FORBIDDEN,
            error="This key may not change this tenant: sign in with the admin key, or with a key of the "
            "tenant that may write.",
        )
    try:
        asked = actions.parse(action, version)
        _expect(control, tenant_id, seen)
        if confirmed != "yes":
            return render(
                "confirm.html",
                tenant_id=tenant_id,
                asked=asked,
                form_token=form_token,
                seen=seen,
                window=window,
            )
        operation = Operation(
            control, viewer.principal, request, Response(), key=None, fingerprint="", if_match=None
        )
        actions.carry_out(control, operation, tenant_id, asked)
    except (ControlError, ValidationError) as error:
        detail = error.detail if isinstance(error, ControlError) else "the form was damaged: try again"
        status = HTTPStatus.CONFLICT if isinstance(error, ConflictError) else HTTPStatus.UNPROCESSABLE_ENTITY
        status = HTTPStatus.NOT_FOUND if isinstance(error, NotFoundError) else status
        return _page(
            control,
            sessions,
            session,
            viewer,
            tenant_id,
            window=window,
            status=status,
            error=f"Not done: {detail}.",
        )
    target = request.url_for("index").include_query_params(tenant=tenant_id, window=window, done=action)
    return protect(RedirectResponse(f"/?{target.query}", HTTPStatus.SEE_OTHER))


@router.get("/dashboard/static/{name}")
def static(name: str) -> Response:
    """Send the style sheet, the script or the icon."""
    if name not in _FILES:
        raise NotFoundError(f"there is no {name!r}: the dashboard is at /")
    response = FileResponse(_STATIC / name, media_type=_FILES[name])
    protect(response)
    response.headers["Cache-Control"] = "no-cache"
    return response


def _page(
    control: Control,
    sessions: Sessions,
    session: Session,
    viewer: Viewer,
    tenant_id: str | None,
    *,
    window: str,
    prefix: str = "",
    status: HTTPStatus = HTTPStatus.OK,
    error: str | None = None,
    done: str | None = None,
) -> Response:
    window = window if window in WINDOWS else DEFAULT_WINDOW
    shown = None
    with control.database.read() as database:
        tenants = tenant_list(database, viewer.tenant, prefix)
        if tenant_id is None and tenants.ids:
            tenant_id = tenants.ids[0][0]
        if tenant_id is not None:
            # A tenant's key learns nothing of others, not even whether they exist.
            if viewer.tenant in {None, tenant_id} and database.get(Tenant, tenant_id) is not None:
                shown = tenant_page(database, control, tenant_id, window)
            elif error is None:
                status = HTTPStatus.NOT_FOUND
                error = f"There is no tenant {tenant_id!r} that this key may see: choose one from the list."
    return render(
        "page.html",
        status,
        page=shown,
        tenants=tenants,
        viewer=viewer,
        window=window,
        windows=WINDOWS,
        form_token=sessions.form_token(session),
        now=control.clock(),
        error=error,
        done=done,
    )


def _expect(control: Control, tenant_id: str, seen: int) -> None:
    """Refuse to act on a state that the viewer did not see."""
    with control.database.read() as database:
        tenant = database.get(Tenant, tenant_id)
        if tenant is None:
            raise NotFoundError(f"there is no tenant {tenant_id!r}")
        if tenant.policy_version != seen:
            raise ConflictError(
                "what serves has changed since you saw the page: look again, then decide anew"
            )


def _same_site(request: Request) -> bool:
    """Whether the browser says that a page of ours sent the form; old browsers say nothing."""
    return request.headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _refuse_form() -> Response:
    return render(
        "refused.html",
        HTTPStatus.FORBIDDEN,
        error="This form did not come from this page, or its session is over: open the dashboard again.",
    )
