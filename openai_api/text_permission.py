"""Who may read the texts that clients sent and got: that is more than to see that there are some."""

from __future__ import annotations

from typing import Any

SEE_TEXT = "openai_api.view_prompt_text"  # the same as for the request log, which has the same texts
HIDDEN = "The permission to see texts of requests is needed for this."


def may_see_text(user: Any) -> bool:
    return bool(user.has_perm(SEE_TEXT))
