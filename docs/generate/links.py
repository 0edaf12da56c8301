"""Links that leave docs/ work on the site as they do in the repository. A hook of MkDocs, see mkdocs.yml.

SECURITY.md and CHANGELOG.md become pages. Another file that a page links to is put into the site as it is; a link to a
directory becomes its path in brackets.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}  # at the root -> on the site
AS_IT_IS = "files/"
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_OUTWARD = "../"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root, and the files that pages link to."""
    for name, page in PAGES.items():
        text = _LINK.sub(lambda found: found[0].replace("](docs/", "]("), (ROOT / name).read_text())
        files.append(File.generated(config, page, content=text))
    linked = {target for page in files.documentation_pages() for target in _outward(page.content_string)}
    for target in sorted(linked - set(PAGES)):
        if (ROOT / target).is_file():
            files.append(File.generated(config, AS_IT_IS + target, abs_src_path=str(ROOT / target)))
        elif not (ROOT / target).is_dir():
            raise PluginError(f"a page links to {target}, which is not there")
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point those links to what on_files has added."""

    def pointed(found: re.Match[str]) -> str:
        target = found["target"]
        if not target.startswith(_OUTWARD):
            return found[0]
        path = target.removeprefix(_OUTWARD)
        if (ROOT / path).is_dir():
            return f"`{path}`" if found["text"].strip("`") in path.split("/") else f"{found['text']} (`{path}`)"
        return f"[{found['text']}]({PAGES.get(path, AS_IT_IS + path)}{found['anchor'] or ''})"

    return markdown if page.file.generated_by else _LINK.sub(pointed, markdown)


def _outward(markdown: str) -> list[str]:
    targets = [found["target"] for found in _LINK.finditer(markdown)]
    return [target.removeprefix(_OUTWARD) for target in targets if target.startswith(_OUTWARD)]
