from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.snapshots import forget_snapshots


@pytest.fixture(autouse=True)
def _fresh_snapshots() -> Iterator[None]:
    """Each test has its own database content, so no cached value may outlive it."""
    forget_snapshots()
    yield
    forget_snapshots()
