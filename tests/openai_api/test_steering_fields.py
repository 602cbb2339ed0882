"""Intensity, edits that requests bring along, and policies, as requests and keys see them."""

from __future__ import annotations

from typing import Any

import pytest

from inference.client import SteeringReceipt
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import finished, record, tokens_of

EDITS = {"features": [{"index": 3, "strength": 0.5}]}


def refusal(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


@pytest.mark.parametrize("intensity", [0, 0.5, 2.0])
async def test_intensity_reaches_the_profile_and_the_receipt(api: Api, intensity: float):
    response = await api.chat(profile="gloomy", steering_intensity=intensity)
    assert api.steering.selections[0].intensity == intensity
    assert response.json()["millm"]["intensity"] == intensity
    assert api.log.only.parameters["steering_intensity"] == intensity


@pytest.mark.parametrize("intensity", ["0.5", True, -0.1, 2.01, [1]])
async def test_intensity_out_of_range_or_type(api: Api, intensity: Any):
    response = await api.chat(profile="gloomy", steering_intensity=intensity)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "steering_intensity"
    assert api.engine.requests == []


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
async def test_intensity_that_is_no_number(api: Api, number: bytes):
    body = (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "profile": "gloomy", "steering_intensity": '
    )
    response = await api.post("/v1/chat/completions", body + number + b"}")
    assert response.status_code == 400
    assert api.engine.requests == []


async def test_intensity_needs_something_to_scale(api: Api):
    for fields in ({}, {"profile": None}):
        response = await api.chat(steering_intensity=1.0, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "steering_intensity"


async def test_intensity_scales_a_default_too(api: Api):
    response = await api.chat(model="org/steered", steering_intensity=0.5)
    assert response.json()["millm"]["profile"] == "joyful@2"
    assert api.steering.selections[0].intensity == 0.5


@pytest.mark.parametrize(("intensity", "status"), [(0.5, 200), (1.0, 200), (1.5, 200), (0.4, 403), (1.6, 403)])
async def test_a_keys_range_of_intensities(api: Api, intensity: float, status: int):
    headers = api.keys.add("key", min_intensity=0.5, max_intensity=1.5)
    response = await api.chat(headers, profile="gloomy", steering_intensity=intensity)
    assert response.status_code == status
    if status == 403:
        assert refusal(response) == (403, "intensity_not_allowed", "steering_intensity")


async def test_edits_of_the_request_take_the_place_of_defaults(api: Api):
    response = await api.chat(model="org/steered", steering=EDITS)
    assert response.json()["millm"]["profile"] == "inline"
    assert response["x-millm-profile"] == "inline"
    assert api.steering.selections[0].inline == EDITS
    assert api.log.only.profile == "inline"
    assert api.log.only.parameters["steering"] == EDITS


async def test_the_owner_of_the_key_decides_which_vector_sets_may_be_named(api: Api):
    await api.chat(steering=EDITS)
    await api.chat(api.keys.add("key", may_steer_inline=True, owner_id=7), steering=EDITS)
    assert [selection.viewer for selection in api.steering.selections] == [None, 7]


async def test_the_log_has_vectors_as_base64_or_their_hash(api: Api):
    small, large = [1.0, 2.5], [0.1] * 20_000
    for values in (small, "AACAPwAAIEA=", large, ["x"], None):
        await api.chat(steering={"vectors": [{"layer": 1, "values": values}, 3]})
    logged = [entry.parameters["steering"]["vectors"][0]["values"] for entry in api.log.entries]
    assert logged[0] == logged[1] == "AACAPwAAIEA="
    assert logged[2].startswith("sha256:")
    assert logged[3:] == ["1 values", None]
    assert api.steering.selections[0].inline == {"vectors": [{"layer": 1, "values": small}, 3]}


@pytest.mark.parametrize("fields", [{"profile": "cats"}, {"model": "tiny:cats"}])
async def test_edits_and_a_profile_contradict_each_other(api: Api, fields: dict[str, Any]):
    response = await api.chat(steering=EDITS, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "steering"


@pytest.mark.parametrize(("may", "status"), [(True, 200), (False, 403)])
async def test_a_key_may_bring_edits_or_not(api: Api, may: bool, status: int):
    response = await api.chat(api.keys.add("key", may_steer_inline=may), steering=EDITS)
    assert response.status_code == status
    if status == 403:
        assert refusal(response) == (403, "inline_steering_not_allowed", "steering")
        assert api.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "profile", "fingerprint"),
    [
        ({}, None, "cap@1 then calm@3"),
        ({"profile": None}, None, "cap@1 then calm@3"),
        ({"profile": "gloomy"}, "gloomy@2", "print-gloomy then cap@1 then calm@3"),
        ({"steering": EDITS, "steering_intensity": 0}, "inline", "print-inline then cap@1 then calm@3"),
    ],
)
async def test_policies_act_whatever_the_request_says(
    api: Api, fields: dict[str, Any], profile: str | None, fingerprint: str
):
    api.steering.policies = ("cap@1", "calm@3")
    response = await api.chat(**fields)
    receipt = response.json()["millm"]
    assert (receipt["profile"], receipt["policies"]) == (profile, ["cap@1", "calm@3"])
    assert receipt["fingerprint"] == response["x-millm-steering"] == fingerprint
    assert response["x-millm-policies"] == "cap@1, calm@3"
    assert response.headers.get("x-millm-profile") == profile
    entry = api.log.only
    assert (entry.profile, entry.policies, entry.fingerprint) == (profile or "", "cap@1, calm@3", fingerprint)
    assert entry.steering_expected == entry.steering_applied > 0


async def test_policies_are_in_the_last_chunk(api: Api):
    api.steering.policies = ("cap@1",)
    *chunks, _ = await chunks_of(await api.chat(stream=True))
    assert chunks[-1]["millm"]["policies"] == ["cap@1"]


@pytest.mark.parametrize("receipt", [None, "another", "short"])
async def test_output_is_withheld_when_a_policy_alone_did_not_act(api: Api, receipt: str | None):
    """A request without a profile is held to what the server's policy demands."""
    found = {
        None: None,
        "another": SteeringReceipt("print-gloomy", 5, 5),
        "short": SteeringReceipt("cap@1", 5, 4),
    }[receipt]
    api.steering.policies = ("cap@1",)
    api.engine.script = lambda request: [*tokens_of(request, "a"), finished(request, 1, receipt=found)]
    response = await api.chat()
    assert refusal(response) == (500, "steering_not_applied", None)
    assert api.log.only.error_code == "steering_not_applied"
    assert api.log.only.policies == "cap@1"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_archived_default_of_a_key_is_an_error_and_never_passed_over(api: Api, stream: bool):
    response = await api.chat(api.keys.add("key", default_profile="old"), stream=stream)
    assert refusal(response) == (404, "profile_archived", "profile")
    assert api.engine.requests == []
    response = await api.chat(api.keys.add("other", default_profile="old"), profile="gloomy", stream=stream)
    assert response.status_code == 200  # what the request says goes first


async def test_an_archived_default_of_a_model_is_an_error_and_never_passed_over(api: Api):
    api.registry.add(record("org/stale", default_profile="old"))
    assert refusal(await api.chat(model="org/stale")) == (404, "profile_archived", "profile")
    assert api.engine.requests == []
    assert (await api.chat(model="org/stale", profile=None)).status_code == 200
