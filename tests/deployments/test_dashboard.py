"""The live page, in a real browser, on what a real router says."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.testclient import TestClient

from deployments.dashboard import FILES
from deployments.http import build_http
from deployments.launch import free_ports
from deployments.messages import Vitals
from tests.deployments.conftest import eventually
from tests.deployments.watched import KEY, Deployment, busy, served

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
SHOTS = os.environ.get("SHOTS")


class Site:
    """A deployment at an address, and all that a page did there."""

    def __init__(self, deployment: Deployment, url: str, browser: Browser) -> None:
        self.deployment = deployment
        self.url = url
        self._browser = browser
        self.hosts: set[str | None] = set()
        self.complaints: list[str] = []

    def open(self, **options: Any) -> Page:
        context = self._browser.new_context(
            **{"viewport": {"width": 1280, "height": 860}, **options}
        )
        page = context.new_page()
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname))
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(f"{self.url}/dashboard")
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def site(browser: Browser) -> Iterator[Site]:
    (port,) = free_ports(1)
    deployment = Deployment()
    with served(deployment, port):
        yield Site(deployment, f"http://127.0.0.1:{port}", browser)
        for context in browser.contexts:
            context.close()


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.wait_for_timeout(300)
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def width_of(page: Page, replica: str) -> float:
    """The share of a replica's bar that is drawn as used."""
    share: float = page.evaluate(
        """(name) => {
            const bar = document.querySelector(`[data-key="${name}"] .bar`);
            const whole = bar.getBoundingClientRect().width;
            return bar.firstChild.getBoundingClientRect().width / whole;
        }""",
        replica,
    )
    return share


@needs_chromium
def test_replicas_the_queue_and_what_runs_are_shown_as_the_router_says(site: Site) -> None:
    busy(site.deployment)
    page = site.open()
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.locator("#model")).to_have_text("SmolLM2-135M-Instruct")
    for replica, used, total in (
        ("n3f8a1kq", 384, 512),
        ("p0c7w2ze", 492, 512),
        ("x9d4m6tb", 64, 256),
    ):
        bar = page.get_by_role("meter", name=f"KV blocks of {replica}")
        expect(bar).to_have_attribute("aria-valuenow", str(used))
        expect(bar).to_have_attribute("aria-valuemax", str(total))
        # The bar grows to its length.
        expected = used / total
        eventually(lambda name=replica, want=expected: abs(width_of(page, name) - want) < 0.01)
        row = page.locator(f'[data-key="{replica}"]')
        expect(row.locator(".share")).to_have_text(f"{used} / {total}")
        expect(row.locator(".work")).to_contain_text(f"{(used) // 8} running")
    expect(page.locator('[data-key="x9d4m6tb"] .state')).to_have_text("leaving")
    expect(page.locator('[data-key="p0c7w2ze"] .bar')).to_have_attribute("data-full", "true")
    gauges = site.deployment.core.gauges()
    assert gauges.by_priority
    rows = page.locator("#queue tbody tr")
    expect(rows).to_have_count(len(gauges.by_priority))
    for index, one in enumerate(gauges.by_priority):
        expect(rows.nth(index).locator(".count")).to_have_text(str(one.queued))
        expect(rows.nth(index).locator("td").first).to_have_text(shown(one.priority))
    waiting = gauges.queued + 2
    expect(page.locator('[data-key="Waiting"] .digits')).to_have_text(str(waiting))
    running = sum(one.running for one in gauges.replicas)
    expect(page.locator('[data-key="Running"] .digits')).to_have_text(str(running))
    assert site.complaints == []
    assert site.hosts == {"127.0.0.1"}
    shot(page, "busy")


def shown(priority: int) -> str:
    return f"+{priority}" if priority > 0 else str(priority).replace("-", "\u2212")


@needs_chromium
def test_of_many_priorities_the_highest_are_shown(site: Site) -> None:
    busy(site.deployment)
    for priority in range(1, 41):
        site.deployment.ask(f"p{priority}", priority, 200)
    page = site.open()
    expect(page.locator("#queue tbody tr")).to_have_count(12)
    expect(page.locator("#queue tbody td").first).to_have_text("+40")
    expect(page.locator("#queue-more")).to_have_text("30 lower priorities")


@needs_chromium
def test_times_and_rates_are_of_what_came_since_the_page_was_opened(site: Site) -> None:
    busy(site.deployment)
    counts = site.deployment.counts
    # From before; a minute's figures have nothing to do with them.
    counts.observe("time_to_first_token_seconds", 100.0, times=1000)
    page = site.open()
    p50 = page.locator('[data-key="First token, p50"]')
    expect(p50.locator(".digits")).to_have_text("\u2013")
    expect(page.locator('[data-key="Tokens"] .digits')).to_have_text("0")
    counts.observe("time_to_first_token_seconds", 0.2, times=8)
    counts.observe("time_to_first_token_seconds", 2.0, times=2)
    counts.preempted(Vitals(True, 0, 0), Vitals(True, 7, 0))
    # Half of 8 between 0.1 and 0.25 s, and so on, as Prometheus reckons.
    expect(p50.locator(".digits")).to_have_text("194")
    expect(p50.locator(".unit")).to_have_text("ms")
    expect(p50.locator(".more")).to_have_text("p90 1.8 s")
    expect(page.locator('[data-key="Preemptions"] .more')).to_have_text("7 in all")
    expect(page.locator('[data-key="Tokens"] .more')).to_have_text("1\u202f010 in all")


@needs_chromium
def test_a_course_is_as_wide_as_its_card_from_the_start(site: Site) -> None:
    """For two minutes cards would be empty but for a sliver at their right."""
    busy(site.deployment)
    page = site.open()
    course = page.locator('[data-key="Running"] .line')
    expect(course).to_have_attribute("d", re.compile(r"^M0\.00 .*L.*L100\.00 "))


