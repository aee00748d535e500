"""What the site needs beyond the pages as they stand, called by MkDocs (`mkdocs.yml`).

The pages are written for a repository's viewer as well, which lists folders by itself and takes
`\\|` inside code in a table for a bar. Here decisions get a page that lists them, their numbers in
sentences become links, and such bars lose their backslash.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HEAD = '# Decisions\n\nWhat a newcomer would ask "why?" about, one page each.\n\n'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The list of decisions, as a page of its own."""
    rows = []
    for path in sorted((Path(config.docs_dir) / "decisions").glob("[0-9]*.md")):
        title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        rows.append(f"- [{title.replace('. ', ' · ', 1)}]({path.name})\n")
    files.append(File.generated(config, "decisions/README.md", content=HEAD + "".join(rows)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """`0126` becomes a link to decision 126."""
    here = "" if page.file.src_uri.startswith("decisions/") else "decisions/"
    names = {Path(uri).name[:4]: Path(uri).name for uri in files.src_uris}

    def link(found: re.Match[str]) -> str:
        name = names.get(found[1])
        return f"[{found[0]}]({here}{name})" if name else found[0]

    return re.sub(r"(?<!\[)`(\d{4})`", link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bars in code of tables."""
    return re.sub(r"<code>[^<]*</code>", lambda found: found[0].replace("\\|", "|"), html)
