from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.harness import context


def _write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


@pytest.mark.parametrize(
    ("rule", "ignored"),
    [
        ("docs", {"docs/a.md", "docs/b/c.md"}),
        ("docs/", {"docs/a.md", "docs/b/c.md"}),
        ("/docs/a.md", {"docs/a.md"}),
        ("*.md", {"top.md"}),
        ("**/*.md", {"top.md", "docs/a.md", "docs/b/c.md"}),
        ("docs/*\n!docs/a.md", {"docs/b/c.md"}),
        ("# docs\n\n", set()),
        ("doc", set()),
        ("to?.md", {"top.md"}),
    ],
)
def test_dockerignore(tmp_path: Path, rule: str, ignored: set[str]) -> None:
    names = {"top.md", "docs/a.md", "docs/b/c.md", "src/x.py"}
    _write(tmp_path, *names)
    (tmp_path / ".dockerignore").write_text(rule)
    assert context.files(tmp_path) == sorted(names - ignored | {".dockerignore"})


def test_a_checkout_has_what_git_does_not_ignore(tmp_path: Path) -> None:
    _write(tmp_path, "tracked", "gone", "new", "build/out")
    (tmp_path / ".gitignore").write_text("/build/\n")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "tracked", "gone"], check=True)
    (tmp_path / "gone").unlink()
    assert context.files(tmp_path) == [".gitignore", "new", "tracked"]


def test_the_key_follows_content_name_mode_and_links(tmp_path: Path) -> None:
    keys = []

    def note() -> None:
        keys.append(context.key(tmp_path))

    _write(tmp_path, "a")
    note()
    (tmp_path / "a").write_text("other")
    note()
    (tmp_path / "a").chmod(0o755)
    note()
    (tmp_path / "a").rename(tmp_path / "b")
    note()
    (tmp_path / "link").symlink_to("b")
    note()
    assert len(set(keys)) == len(keys)
    assert context.key(tmp_path) == keys[-1]


def test_a_copy_has_the_files_and_links_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    _write(source, "x/a", "secret")
    (source / "link").symlink_to("x/a")
    context.copy(source, ["link", "x/a"], tmp_path / "target")
    copied = sorted(
        path.relative_to(tmp_path / "target") for path in (tmp_path / "target").rglob("*")
    )
    assert copied == [Path("link"), Path("x"), Path("x/a")]
    assert (tmp_path / "target/link").is_symlink()
