"""The explanation of a token on the playground's and the request log's page, as a fragment of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string

from core.errors import MillmError
from openai_api.analysis.attribution import attribution
from openai_api.analysis.lens import logit_lens
from openai_api.analysis.schemas import AttributionBody, AttributionRequest, TextLensBody
from openai_api.analysis.text import read_text
from openai_api.backend import get_backend
from openai_api.database import in_database
from openai_api.generation.target import Target, ready_model, resolve_target
from openai_api.http.call import Call
from openai_api.http.endpoint import respond_as
from openai_api.http.errors import client_message, forbidden, invalid
from openai_api.http.json_body import read_json_object
from openai_api.http.session_auth import SessionUser, authenticate_session, refusal_response, request_for
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import HIDDEN, may_see_text, record_access
from openai_api.request_log.entry import TOKENS
from openai_api.request_log.replay import Replay, plan_replay, read_row
from openai_api.request_log.summary import visible_text
from steering.features.admin import feature_url
from steering.models import Feature
from steering.profiles.snapshot import DRAFT

NUM_FEATURES = 12
TOP_K = 5
NODES = 2000
WITHOUT_ATTRIBUTION = frozenset(
    {"sae_required", "sae_not_in_residual", "steering_not_supported", "model_not_differentiable", "reading_too_large"}
)


@dataclass(slots=True)
class Bar:
    """A row of the bar chart. ``places``: what each token contributes, for the script that highlights them."""

    name: str
    url: str = ""
    value: float = 0.0
    share: float = 0.0
    by_place: dict[int, float] = field(default_factory=dict)

    def add(self, place: int, value: float) -> None:
        self.value += value
        self.by_place[place] = self.by_place.get(place, 0.0) + value

    @property
    def places(self) -> str:
        return " ".join(f"{place}:{value:.5g}" for place, value in self.by_place.items())


async def explained(user: SessionUser, endpoint: str, fields: Mapping[str, Any]) -> HttpResponseBase:
    """Answer a console page. ``fields`` are those of /v1/attribution. Labels need the permission to see features."""
    asked = request_for(endpoint, {**fields, "max_nodes": NODES, "user": user.get_username()})
    handler = partial(explain_token, sees_features=await user.ahas_perm("steering.view_feature"))
    return await respond_as(Call(asked, endpoint, source="console", session_user_id=user.pk), None, handler)


async def explain_token(call: Call, *, sees_features: bool) -> HttpResponseBase:
    """Return the lens of the position and, where it is possible, the attribution. Raises MillmError."""
    request = call.read(AttributionRequest)
    target = await resolve_target(call, request)
    text = await read_text(request, target)
    position = len(text.ids) - 1 if request.position is None else request.position
    if position >= len(text.ids):
        raise invalid(f"`position` must be 0 to {len(text.ids) - 1}, got {position}.", param="position")
    lens = await logit_lens(call, target, text, ranges=[(position, position + 1)], top_k=TOP_K)
    found, problem = None, ""
    try:
        found = await attribution(call, request, target, text)
    except MillmError as error:
        if error.code not in WITHOUT_ATTRIBUTION:
            raise
        problem = client_message(error)
    context: dict[str, Any] = {"problem": problem, "lens": _layers(lens, found), "columns": range(1, TOP_K + 1)}
    if found is not None:
        bars = _bars(found, sees_features=sees_features)
        if sees_features:
            await in_database(partial(_link, bars, found["sae"]))
        context |= _attribution_context(found, bars)
    return HttpResponse(render_to_string("admin/openai_api/explanation.html", context))


def _link(bars: Mapping[int, Bar], sae: str) -> None:
    """Link the bars of registered features to their pages."""
    for row in Feature.objects.filter(sae__name=sae, index__in=list(bars)).select_related("sae"):
        bars[row.index].url = feature_url(row)


def _bars(found: AttributionBody, *, sees_features: bool) -> dict[int, Bar]:
    """Return the features with the largest sums over all tokens."""
    bars: dict[int, Bar] = {}
    for node in found["features"]:
        index, label = node["index"], (node["label"] or "") if sees_features else ""
        bar = bars.setdefault(index, Bar(f"#{index} {visible_text(label)}".rstrip()))
        bar.add(node["position"], node["attribution"])
    best = sorted(bars, key=lambda index: -abs(bars[index].value))[:NUM_FEATURES]
    return {index: bars[index] for index in best}


def _attribution_context(found: AttributionBody, bars: Mapping[int, Bar]) -> dict[str, Any]:
    listed = sum(bar.value for bar in bars.values())
    everything = sum(node["attribution"] for node in found["features"]) + found["other"]["attribution"]
    num_others = len({node["index"] for node in found["features"]}) - len(bars)
    rest = [
        Bar(f"Other features ({num_others}{'+' if found['other']['count'] else ''})", value=everything - listed),
        _by_place("SAE error", found["errors"]),
        _by_place("SAE bias", found["biases"]),
    ]
    rows = [*bars.values(), *rest]
    largest = max(abs(bar.value) for bar in rows) or 1.0
    for bar in rows:
        bar.share = round(abs(bar.value) / largest, 3)
    return {
        "found": found,
        "token": visible_text(found["target"]["token"]),
        "rows": rows,
        "tokens": [visible_text(token) for token in found["tokens"]],
        "all_places": _sum(bars.values()).places,
    }


def _by_place(name: str, values: Iterable[float]) -> Bar:
    bar = Bar(name)
    for place, value in enumerate(values):
        bar.add(place, value)
    return bar


def _sum(bars: Iterable[Bar]) -> Bar:
    total = Bar("")
    for bar in bars:
        for place, value in bar.by_place.items():
            total.add(place, value)
    return total


def _layers(lens: TextLensBody, found: AttributionBody | None) -> list[dict[str, Any]]:
    """Return the rows of the heat map, the last layer first."""
    (here,) = lens["data"]
    target = None if found is None else found["target"]["id"]
    return [
        {
            "layer": layer["layer"],
            "top": [
                {"token": visible_text(one["token"]), "logprob": one["logprob"], "is_target": one["id"] == target}
                for one in layer["top"]
            ],
        }
        for layer in reversed(here["layers"])
    ]


# Tokens of logged requests


async def explain_logged(request: HttpRequest, object_id: str) -> HttpResponseBase:
    """Explain a token of a logged answer: ``answer`` and ``number`` in the body."""
    try:
        user = await authenticate_session(request, "openai_api.view_requestlog", act="explain logged tokens")
        fields = read_json_object(request)
        answer, number = (_index(fields, name) for name in ("answer", "number"))
        replay, record = await in_database(partial(_logged, object_id, user, answer))
        model = await ready_model(get_backend().registry().find(replay.row.model), "generation")
        plan = await plan_replay(replay, Target(model, None))
        asked = _fields(replay, record, answer, number, plan.prompts[plan.prompt_of_sequence[answer]])
    except MillmError as error:
        return refusal_response(error)
    return await explained(user, "/admin/requestlog/explain", asked)


def _index(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < 2**31:
        raise invalid(f"`{name}` must be an integer of at least 0.", param=name)
    return value


def _logged(object_id: str, user: SessionUser, answer: int) -> tuple[Replay, dict[str, Any]]:
    """Return the request and the record of its tokens. Raises MillmError 403, 404 and 400."""
    row = RequestLog.objects.filter(pk=object_id).first() if "\0" not in object_id else None
    if row is None:
        raise MillmError("The request is no longer in the log.", status=404)
    if not may_see_text(user):
        raise forbidden(HIDDEN, code="permission_denied")
    assert isinstance(user, User)
    record_access(act=LogAccess.Act.READ, user=user, request_id=row.pk)
    if row.profile.endswith(DRAFT):
        raise invalid(
            "The request previewed a draft that no longer exists, so it cannot be explained.", param="profile"
        )
    records = row.parameters.get(TOKENS)
    found = records if isinstance(records, list) else []
    answers = [(record, one) for record in found for one in record["answers"]]
    if answer >= len(answers):
        raise invalid("The log has no tokens of this answer.", param="answer")
    record, own = answers[answer]
    return read_row(row, viewer=user.pk), {"sae": record["sae"], "tokens": own["tokens"]}


def _fields(
    replay: Replay, record: Mapping[str, Any], answer: int, number: int, prompt: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of /v1/attribution. Raises MillmError 400."""
    ids, selection = [token["id"] for token in record["tokens"]], replay.selection
    if number >= len(ids):
        raise invalid(f"`number` must be 0 to {len(ids) - 1}, got {number}.", param="number")
    if record["tokens"][0]["place"] != len(prompt):
        raise invalid("The prompt renders differently now: the model or its template has changed.", param="answer")
    fields: dict[str, Any] = {
        "model": replay.row.model,
        "input": list(prompt),
        "position": len(prompt) + number - 1,
        "token": ids[number],
    }
    if number:
        fields["completion_ids"] = ids[:number]
    if record["sae"]:
        fields["sae"] = record["sae"]
    if selection.inline is not None:
        fields["steering"] = selection.inline
    else:
        fields["profile"] = selection.reference
    if selection.intensity != 1.0:
        fields["steering_intensity"] = selection.intensity
    return fields
