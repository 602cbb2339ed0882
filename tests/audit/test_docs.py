"""The trail's example in docs/extending.md runs."""

from __future__ import annotations

import re

import pytest

from inference.models import LanguageModel
from millm_site.env import PROJECT_DIR


@pytest.mark.django_db
def test_the_example_runs():
    LanguageModel.objects.create(name="demo", source="org/demo")
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT_DIR / "docs" / "extending.md").read_text(), re.DOTALL)
    example = next(block for block in blocks if "record_saved" in block)
    exec(compile(example, "extending.md", "exec"), {})  # noqa: S102 - our own document
