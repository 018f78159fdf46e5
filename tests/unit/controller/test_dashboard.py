"""The dashboard at `/`: who sees what, what forms may do, and that nothing said by others becomes markup."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from adaptive.contracts import Arm
from controller import rates
from controller.dashboard import sessions
from controller.dashboard.charts import Frame, Line, line_chart, time_ticks, value_ticks
from controller.models import Decision
from tests.unit.controller.conftest import ADMIN_KEY, START, Bench, counters


@pytest.fixture
def browser(bench: Bench) -> TestClient:
    """A browser without a session."""
    return TestClient(bench.app, raise_server_exceptions=True, follow_redirects=False)


def sign_in(browser: TestClient, key: str = ADMIN_KEY) -> None:
    """Sign in, which must succeed."""
    response = browser.post("/dashboard/sign-in", data={"key": key})
    assert response.status_code == 303, response.text


def form_token(browser: TestClient) -> str:
    """What the page's forms bring along."""
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', browser.get("/").text)
    assert found
    return found[1]


def new_key(bench: Bench, scope: str = "tenant:read") -> Any:
    """Make a key of acme."""
    return bench.request("POST", "/v1/tenants/acme/keys", {"scope": scope}, 201)


def act(browser: TestClient, bench: Bench, action: str, tenant: str = "acme", **fields: str) -> Any:
    """Press a button and confirm."""
    values = {
        "form_token": form_token(browser),
        "seen": str(bench.tenant(tenant)["policy_version"]),
        "confirmed": "yes",
    }
    return browser.post(f"/dashboard/tenants/{tenant}/{action}", data=values | fields)


def test_a_stranger_sees_the_sign_in_form_and_nothing_else(bench: Bench, browser: TestClient) -> None:
    """Without a session the page tells nothing of tenants, and the headers keep other sites out."""
    bench.create("acme")
    response = browser.get("/", params={"tenant": "acme"})
    assert response.status_code == 200
    assert "acme" not in response.text
    assert 'name="key"' in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["cache-control"] == "no-store"


def test_a_wrong_key_is_refused_in_place(browser: TestClient) -> None:
    """The form comes back with an error, without a cookie and without the key."""
    response = browser.post("/dashboard/sign-in", data={"key": "adm_wrong"})
    assert response.status_code == 401
    assert 'role="alert"' in response.text
    assert "adm_wrong" not in response.text
    assert "set-cookie" not in response.headers


def test_the_session_cookie_is_out_of_reach(browser: TestClient) -> None:
    """Scripts and other sites do not get the cookie, and it does not hold the key."""
    response = browser.post("/dashboard/sign-in", data={"key": ADMIN_KEY})
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ADMIN_KEY not in cookie
    assert response.headers["location"] == "/"


