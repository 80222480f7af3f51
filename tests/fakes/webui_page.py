"""One chat in Open WebUI's page, as a person sees it: a program for the Python that has Playwright.

    python webui_page.py < wish.json

The wish holds ``url``, ``token``, ``chromium`` (its path), ``model``, ``text``, ``within_s`` and
``has_title`` (whether the chat will get one), and may hold ``control``, the label of a model's control and
of the option to choose there. Prints one JSON document: ``visible`` is the answer's text
before anything was unfolded, ``unfolded`` after, ``folds`` the texts of what can be unfolded, ``sent_s`` and
``answered_s`` are times on the machine's monotonic clock, ``title`` is the page's title when the chat got
one, ``hosts`` is every host that the page asked. ``listed`` is each model in the selector and whether it
has a green dot.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from urllib.parse import urlsplit

from playwright.sync_api import Error, Page, sync_playwright

ANSWER = ".chat-assistant"
FOLD = f"{ANSWER} button:has-text('Thought'), {ANSWER} button:has-text('Thinking')"


def main() -> int:
    wish = json.load(sys.stdin)
    hosts: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=wish["chromium"], args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.add_init_script(f"localStorage.token = {json.dumps(wish['token'])}")
        page.set_default_timeout(wish["within_s"] * 1000)
        seen = chat(page, wish)
        browser.close()
    print(json.dumps(seen | {"hosts": sorted(host for host in hosts if host)}))
    return 0


def chat(page: Page, wish: dict[str, object]) -> dict[str, object]:
    page.goto(f"{wish['url']}/?models={wish['model']}")
    page.wait_for_selector("#chat-input")
    listed = read_list(page)
    if wish["control"]:
        choose(page, *wish["control"])
    page.click("#chat-input")
    page.keyboard.type(str(wish["text"]))
    page.wait_for_selector("#send-message-button:not([disabled])")
    sent_s = time.monotonic()
    page.click("#send-message-button")
    # Neither the box nor the stop button says that an answer is over; this button does, after errors too.
    page.wait_for_selector(".copy-response-button", state="attached")
    answered_s = time.monotonic()
    visible = page.inner_text(ANSWER)
    folds = page.locator(FOLD).all_inner_texts()
    if folds:
        page.locator(FOLD).first.click()
        page.wait_for_timeout(500)
    unfolded = page.inner_text(ANSWER)
    return {
        "visible": visible,
        "unfolded": unfolded,
        "folds": folds,
        "sent_s": sent_s,
        "answered_s": answered_s,
        "title": wait_title(page, str(wish["text"])) if wish["has_title"] else "",
        "listed": listed,
    }


def read_list(page: Page) -> dict[str, bool]:
    page.locator("[id^=model-selector-][id$=-button]").first.click()
    options = page.locator("#model-selector-list [role=option]")
    options.first.wait_for()
    found = {
        option.inner_text().strip().splitlines()[0]: option.locator(".bg-green-500").count() > 0
        for option in options.all()
    }
    page.keyboard.press("Escape")
    return found


def choose(page: Page, label: str, option: str) -> None:
    page.click("button[aria-label='Model controls']")
    page.click(f"button[aria-label='{label}']")
    with page.expect_response(lambda answer: "/user/settings/update" in answer.url):
        page.get_by_role("menuitemradio", name=option, exact=True).click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")


def wait_title(page: Page, text: str) -> str:
    """The chat's title once it is not the message itself any more, else what stands there in the end."""
    with contextlib.suppress(Error):
        page.wait_for_function(
            "text => !document.title.includes(text.slice(0, 20)) && !document.title.startsWith('New Chat') "
            "&& !/^Open WebUI/.test(document.title)",
            arg=text,
            timeout=15_000,
        )
    return page.title()


if __name__ == "__main__":
    sys.exit(main())
