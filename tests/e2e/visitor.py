"""Somebody at the console, who goes by what is visible: links, labels, buttons. Nobody types an address."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from console.navigation import SECTIONS, Entry

TITLES = "links => links.map(link => [(link.querySelector('span') ?? link).textContent, link.getAttribute('href')])"
PASSWORD = "correct horse 7 battery"
RUN_MS = 120_000


class Visitor:
    """Already signed in, as the fixture ``page`` is."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def sidebar(self) -> Locator:
        return self.page.locator("#console-nav")

    @property
    def content(self) -> Locator:
        return self.page.locator("#content")

    @property
    def tabs(self) -> Locator:
        return self.page.locator("nav.tabs")

    def links(self) -> dict[str, str]:
        """What the sidebar and the tabs of its entries offer: titles and addresses. Returns to the page it began on."""
        here = self.page.url
        site = here.partition("/admin/")[0]
        found: dict[str, str] = {}
        for title, path in self.page.eval_on_selector_all("#console-nav a", TITLES):
            self.page.goto(site + path)
            found |= dict(self.page.eval_on_selector_all(".tabs a", TITLES)) or {title: path}
        self.page.goto(here)
        return found

    def go(self, title: str) -> None:
        """By the entry of the sidebar, and from there by the tab."""
        entry = next(entry for _, entries in SECTIONS for entry in entries if title in titles_of(entry))
        either = re.compile(f"^({entry.title}|{title})$")  # an entry of one tab is called what the tab is called
        self.sidebar.locator("a", has=self.page.locator("span").get_by_text(either)).click()
        expect(self.sidebar.locator("[aria-current=page] > span").first).to_have_text(either)
        tab = self.tabs.get_by_role("link", name=title, exact=True)
        if tab.count():
            tab.click()
        expect(self.content.locator("h1")).to_have_text(title)

    def follow(self, name: str) -> None:
        self.content.get_by_role("link", name=name).first.click()

    def press(self, name: str) -> None:
        self.content.get_by_role("button", name=name, exact=True).first.click()

    def fill(self, label: str, text: str) -> None:
        self.fill_in(self.content.get_by_label(label).first, text)

    def fill_in(self, field: Locator, text: str) -> None:
        """Fill the field when the page has loaded: before, its scripts move the focus, and the text with it."""
        field.wait_for()
        self.page.wait_for_load_state()
        field.fill(text)

    def is_told(self, text: str) -> None:
        expect(self.page.locator(".messagelist")).to_contain_text(text)

    def sign_out(self) -> None:
        self.page.locator(".user-menu summary").click()
        self.page.get_by_role("button", name="Log out").click()
        self.page.get_by_role("link", name="Log in again").click()

    def sign_in(self, name: str) -> None:
        self.fill_in(self.page.get_by_label("Username"), name)
        self.fill_in(self.page.get_by_label("Password"), PASSWORD)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.locator(".user-menu summary")).to_contain_text(name)

    def invite(self, name: str, *, group: str = "", permission: str = "") -> None:
        """A new member of the staff."""
        self.go("Users")
        self.follow("Add user")
        self.fill("Username", name)
        self.fill_in(self.page.get_by_label("Password:", exact=True), PASSWORD)
        self.fill("Password confirmation", PASSWORD)
        if group:
            self.page.get_by_label(group, exact=True).check()
        self.press("Save")
        self.is_told(f"The user “{name}” was added successfully.")
        if permission:
            self.page.get_by_text("Single permissions").click()
            self.page.locator("#id_user_permissions_from").select_option(label=permission)
            self.page.locator("#id_user_permissions_add").click()
            self.press("Save")
            self.is_told(f"The user “{name}” was changed successfully.")

    def steer_with(self, words: str, name: str) -> None:
        """From the features to the draft of a new profile."""
        self.page.locator("#searchbar").wait_for()
        self.page.wait_for_load_state()  # the script that searches while one types is there
        self.page.locator("#searchbar").press_sequentially(words)
        self.page.wait_for_url("**q=**")
        self.content.locator("#result_list tbody th a").first.click()
        self.fill("Name of the new profile", name)
        self.press("Add to draft")
        self.is_told(f'to draft "{name}"')

    def publish(self, note: str, label: str) -> None:
        self.press("Save and publish…")
        self.fill("Note", note)
        self.press("Publish")
        self.is_told(f"Published {label}")

    def find_request(self, label: str, text: str) -> None:
        """Searches the log until the row is there: rows are written within a second or so."""
        self.go("Request log")
        self.content.locator("#log-search").wait_for()
        field = self.content.get_by_label(label).first
        if not field.is_visible():
            self.content.get_by_text("Filters", exact=True).click()
        self.fill_in(field, text)
        row = self.page.locator("#result_list tbody th a")
        for _ in range(60):
            self.press("Search")
            self.page.wait_for_load_state()
            if row.count():
                break
            self.page.wait_for_timeout(250)
        expect(row).to_have_count(1)
        row.click()
        self.page.wait_for_url("**/change/**")

    def replay(self, profile: str = "") -> None:
        """Ends on the job's page, when it has ended."""
        self.follow("Replay…")
        self.fill("Profile", profile)
        self.press("Replay")
        expect(self.content.locator(".replayed")).to_be_visible(timeout=RUN_MS)

    def play(self, num_tokens: int = 24) -> list[str]:
        """The answers of the playground's columns."""
        self.fill("Max tokens", str(num_tokens))
        self.press("Run all")
        columns = self.page.locator(".column")
        for state in columns.locator(".column-state").all():
            expect(state).to_contain_text(re.compile("tokens, (finished|stopped)"), timeout=RUN_MS)
        return [text.inner_text() for text in columns.locator(".answer-text").all()]


def titles_of(entry: Entry) -> set[str]:
    return {tab.title for tab in entry.tabs}
