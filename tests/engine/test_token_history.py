from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.sampling.token_history import FIRST_CAPACITY, TokenHistory

TOKENS = st.lists(st.integers(0, 2 * FIRST_CAPACITY), max_size=2 * FIRST_CAPACITY)


@given(prompt=TOKENS, generated=TOKENS, drafts=st.lists(st.integers(0, 9), max_size=8))
def test_what_follows_counts_as_if_it_had_been_generated(prompt, generated, drafts):
    history = TokenHistory(prompt, generated)
    before = dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True))
    ids, counts = history.followed_by(drafts)
    noted = TokenHistory(prompt, [*generated, *drafts])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == dict(
        zip(noted.ids.tolist(), noted.counts.tolist(), strict=True)
    )
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == before
