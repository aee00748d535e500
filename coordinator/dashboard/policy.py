"""What a browser may run and ask on the dashboard's pages. NiceGUI writes inline scripts and styles
into its page and offers no nonce for them; those that it wrote get one here, and nothing else.
A NiceGUI whose page is another gets the policy that any of its pages works with."""

import re
import secrets
from dataclasses import dataclass
from typing import Final

_BEFORE: Final = (
    b'<script type="importmap">',
    b"<script>\n      addStyle = ",
    b'<script type="module">\n      import * as Vue from "vue";',
    b"<style>\n      @layer ",
    b"<style></style>",
)
"""How those begin that stand in the page before anything that we draw."""
_BEHIND: Final = (
    b"<style>\n      #esm-fallback {",
    b'<script type="module">\n      // Load DOMPurify ',
)
"""Those behind it."""
_UNUSED: Final = re.compile(rb"{% if (?:tailwind|unocss) %}.*?{% endif %}", re.DOTALL)
_INLINE: Final = re.compile(rb"<(?:script|style)\b(?![^>]*\bsrc=)[^>]*>")
LAX: Final = " 'unsafe-inline' 'unsafe-eval'"
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?\Z|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?\Z")


@dataclass(frozen=True, slots=True)
class Marked:
    """A page whose own inline parts carry `nonce`."""

    body: bytes
    nonce: str


def is_known(template: bytes) -> bool:
    """Whether `mark` finds all that is inline in NiceGUI's template of pages, and no more."""
    marked = mark(_UNUSED.sub(b"", template))
    inline = _INLINE.findall(marked.body)
    # The one that is missing is written beside the template, empty unless a component has styles.
    is_all = len(inline) == len(_BEFORE) + len(_BEHIND) - 1
    return is_all and all(marked.nonce.encode() in tag for tag in inline)


def mark(body: bytes) -> Marked:
    """Give NiceGUI's inline scripts and styles a fresh nonce. What we draw comes between them: it
    is never marked, whatever it says, so that a script in a node's name stays text."""
    nonce = secrets.token_urlsafe(18)
    word = f' nonce="{nonce}"'.encode()
    for begin in _BEFORE:
        body = _insert(body, body.find(begin), begin, word)
    for begin in _BEHIND:
        body = _insert(body, body.rfind(begin), begin, word)
    return Marked(body, nonce)


def _insert(body: bytes, at: int, begin: bytes, word: bytes) -> bytes:
    """`word` behind the name of the tag `begin` at `at`, which is negative where it is missing."""
    if at < 0:
        return body
    name_end = at + (len(b"<style") if begin.startswith(b"<style") else len(b"<script"))
    return body[:name_end] + word + body[name_end:]


def policy(host: str = "", nonce: str = "", *, is_lax: bool = False) -> str:
    """The header's value for an answer to a request that named `host`: browsers differ in whether
    'self' is a page's own socket."""
    inline = LAX if is_lax else f" 'nonce-{nonce}'" if nonce else ""
    socket = f" ws://{host} wss://{host}" if _HOST.match(host) else ""
    return (
        f"default-src 'none'; script-src 'self'{inline}; style-src 'self'{inline}; "
        "style-src-attr 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        f"connect-src 'self'{socket}; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    )
