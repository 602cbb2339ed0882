from __future__ import annotations

import pytest

from benchmarks.tokenizer import FIRST_WORD
from benchmarks.workloads import MAKERS, Maker, Scale, shared_prefix, single, stall, steered, streams, unshared_prefix

FULL = Scale(vocab=151_936)


def test_w1_is_one_stream():
    (job,) = single(FULL, 0).jobs
    assert (len(job.prompt), job.new) == (256, 256)


def test_w2_has_sixteen_sizes_within_the_tables_bounds():
    jobs = MAKERS["W2"](FULL, 0).jobs
    assert len(jobs) == 16
    assert all(32 <= len(job.prompt) <= 1024 and 64 <= job.new <= 256 for job in jobs)
    assert len({len(job.prompt) for job in jobs}) > 10


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_rounds_ask_for_the_same_lengths_with_new_prompts(maker: Maker):
    first, second = maker(FULL, 0), maker(FULL, 1)
    assert [(len(j.prompt), j.new, j.after) for j in first.jobs] == [
        (len(j.prompt), j.new, j.after) for j in second.jobs
    ]
    assert {j.prompt[:8] for j in first.jobs}.isdisjoint({j.prompt[:8] for j in second.jobs})
    assert maker(FULL, 1) == second


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_prompts_are_words_of_the_vocabulary(maker: Maker):
    small = Scale(vocab=1024, share=0.1)
    assert all(FIRST_WORD <= token < 1024 for job in maker(small, 3).jobs for token in job.prompt)


@pytest.mark.parametrize("k", [0, 1, 4, 16])
def test_w3_deals_out_k_profiles(k: int):
    profiles = [job.profile for job in steered(k)(FULL, 0).jobs]
    assert set(profiles) == ({None} if k == 0 else {*range(k)})


def test_w4_shares_its_first_1024_tokens_and_nothing_more():
    jobs = shared_prefix(FULL, 0).jobs
    assert len({job.prompt[:1024] for job in jobs}) == 1
    assert len({job.prompt[1024] for job in jobs}) > 10
    assert {len(job.prompt) for job in jobs} == {1056}


def test_w4_unshared_has_the_same_lengths():
    assert [len(j.prompt) for j in unshared_prefix(FULL, 0).jobs] == [
        len(j.prompt) for j in shared_prefix(FULL, 0).jobs
    ]
    assert len({job.prompt[:8] for job in unshared_prefix(FULL, 0).jobs}) == 16


def test_w5_ends_with_a_long_prompt_that_comes_late():
    workload = stall(FULL, 0)
    assert [job.after for job in workload.jobs] == [0] * 8 + [16]
    assert len(workload.jobs[-1].prompt) == 4096
    assert workload.longest == 4112


def test_a_share_shortens_everything():
    assert [(len(j.prompt), j.new) for j in streams(2)(Scale(1024, 0.25), 0).jobs] == [(32, 16)] * 2