def test_a_forged_or_old_cookie_is_no_session(
    bench: Bench, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed cookie, one signed under another admin key and one past its time show the sign-in form."""
    bench.create("acme")
    sign_in(browser)
    value = browser.cookies[sessions.COOKIE]
    browser.cookies.clear()
    for wrong in (value[:-1] + ("A" if value[-1] != "A" else "B"), "", "x" * 4000):
        assert "acme" not in browser.get("/", headers={"Cookie": f"{sessions.COOKIE}={wrong}"}).text
    monkeypatch.setattr(sessions, "LIFETIME_SECONDS", -1)
    assert "acme" not in browser.get("/", headers={"Cookie": f"{sessions.COOKIE}={value}"}).text


def test_a_session_opens_no_route_of_the_admin_api(bench: Bench, browser: TestClient) -> None:
    """The cookie is for the page only: other sites could send it along."""
    bench.create("acme")
    sign_in(browser)
    assert browser.get("/v1/tenants").status_code == 401


def test_signing_out_ends_the_session(bench: Bench, browser: TestClient) -> None:
    """The cookie is taken away; a sign-out that another site sends does nothing."""
    bench.create("acme")
    sign_in(browser)
    assert browser.post("/dashboard/sign-out", data={"form_token": "0" * 64}).status_code == 403
    assert browser.post("/dashboard/sign-out", data={"form_token": form_token(browser)}).status_code == 303
    assert "acme" not in browser.get("/").text


def test_everything_is_shown_for_a_tenant(bench: Bench, browser: TestClient) -> None:
    """Numbers, every chart with its table, versions, arms and decisions come from what was reported."""
    bench.create("acme")
    bench.publish(1)
    for minute in range(1, 5):
        bench.clock.now = START + 60 * minute
        bench.report(
            [
                counters(Arm.TURBO, 0, 100 * minute, 100 * minute),
                counters(Arm.ADAPTER, 1, 400 * minute, 700 * minute),
            ],
            acknowledged={"acme": 2},
        )
    sign_in(browser)
    page = browser.get("/", params={"tenant": "acme", "window": "15m"}).text
    for title in ("Acceptance length", "Lift of", "Speed", "Arm weights", "Lookahead k", "Timeline"):
        assert title in page
    assert page.count("<svg") == 6
    assert page.count('<div class="scroll" tabindex="0" role="region"') == 8
    assert '<td class="number">2.75</td>' in page
    assert '<td class="number">+37.5 %</td>' in page
    assert '<td class="number">81.2 %</td>' in page
    assert "adapter@1" in page
    assert "promote" in page
    assert "2 of 2" in page


def test_a_tenant_without_traffic_says_so(bench: Bench, browser: TestClient) -> None:
    """Nothing is drawn that was not measured."""
    sign_in(browser)
    assert "No tenant yet" in browser.get("/").text
    bench.create("acme")
    page = browser.get("/").text
    assert "No traffic of this tenant" in page
    assert "No version was published yet" in page
    assert "nothing to roll back" in page


def test_markup_in_what_others_said_is_text(bench: Bench, browser: TestClient) -> None:
    """A reason, an engine's name and a tenant in the address never become elements."""
    bench.create("acme")
    evil = '"><script>alert(1)</script>'
    bench.report(
        [counters(Arm.TURBO, 0, 10, 10)], engine=evil, refused={"acme": evil}, acknowledged={"acme": 1}
    )
    with bench.control.database.write() as session:
        session.query(Decision).update({"reason": evil})
    sign_in(browser)
    for page in (
        browser.get("/").text,
        browser.get("/", params={"tenant": evil}).text,
        browser.get("/", params={"q": evil, "window": evil}).text,
    ):
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page


def test_a_tenants_key_sees_that_tenant_only(bench: Bench, browser: TestClient) -> None:
    """Other tenants are not listed, not shown, and not told apart from ones that do not exist."""
    bench.create("acme")
    bench.create("globex")
    key = new_key(bench)["key"]
    sign_in(browser, key)
    assert "globex" not in browser.get("/").text
    assert "globex" not in browser.get("/", params={"q": "g"}).text
    other = browser.get("/", params={"tenant": "globex"})
    missing = browser.get("/", params={"tenant": "nobody"})
    assert other.status_code == missing.status_code == 404
    without_time = [re.sub(r"<time.*?</time>", "", text) for text in (other.text, missing.text)]
    assert without_time[0].replace("globex", "nobody") == without_time[1]


def test_a_revoked_key_ends_its_sessions(bench: Bench, browser: TestClient) -> None:
    """What a key opens is looked up again on every request."""
    bench.create("acme")
    made = new_key(bench)
    sign_in(browser, made["key"])
    assert "acme" in browser.get("/").text
    bench.request("DELETE", f"/v1/tenants/acme/keys/{made['id']}", status=204)
    assert "acme" not in browser.get("/").text


def test_buttons_do_what_the_admin_api_does(bench: Bench, browser: TestClient) -> None:
    """Freeze, unfreeze, promote and roll back change the tenant and are on record."""
    bench.create("acme")
    sign_in(browser)
    assert act(browser, bench, "freeze").status_code == 303
    assert bench.tenant()["freeze"] is True
    bench.publish(1)  # held: the tenant is frozen
    assert act(browser, bench, "promote", version="1").status_code == 303
    assert bench.tenant()["champion"] == 1
    response = act(browser, bench, "rollback")
    assert response.status_code == 303
    assert bench.statuses() == {1: "rolled_back"}
    assert "Rolled back" in browser.get(response.headers["location"]).text
    assert act(browser, bench, "unfreeze").status_code == 303
    assert bench.tenant()["freeze"] is False
    kinds = [(item["kind"], item["actor"]) for item in bench.decisions()]
    assert ("rollback", "admin") in kinds
    assert ("promote", "admin") in kinds


def test_nothing_happens_before_it_is_confirmed(bench: Bench, browser: TestClient) -> None:
    """Without scripts the first press leads to a question, whose form acts."""
    bench.create("acme")
    bench.publish(1)
    sign_in(browser)
    asked = act(browser, bench, "rollback", confirmed="")
    assert asked.status_code == 200
    assert "Are you sure?" in asked.text
    assert 'name="confirmed" value="yes"' in asked.text
    assert bench.tenant()["champion"] == 1


def test_forms_of_other_sites_are_refused(bench: Bench, browser: TestClient) -> None:
    """A form without this session's token, or which the browser says another site sent, changes nothing."""
    bench.create("acme")
    sign_in(browser)
    assert act(browser, bench, "freeze", form_token="0" * 64).status_code == 403
    fields = {"form_token": form_token(browser), "seen": "1", "confirmed": "yes"}
    url = "/dashboard/tenants/acme/freeze"
    assert browser.post(url, data=fields, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert browser.post("/dashboard/sign-in", data={"key": ADMIN_KEY}, headers={"Sec-Fetch-Site": "same-site"}
                        ).status_code == 403  # fmt: skip
    browser.cookies.clear()
    assert browser.post(url, data=fields).status_code == 401
    assert bench.tenant()["freeze"] is False


def test_an_endpoints_key_opens_nothing(
    bench: Bench, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that clients hold do not open the dashboard, and many wrong keys have to wait."""
    bench.create("acme")
    monkeypatch.setattr(rates, "WRONG_KEYS_PER_SECOND", 0.1)
    key = new_key(bench, "inference")["key"]
    codes = [browser.post("/dashboard/sign-in", data={"key": key}).status_code for _ in range(3)]
    assert codes[0] == 401
    assert codes[-1] == 429


def test_a_tenants_key_that_writes_changes_that_tenant(bench: Bench, browser: TestClient) -> None:
    """It has the buttons of its tenant, what it does is on record, and other tenants stay closed."""
    bench.create("acme")
    bench.create("globex")
    bench.publish(1)
    made = new_key(bench, "tenant:write")
    sign_in(browser, made["key"])
    assert act(browser, bench, "rollback").status_code == 303
    assert bench.decisions()[0]["actor"] == "tenant"
    entry = bench.request("GET", "/v1/audit")["data"][0]
    assert entry["actor"] == made["id"]
    assert act(browser, bench, "freeze", "globex").status_code == 403
    assert bench.tenant("globex")["freeze"] is False


def test_a_tenants_key_that_reads_changes_nothing(bench: Bench, browser: TestClient) -> None:
    """It has no buttons, and forms sent anyhow are refused for its own and for other tenants."""
    bench.create("acme")
    bench.create("globex")
    sign_in(browser, new_key(bench)["key"])
    assert 'id="freeze"' not in browser.get("/").text
    for tenant in ("acme", "globex"):
        assert act(browser, bench, "freeze", tenant).status_code == 403
        assert bench.tenant(tenant)["freeze"] is False


@pytest.mark.parametrize(
    ("action", "fields", "status", "says"),
    [
        ("rollback", {}, 409, "nothing to roll back"),
        ("promote", {"version": "9"}, 404, "no version 9"),
        ("promote", {"version": "x"}, 422, "is no version"),
        ("promote", {"version": "99999999999999"}, 422, "is no version"),
        ("erase", {}, 422, "is none of"),
        ("freeze", {"seen": "7"}, 409, "has changed since"),
    ],
)
def test_what_cannot_be_done_is_said_on_the_page(
    bench: Bench, browser: TestClient, action: str, fields: dict[str, str], status: int, says: str
) -> None:
    """The page comes back with the reason as an alert."""
    bench.create("acme")
    sign_in(browser)
    response = act(browser, bench, action, **fields)
    assert response.status_code == status
    assert "Not done:" in response.text
    assert says in response.text
    assert "<h1>acme</h1>" in response.text


def test_only_the_pages_own_files_are_served(browser: TestClient) -> None:
    """The style sheet, the script and the icon are there; nothing else is."""
    assert browser.get("/dashboard/static/dashboard.css").headers["content-type"].startswith("text/css")
    assert browser.get("/dashboard/static/dashboard.js").status_code == 200
    for name in ("page.html", "..%2froutes.py", "nothing"):
        assert browser.get(f"/dashboard/static/{name}").status_code == 404


def test_charts_hold_no_styles_scripts_or_links() -> None:
    """What pygal draws passes the Content-Security-Policy: only shapes and texts are left."""
    points = [(60.0, 1.0), (120.0, 2.0), (300.0, 3.0)]
    svg = line_chart("a < b", Frame(0, 600, 60), [Line("x", "arm-turbo", points)])
    assert not re.search(r"<(style|script|a|image|use|foreignObject)\b|style=|href|\bon\w+=", svg)
    assert "<title>a &lt; b</title>" in svg
    series = svg[svg.index('class="series arm-turbo"') :]
    assert series[: series.index("</g>")].count("<path") == 2, "the gap interrupts the line"


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 3.2), (-5, 10), (0, 1e-7), (99.5, 100), (0, 12_345)])
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    """Axes begin below the least value, end above the greatest, and have a readable number of steps."""
    ticks = value_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8


def test_time_ticks_are_few_and_round() -> None:
    """Every stretch that can be chosen has three to eight labels."""
    for seconds in (900, 3_600, 21_600, 86_400, 604_800, 2_592_000):
        assert 3 <= len(time_ticks(START, START + seconds)) <= 8
