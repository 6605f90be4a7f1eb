"""The chat page in a real browser, before real gateways and a server with the fake engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import StepError
from service.keys import hash_of, new_key
from tests.browser.conftest import Balancer
from tests.fakes import FakeEngine, endless, saying
from tests.running_gateway import RunningGateway, start_gateways
from tests.service.cli.threaded_server import ThreadedServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ANSWER = "Rain bends the light: `n = 1.33`.\n\n```python\nprint('<b>no markup</b>')\n```\n**Grüße**, 안녕!"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script> & <b>bold</b>"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(slots=True)
class Site:
    """The page's address, and what is behind it."""

    url: str
    engine: FakeEngine
    gateways: list[RunningGateway]


@contextmanager
def site(folder: Path, engine: FakeEngine, *, gateways: int = 1, **settings: Any) -> Iterator[Site]:
    with (
        ThreadedServer(engine, propagation_s=0.0, grace_s=0.0, **settings) as server,
        start_gateways(gateways, "--target", server.target, folder=folder) as started,
    ):
        balancer = Balancer(*(gateway.port for gateway in started))
        try:
            yield Site(balancer.url, engine, started)
        finally:
            balancer.close()


@pytest.fixture(scope="module")
def two_gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that only read; each sets the engine's answer."""
    with site(tmp_path_factory.mktemp("site"), FakeEngine(), gateways=2) as opened:
        yield opened


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator("li.theirs")


def ended(page: Page, count: int = 1) -> Locator:
    """The last of so many answers, when it is there whole."""
    last = answers(page).nth(count - 1)
    last.locator(".note").wait_for()
    return last


def test_a_conversation_with_its_figures(page: Page, two_gateways: Site, shots: Path) -> None:
    two_gateways.engine.answer = saying(ANSWER)
    page.goto(two_gateways.url)
    page.get_by_text("fake · cpu · graph replays").wait_for()
    page.screenshot(path=shots / "welcome.png")
    page.get_by_role("button", name=re.compile("rainbow")).click()
    first = ended(page)
    assert first.locator("pre code").inner_text() == "print('<b>no markup</b>')"
    assert first.locator("p code").inner_text() == "n = 1.33"
    assert first.locator("strong").inner_text() == "Grüße"
    figures = first.get_by_label("Figures of this answer").inner_text()
    tokens = len(ANSWER.encode()) + 1
    for said in ("tokens/s", "first token", f"{tokens} tokens", f"{tokens} replays, 0 eager"):
        assert said in figures
    ask(page, "And why?")
    ended(page, 2)
    assert page.locator("li.mine").all_inner_texts()[1] == "And why?"
    # The second turn was read with the first one, most of it from the session's cache.
    kept = answers(page).nth(1).locator("li").nth(2).get_attribute("title")
    assert kept is not None
    read, cached = (int(number) for number in re.findall(r"\d+", kept))
    assert read > cached > 40
    page.get_by_role("button", name="Try again").click()
    ended(page, 2)
    assert answers(page).count() == 2
    page.get_by_role("button", name="New chat").click()
    assert answers(page).count() == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ask(page, "Once more")
        ended(page)
        page.screenshot(path=shots / f"{scheme}.png")
        page.get_by_role("button", name="New chat").click()
    assert all(shot.read_bytes().startswith(PNG) for shot in shots.iterdir())
    assert len(list(shots.iterdir())) == 3


def test_what_is_said_is_text_and_never_markup(page: Page, two_gateways: Site) -> None:
    two_gateways.engine.answer = saying(MARKUP)
    page.goto(two_gateways.url)
    ask(page, MARKUP)
    answer = ended(page)
    assert answer.locator(".said").inner_text() == MARKUP
    assert page.locator("li.mine").inner_text() == MARKUP
    assert page.locator("#messages img, #messages script, #messages b").count() == 0


def test_stop_ends_the_turn_on_the_server(page: Page, two_gateways: Site) -> None:
    engine = two_gateways.engine
    engine.answer = endless
    page.goto(two_gateways.url)
    engine.hold()
    engine.allow(30)
    try:
        ask(page, "Go on for ever")
        answers(page).get_by_text("word word").wait_for()
        page.get_by_role("button", name="Stop").click()
        assert "stopped" in ended(page).inner_text()
        page.get_by_role("button", name="Send").wait_for()
    finally:
        engine.release()
    engine.answer = saying("Done.")
    ask(page, "And now?")  # the only place on the device is free again
    assert "Done." in ended(page, 2).inner_text()


def test_promise_08_a_gateway_killed_hard_costs_no_word_on_the_page(page: Page, tmp_path: Path, shots: Path) -> None:
    text = "one two three four five six seven eight nine ten"
    with site(tmp_path, FakeEngine(answer=saying(text)), gateways=2) as two:
        page.goto(two.url)
        page.get_by_text("fake · cpu").wait_for()
        two.engine.hold()
        two.engine.allow(14)
        ask(page, "Count")
        answers(page).get_by_text("one two").wait_for()
        two.gateways[0].process.kill()
        page.get_by_text("Picking the answer up").wait_for()
        page.screenshot(path=shots / "lost.png")
        two.engine.release()
        answer = ended(page)
        assert answer.locator(".said").inner_text() == text
        assert "picked up 1×" in answer.inner_text()
        assert two.gateways[1].process.poll() is None


def test_errors_are_told_and_can_be_tried_again(page: Page, tmp_path: Path, shots: Path) -> None:
    key, folder = new_key(), tmp_path
    keys = folder / "keys.yaml"
    keys.write_text(f"keys:\n  - name: web\n    hash: {hash_of(key)}\n    session_scope: none\n", encoding="utf-8")
    with site(folder, FakeEngine(answer=saying("Hi.")), keys=str(keys)) as one:
        page.goto(one.url)
        page.get_by_text("a key is needed").wait_for()
        ask(page, "Hello?")
        alert = page.get_by_role("alert")
        alert.get_by_text("A key is needed").wait_for()
        page.screenshot(path=shots / "key.png")
        alert.get_by_role("button", name="Enter an API key").click()
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Done").click()
        # This key may keep no sessions: the page does without them.
        alert.get_by_role("button", name="Try again").click()
        assert "Hi." in ended(page).inner_text()
        one.engine.fail(2, StepError("no memory"))
        ask(page, "Again")
        page.get_by_role("alert").get_by_text("internal error").wait_for()
        page.get_by_role("alert").get_by_role("button", name="Try again").click()
        assert "Hi." in ended(page, 2).inner_text()
        one.gateways[0].process.kill()
        one.gateways[0].process.wait()
        ask(page, "Anybody?")
        page.get_by_role("alert").get_by_text("The gateway cannot be reached").wait_for()


def test_everything_has_a_name_and_the_keyboard_suffices(page: Page, two_gateways: Site, shots: Path) -> None:
    two_gateways.engine.answer = saying("Hi.")
    page.goto(two_gateways.url)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, dialog, form[id], nav, ol")]
            .filter(e => !e.ariaLabel && !e.textContent.trim() && !e.labels?.length && !e.ariaLabelledByElements)
            .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    page.keyboard.type("Hello")  # the message has the focus from the start
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    ended(page)
    assert page.locator("li.mine").inner_text() == "Hello\nthere"
    assert page.evaluate("document.activeElement.id") == "text"
    page.set_viewport_size({"width": 360, "height": 640})
    page.screenshot(path=shots / "phone.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over on a phone"
