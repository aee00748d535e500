"""The page's policy: NiceGUI's own inline parts may run, and nothing that we draw may."""

import re

import pytest
from starlette.types import Message, Receive, Scope, Send

from coordinator.dashboard.gate import SessionGate
from coordinator.dashboard.mount import TEMPLATE as TEMPLATE_PATH
from coordinator.dashboard.policy import is_known, mark, policy
from coordinator.dashboard.sessions import SessionStore
from plait.clock import ManualClock

TEMPLATE = TEMPLATE_PATH.read_text("utf-8")
EVIL = """<script>alert(1)</script><script type="module">
      import * as Vue from "vue";</script><script type="module">
      // Load DOMPurify </script><style>
      @layer evil {}</style><style>
      #esm-fallback {}</style>"""


def page(drawn: str) -> str:
    """NiceGUI's page, its conditions and variables left as they are but for what is drawn."""
    return re.sub(
        r"{% if (tailwind|unocss) %}.*?{% endif %}", "", TEMPLATE, flags=re.DOTALL
    ).replace("{{ body_html | safe }}", f"<style></style>{drawn}")


def test_all_that_nicegui_writes_is_marked_and_nothing_that_is_drawn() -> None:
    marked = mark(page(EVIL).encode())
    text = marked.body.decode()
    inline = [tag for tag in re.findall(r"<(?:script|style)[^>]*>", text) if "src=" not in tag]
    drawn = re.findall(r"<(?:script|style)[^>]*>", EVIL)
    assert len(inline) == 7 + len(drawn)
    assert [tag for tag in inline if f'nonce="{marked.nonce}"' not in tag] == drawn
    assert EVIL in text
    assert mark(b"").nonce != marked.nonce


def test_a_nicegui_that_writes_otherwise_is_noticed_and_served_as_ever() -> None:
    assert is_known(TEMPLATE.encode())
    assert not is_known(TEMPLATE.replace("addStyle =", "putStyle =").encode())
    assert not is_known(TEMPLATE.replace("</body>", "<script>more()</script></body>").encode())
    assert "script-src 'self' 'unsafe-inline' 'unsafe-eval';" in policy("", "abc", is_lax=True)


def test_the_policy_names_no_word_that_lets_scripts_in() -> None:
    said = policy("plait.example.org:7480", "abc")
    assert "script-src 'self' 'nonce-abc';" in said and "unsafe-eval" not in said
    assert said.count("unsafe-inline") == 1 and "style-src-attr 'unsafe-inline'" in said
    assert "connect-src 'self' ws://plait.example.org:7480 wss://plait.example.org:7480;" in said
    assert "ws://[::1]:7480 " in policy("[::1]:7480")


@pytest.mark.parametrize("host", ["", "a b", "x; script-src *", "*", "a:b", "x" * 300])
def test_a_host_that_is_none_is_not_repeated(host: str) -> None:
    assert "connect-src 'self';" in policy(host)


async def test_pages_have_a_nonce_each_and_files_pass_as_they_come() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kind = b"text/css" if scope["path"].endswith("css") else b"text/html; charset=utf-8"
        status = 500 if scope["path"].endswith("failed") else 200
        headers = [(b"content-type", kind), (b"content-length", b"35")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b'<script type="import', "more_body": True}
        )
        await send({"type": "http.response.body", "body": b'map"></script>x'})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    gate = SessionGate(app, sessions=SessionStore(clock=ManualClock()))
    for path in (
        "/dashboard/_nicegui/page",
        "/dashboard/_nicegui/page",
        "/dashboard/_nicegui/a.css",
    ):
        await gate({"type": "http", "path": path, "headers": []}, receive, send)
    assert [message["type"].rpartition(".")[2] for message in sent] == [
        *("start", "body", "start", "body"),
        *("start", "body", "body"),
    ]
    nonces = []
    for start, body in (sent[:2], sent[2:4]):
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        nonce = re.findall(rb'<script nonce="([^"]+)" type="importmap"></script>x', body["body"])
        assert f"'nonce-{nonce[0].decode()}'" in headers["content-security-policy"]
        assert int(headers["content-length"]) == len(body["body"])
        nonces.append(nonce[0])
    assert nonces[0] != nonces[1]
    assert b"nonce" not in dict(sent[4]["headers"])[b"content-security-policy"]
    path = "/dashboard/_nicegui/failed"
    await gate({"type": "http", "path": path, "headers": []}, receive, send)
    assert b"This page failed" in sent[-1]["body"] and b"importmap" not in sent[-1]["body"]
    assert sent[5]["more_body"] and dict(sent[4]["headers"])[b"content-length"] == b"35"