@needs_chromium
@pytest.mark.parametrize(("queued", "said"), [(True, "oldest"), (False, "all at replicas")])
def test_it_says_where_those_are_that_wait(site: Site, queued: bool, said: str) -> None:
    for _ in range(2):
        site.deployment.report("n3f8a1kq", 512, 20, waiting=2)
        site.deployment.now += 61
    site.deployment.report("n3f8a1kq", 512, 20, waiting=2)
    if queued:
        site.deployment.ask("t", 0, 200)
    page = site.open()
    expect(page.locator('[data-key="Waiting"] .digits')).to_have_text("3" if queued else "2")
    expect(page.locator('[data-key="Waiting"] .more')).to_contain_text(said)


@needs_chromium
def test_it_asks_for_the_key_and_keeps_it_in_the_tab(site: Site) -> None:
    busy(site.deployment)
    site.deployment.key = KEY
    page = site.open()
    field = page.get_by_label("This server asks for its API key.")
    expect(field).to_be_visible()
    shot(page, "key")
    field.fill("sk-wrong")
    field.press("Enter")
    expect(page.get_by_role("status")).to_have_text("that key is not right")
    field.fill(KEY)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("status")).to_have_text("live")
    expect(field).to_be_hidden()
    page.reload()
    expect(page.get_by_role("status")).to_have_text("live")
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []


@needs_chromium
@pytest.mark.parametrize("key", ["sk-\u20ac", "sk-schl\xfcssel", "sk a", "sk-\x7f"])
def test_a_key_that_no_header_can_carry_is_not_taken(site: Site, key: str) -> None:
    """With one the browser sends nothing, which looks as if the server were away for ever."""
    busy(site.deployment)
    site.deployment.key = KEY
    page = site.open()
    field = page.get_by_label("This server asks for its API key.")
    field.fill(key)
    field.press("Enter")
    status = page.get_by_role("status")
    expect(status).to_have_text("no key has such characters")
    expect(field).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    field.fill(f"\u00a0 {KEY} ")
    field.press("Enter")
    expect(status).to_have_text("live")
    page.evaluate("(key) => sessionStorage.setItem('tidegate-key', key)", key)
    page.reload()
    expect(status).to_have_text("a key is needed")
    assert page.evaluate("sessionStorage.length") == 0
    assert [text for text in site.complaints if "401" not in text] == []


@needs_chromium
def test_it_says_that_the_server_is_away_and_comes_back_by_itself(browser: Browser) -> None:
    (port,) = free_ports(1)
    deployment = Deployment()
    busy(deployment)
    site = Site(deployment, f"http://127.0.0.1:{port}", browser)
    with served(deployment, port):
        page = site.open()
        status = page.get_by_role("status")
        expect(status).to_have_text("live")
        deployment.down = True
        expect(status).to_have_text("the router is being restarted")
        deployment.down = False
        expect(status).to_have_text("live")
    expect(status).to_have_text("the server does not answer")
    shot(page, "away")
    with served(deployment, port):
        expect(status).to_have_text("live", timeout=15_000)
    page.context.close()


@needs_chromium
@pytest.mark.parametrize("number", [0, 1, 200])
@pytest.mark.parametrize("width", [390, 1280])
def test_any_number_of_replicas_fits_any_width(site: Site, number: int, width: int) -> None:
    for _ in range(2):
        for index in range(number):
            site.deployment.report(f"replica{index:03}", 512, 512 - 2 * index)
        site.deployment.now += 61
    page = site.open(viewport={"width": width, "height": 844})
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.locator("#replicas > li")).to_have_count(number)
    expect(page.locator("#replicas-none")).to_be_visible(visible=number == 0)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert site.complaints == []
    if number:
        page.get_by_label("Order").select_option("full")
        first = page.locator("#replicas > li").first
        expect(first).to_have_attribute("data-key", f"replica{number - 1:03}")


@needs_chromium
def test_it_is_light_or_dark_as_the_viewer_likes_and_readable_in_both(site: Site) -> None:
    busy(site.deployment)
    grounds = []
    for scheme in ("light", "dark"):
        page = site.open(color_scheme=scheme)
        expect(page.get_by_role("status")).to_have_text("live")
        style = "(s, e = document.querySelector(s)) => getComputedStyle(e)"
        ground = luminance(page.evaluate(f"({style})('.panel').backgroundColor"))
        for soft in (".note", "th", ".model"):
            ink = luminance(page.evaluate(f"({style})('{soft}').color"))
            high, low = max(ink, ground), min(ink, ground)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, soft)
        grounds.append(ground)
        shot(page, scheme)
    assert grounds[0] > 0.8 > 0.1 > grounds[1]


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@needs_chromium
def test_it_does_not_ask_while_nobody_looks(site: Site) -> None:
    page = site.open()
    expect(page.get_by_role("status")).to_have_text("live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = """(state) => {
        Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, "hidden")
    page.wait_for_timeout(100)  # one that is under way may end
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate(hide, "visible")
    eventually(lambda: page.wait_for_timeout(20) or asked)


# ---- without a browser ------------------------------------------------------------------------


def test_nothing_in_it_comes_from_elsewhere() -> None:
    client = TestClient(build_http(Deployment()))
    for name in ("", *(f"/{name}" for name in FILES)):
        answer = client.get(f"/dashboard{name}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        links = [part for part in answer.text.split() if "://" in part]
        assert all("www.w3.org" in link for link in links), links
    assert client.get("/dashboard/../load.py").status_code == 404
    assert client.get("/dashboard/__init__.py").status_code == 404
