"""A server of the demo pair, and one of its target alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import demo_settings, serving

from tokalign.serve.server import Server


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    # A fixed number, so that drafts do not depend on how busy this machine is.
    with serving(demo_settings(num_draft_tokens=2)) as running:
        yield running


@pytest.fixture(scope="package")
def alone() -> Iterator[Server]:
    """Without a draft model."""
    with serving(demo_settings(draft_model=None)) as running:
        yield running
