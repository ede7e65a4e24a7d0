"""What the README says against what the code has."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import yaml
from apportion import config, features, settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOT_EVENTS = {
    *(feature.gate for feature in features.ALL),
    *("DRAResourceHealth", "FromClaim", "FromClass", "ShareConfig", "ShareStatus"),
    *("NotRead", "NothingFound"),  # reasons of conditions
}


def _settings_table() -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(config.Config)}
    rows = ["| setting | default | what it is |", "| --- | --- | --- |"]
    for setting in settings.SETTINGS:
        default = defaults[setting.name]
        shown = "" if default == "" else f"`{default}`"
        repeated = not setting.expect or setting.expect in setting.help
        text = setting.help if repeated else f"{setting.help}; {setting.expect}"
        name = config.ENV_PREFIX + setting.name.upper()
        rows.append(f"| `{name}` | {shown} | {text.replace('<', '&lt;')} |")
    return "\n".join(rows)


def test_the_settings_table_is_the_code_s() -> None:
    table = _settings_table()
    assert table in README, f"put this below the comment in README.md:\n{table}"


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)", text):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def _events() -> set[str]:
    """Return the reasons of events: CamelCase texts in constants, or passed to Recorder's calls."""
    camel = re.compile(r"(?:[A-Z]+[a-z]+){2,}")
    found: set[str] = set()
    for path in ROOT.glob("plugin/apportion/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign):
                named = all(ast.unparse(target).strip("_()").isupper() for target in node.targets)
            else:
                named = isinstance(node, ast.Call) and ".on_" in ast.unparse(node)
            if named:
                texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                found |= {text for text in texts if isinstance(text, str) and camel.fullmatch(text)}
    return found


def test_every_event_is_described() -> None:
    text = (ROOT / "docs/events.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert described <= _events()
    assert _events() - described == NOT_EVENTS


def test_anchors_are_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= headings


def test_yaml_blocks_parse_and_the_share_is_the_example() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    overlay, share = (list(yaml.safe_load_all(block)) for block in blocks)
    assert yaml.safe_load(overlay[0]["patches"][0]["patch"])["kind"] == "DaemonSet"
    example = (ROOT / "deploy/examples/share.yaml").read_text(encoding="utf-8")
    template, pod = yaml.safe_load_all(example)
    assert share[0] == template
    for field in ("terminationGracePeriodSeconds",):
        del pod["spec"][field]
    del pod["spec"]["containers"][0]["imagePullPolicy"]
    assert share[1] == pod


def test_commands_name_files_that_exist() -> None:
    for path in re.findall(r"`(deploy/[\w./-]+)`", README):
        assert (ROOT / path).exists() or "mine" in path, path


def test_what_is_enforced_is_what_the_front_watches() -> None:
    table = (ROOT / "shim/src/cuda/hooks.def").read_text(encoding="utf-8")
    watched = {
        name.removesuffix("_v2").removesuffix("_ptsz")
        for name in re.findall(r"^HOOK\((cuMem(?:Alloc|Create)\w*)", table, re.MULTILINE)
    }
    section = README.split("## What is enforced", 1)[1].split("\n## ", 1)[0]
    enforced, _, open_yet = section.partition("Not enforced yet:")
    assert set(re.findall(r"`(cuMem(?:Alloc|Create)\w*)`", enforced)) == watched
    assert not set(re.findall(r"`(cuMem\w+)`", open_yet)) & watched
    model = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    rows = [row for row in model.splitlines() if row.endswith("| open |")]
    assert not [row for row in rows if set(re.findall(r"`(cuMem\w+)`", row)) & watched]
