"""Pages that the site makes while it is built: references from the declarations, and the pages of the project's root.

A hook of mkdocs (`hooks:` in mkdocs.yml). A reference that is written by hand is wrong after the next change; these are
read from the code that they are about.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT / "src", ROOT):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from website import references  # noqa: E402

FROM_ROOT = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:examples|deploy|src|tests|benchmarks|packages|ecosystem|chaos)[^)]*)\)")
ROOT_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every decision is in the navigation, by its own title."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert config.nav is not None
    config.nav.append({"Decisions": [{title_of(page): f"adr/{page.name}"} for page in pages]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, content in references.all_pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for name in sorted(FROM_ROOT):
        text = ROOT_LINK.sub(
            lambda found: f"]({from_root(found[1], config)}{found[2] or ''})", (ROOT / name).read_text()
        )
        files.append(File.generated(config, f"project/{name.lower()}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave the documentation lead to the repository."""
    return OUTSIDE.sub(lambda found: f"]({config.repo_url}/{found[1]})", markdown)


def from_root(target: str, config: MkDocsConfig) -> str:
    """Where a link of a page of the root leads, as seen from project/."""
    if target in FROM_ROOT:
        return target.lower()
    if target.startswith("docs/") and target.endswith((".md", ".svg")):
        return "../" + target.removeprefix("docs/")
    return f"{config.repo_url}/{target}"


def title_of(page: Path) -> str:
    return page.read_text().splitlines()[0].lstrip("# ").strip()
