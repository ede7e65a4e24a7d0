"""The forms of requests: what each is called, the example that shows it, and its pods."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.requests.asked import Object
from tests.cluster.requests.site import Site, example
from tests.cluster.requests.state import Cards
from tests.lab import testbed

PAGE = testbed.REPO / "docs/requests.md"
BEGIN, END = "<!-- seen: tests/cluster/requests writes these lines -->\n", "<!-- /seen -->\n"
_SEEN = testbed.BUILD / "requests"
_TAINT, _KUEUE = "a taint", "Kueue"


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        words: what it is, for the table.
        file: in deploy/examples.
        ready: what must become ready.
        namespace: where its pods are.
        needs: what must be there beside cards.
    """

    words: str
    file: str
    ready: tuple[str, ...]
    namespace: str = "default"
    needs: str = ""


FORMS = (
    Form("a share, of a template", "share.yaml", ("pod/share",)),
    Form("a share for two pods", "two-pods-one-share.yaml", ("pod/team-a", "pod/team-b")),
    Form("a whole card", "whole-card.yaml", ("pod/whole-card",)),
    Form("`nvidia.com/gpu: 1`, a pod", "whole-card-by-limit.yaml", ("pod/whole-card-by-limit",)),
    Form("`nvidia.com/gpu: 1`, a Deployment", "old-deployment.yaml", ("deployment/trainer",)),
    Form(
        "a whole card and a share in one container",
        "whole-card-and-share.yaml",
        ("pod/whole-card-and-share",),
    ),
    Form(
        "several requests, several containers", "several-requests.yaml", ("pod/several-requests",)
    ),
    Form("several claims", "several-claims.yaml", ("pod/several-claims",)),
    Form("init container and sidecar", "init-and-sidecar.yaml", ("pod/init-and-sidecar",)),
    Form("`allocationMode: All`", "all-cards.yaml", ("pod/all-cards",)),
    Form(
        "`count` and `distinctAttribute`",
        "shares-of-several-cards.yaml",
        ("pod/shares-of-several-cards",),
    ),
    Form("`matchAttribute`", "shares-of-one-card.yaml", ("pod/shares-of-one-card",)),
    Form("selectors in CEL", "choose-a-card.yaml", ("pod/choose-a-card",)),
    Form(
        "CEL over `numaNode`, `matchAttribute` over `pcieRoot`",
        "near-each-other.yaml",
        ("pod/near-each-other",),
    ),
    Form("`firstAvailable`", "first-available.yaml", ("pod/first-available",)),
    Form("`adminAccess`", "admin-access.yaml", ("pod/admin-access",), "gpu-admins"),
    Form("`tolerations`", "tolerate-a-taint.yaml", ("pod/tolerate-a-taint",), needs=_TAINT),
    Form("ShareConfig on class and claim", "share-config.yaml", ("pod/share-config",)),
    Form("a notebook server", "notebook.yaml", ("deployment/notebook",)),
    Form(
        "two inference servers on one T4",
        "two-inference-servers.yaml",
        ("deployment/chat", "deployment/embeddings"),
    ),
    Form("a training Job under Kueue", "kueue-training.yaml", ("job/training",), needs=_KUEUE),
)


def needing(what: str = "") -> tuple[Form, ...]:
    """Return the forms that need something, or no more than cards."""
    return tuple(form for form in FORMS if form.needs == what)


def check(site: Site, form: Form) -> None:
    """Run a form to its end: what happens is as it asks, and as its line of the page says."""
    with site.running(example(form.file), *form.ready, namespace=form.namespace):
        pods = [p for p in site.pods("-n", form.namespace) if p["status"]["phase"] == "Running"]
        state = site.state()
        seen = {pod["metadata"]["name"]: site.seen(pod) for pod in pods}
        otherwise = [words for pod in pods for words in state.otherwise(pod)]
        claims = [claim for pod in pods for claim in state.claims_of(pod)]
        expected = {pod["metadata"]["name"]: state.expected(pod) for pod in pods}
    left = site.left_of(claims)
    limits = "; ".join(dict.fromkeys(_limits(pod, seen) for pod in sorted(pods, key=_short)))
    line = _line(form, otherwise, limits, left)
    _note(form, line)
    assert seen == expected, f"asked for {expected}, saw {seen}"
    assert not otherwise, otherwise
    assert not left, left
    assert line in committed(), f"not on the page: {line}"


def committed() -> list[str]:
    """Return the lines of the page."""
    inside = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return inside.splitlines()[2:]


def file_of(line: str) -> str:
    """Return the example that a line of the page is about."""
    return line.partition("](../deploy/examples/")[2].partition(")")[0]


def _line(form: Form, otherwise: list[str], limits: str, left: list[str]) -> str:
    example_ = f"[{form.file}](../deploy/examples/{form.file})"
    asked, clean = "; ".join(otherwise) or "yes", "; ".join(left) or "yes"
    return f"| {form.words} | {example_} | {asked} | {limits} | {clean} |"


def _limits(pod: Object, seen: dict[str, dict[str, Cards]]) -> str:
    """Return what each container of a pod saw, in words that are the same in each run."""
    return "; ".join(
        f"{_short(pod)}/{container}: {' + '.join(map(str, sorted(cards.values()))) or 'no GPU'}"
        for container, cards in seen[pod["metadata"]["name"]].items()
    )


def _short(pod: Object) -> str:
    """Return the name of a pod, or of what made it."""
    labels = pod["metadata"].get("labels", {})
    name = labels.get("app") or labels.get("batch.kubernetes.io/job-name")
    return str(name or pod["metadata"]["name"])


def _note(form: Form, line: str) -> None:
    """Put a line into build/requests.md: the page with what was seen here, to be committed."""
    _SEEN.mkdir(parents=True, exist_ok=True)
    (_SEEN / form.file).write_text(f"{line}\n", encoding="utf-8")
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    titles = "".join(rest.splitlines(keepends=True)[:2])
    known = {file_of(each): f"{each}\n" for each in committed()}
    known |= {path.name: path.read_text(encoding="utf-8") for path in _SEEN.iterdir()}
    lines = "".join(known.get(each.file, "") for each in FORMS)
    page = f"{head}{begin}{titles}{lines}{END}{rest.partition(END)[2]}"
    (testbed.BUILD / "requests.md").write_text(page, encoding="utf-8")
