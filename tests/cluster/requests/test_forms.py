"""Each form of request: allocated as asked for, its limits seen in each container, nothing left."""

from __future__ import annotations

import pytest

from tests.cluster.requests import forms
from tests.cluster.requests.asked import TOTAL, USABLE
from tests.cluster.requests.forms import FORMS, Form
from tests.cluster.requests.site import EXAMPLES, Site, example


@pytest.mark.parametrize("form", forms.needing(), ids=lambda form: form.file)
def test_form(site: Site, form: Form) -> None:
    forms.check(site, form)


def test_a_tainted_card_is_for_who_tolerates_it(site: Site) -> None:
    """All cards are tainted, so that nobody else gets any."""
    (form,) = forms.needing("a taint")
    site.taint(site.all_cards())
    other = example("share.yaml")
    site.cluster.apply(other)
    site.walk.until("waits", lambda: site.unschedulable("share"), True)
    forms.check(site, form)
    assert site.unschedulable("share")
    site.heal(site.all_cards())
    site.cluster.wait_for("condition=Ready", "pod/share", timeout=60)
    site.delete(other)
    site.walk.until("left on the nodes", site.leftovers, [])


def test_each_example_is_a_form_and_each_form_is_on_the_page() -> None:
    """The page is made anew of build/requests.md, which the tests of the forms write."""
    files = [form.file for form in FORMS]
    assert sorted(files) == sorted(path.name for path in EXAMPLES.iterdir())
    assert [forms.file_of(line) for line in forms.committed()] == files


def test_sizes_that_the_examples_rely_on() -> None:
    assert (TOTAL, USABLE) == (15360, 14917)
