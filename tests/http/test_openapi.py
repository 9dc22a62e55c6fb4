"""The API document: all that there is, as the Worker serves it, and a page of it."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from fencepost.http import docs_page, openapi, routes
from fencepost.http.exchange import Route
from fencepost.http.forms import Form
from fencepost.http.representations import PROBLEM_MEMBERS
from fencepost.problems import PROBLEMS
from helpers import Client, round_trips

DOCUMENT = json.loads(openapi.text())
HTML = docs_page.text()


def name_of(route: Route[Any]) -> str:
    return f"{route.method} {route.pattern}"


# --- The document --------------------------------------------------------------------------


def test_every_route_is_in_the_document_and_nothing_else_is() -> None:
    documented = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert documented == {(route.method, route.pattern) for route in routes.ROUTES}


def test_operations_have_names_of_their_own() -> None:
    names = [route.handler.__name__ for route in routes.ROUTES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_code_is_documented_by_a_route(code: str) -> None:
    """But for that of a method which a path does not take: it is no operation's answer."""
    answering = [route for route in routes.ROUTES if code in openapi.problems_of(route)]
    assert bool(answering) == (code != "METHOD_NOT_ALLOWED")
    assert code in DOCUMENT["components"]["responses"]


@pytest.mark.parametrize("route", routes.ROUTES, ids=name_of)
def test_a_row_of_the_table_names_only_codes_that_there_are(route: Route[Any]) -> None:
    assert set(route.problems) <= set(PROBLEMS)
    assert set(PROBLEM_MEMBERS) <= set(PROBLEMS)


@pytest.mark.parametrize("route", routes.ROUTES, ids=name_of)
def test_a_form_makes_its_value_of_the_members_that_it_documents(route: Route[Any]) -> None:
    for form in forms_of(route.takes):
        taken = inspect.signature(form.make).parameters
        assert set(form.members) <= set(taken)
        required = {name for name, one in taken.items() if one.default is one.empty}
        assert required <= set(form.members)


def forms_of(form: Form[Any]) -> list[Form[Any]]:
    """A form, and those inside it."""
    inner = [one.parser for one in form.members.values() if isinstance(one.parser, Form)]
    return [form, *(each for one in inner for each in forms_of(one))]


def test_every_reference_leads_somewhere() -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)):
        place: Any = DOCUMENT
        for part in reference.split("/"):
            place = place[part]
        assert place


# --- Served --------------------------------------------------------------------------------


def test_the_worker_serves_the_document_to_anyone_without_the_database(client: Client) -> None:
    answer = client.http.get("/openapi.json")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert round_trips(answer) == 0
    # Made in another interpreter (3.14) than the one of this test.
    assert answer.text == openapi.text()


def test_the_worker_serves_the_page_to_anyone_without_the_database(client: Client) -> None:
    answer = client.http.get("/docs")
    assert (answer.status_code, answer.headers["Content-Type"]) == (
        200,
        "text/html; charset=utf-8",
    )
    assert round_trips(answer) == 0
    assert answer.text == HTML
    assert answer.headers["Content-Security-Policy"] == docs_page.POLICY


# --- The page ------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page holds, and whether its tags are closed in order."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.style = ""
        self.text = ""
        self.feed(HTML)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text += data


PAGE = Page()


def test_the_page_needs_no_network_and_its_policy_forbids_it() -> None:
    assert not PAGE.tags & {"script", "link", "img", "iframe", "object", "base", "form", "svg"}
    names = {name for _, name, _ in PAGE.attributes}
    assert names <= {"lang", "charset", "name", "content", "href", "id", "class"}
    targets = {value or "" for _, name, value in PAGE.attributes if name == "href"}
    assert {target for target in targets if not target.startswith("#")} == {"openapi.json"}
    assert "url(" not in PAGE.style
    assert "@import" not in PAGE.style
    digest = base64.b64encode(hashlib.sha256(PAGE.style.encode()).digest()).decode()
    assert docs_page.POLICY.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def test_the_page_is_whole_and_every_link_leads_somewhere() -> None:
    assert PAGE.open == []
    anchors = [value for _, name, value in PAGE.attributes if name == "id"]
    assert len(set(anchors)) == len(anchors)
    links = {value for _, name, value in PAGE.attributes if name == "href" and value}
    assert {link[1:] for link in links if link.startswith("#")} <= set(anchors)


def test_the_page_shows_every_route_scope_schema_and_problem() -> None:
    for route in routes.ROUTES:
        assert route.pattern in PAGE.text
        assert route.handler.__name__ in {
            value for _, name, value in PAGE.attributes if name == "id"
        }
    for name in DOCUMENT["components"]["schemas"]:
        assert f'<h3 id="{name}">' in HTML
    for code, problem in PROBLEMS.items():
        shown = re.search(rf'<h3 id="{code}">.*?</h3>', HTML)
        assert shown
        assert f"<code>{problem.retry}</code>" in shown[0]


def test_text_of_the_document_is_no_markup_of_the_page() -> None:
    hostile = '<script>alert("1")</script>'
    document = json.loads(
        json.dumps(DOCUMENT).replace("Renew the lease.", json.dumps(hostile)[1:-1])
    )
    document["info"]["title"] = hostile
    html = docs_page.as_html(document)
    assert "<script" not in html
    assert "&lt;script&gt;alert(&quot;1&quot;)" in html


def test_the_document_and_the_page_are_made_once(client: Client) -> None:
    headers = {"X-Local-Isolate": "0"}
    first, again = (client.http.get("/docs", headers=headers) for _ in range(2))
    assert first.text == again.text
    assert docs_page.text() is HTML


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_the_document_and_the_page_take_only_get(client: Client, path: str) -> None:
    answer: httpx.Response = client.post(path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
