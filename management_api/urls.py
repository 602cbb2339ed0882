"""Routes under /api."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.routers import SimpleRouter

from core.ids import new_id
from management_api.resources.corpus import Corpora
from management_api.resources.evaluation import Evaluations
from management_api.resources.feature import Features
from management_api.resources.job import Jobs
from management_api.resources.key import Keys
from management_api.resources.language_model import Models
from management_api.resources.log_row import Logs
from management_api.resources.policy import Policies
from management_api.resources.profile import Profiles
from management_api.resources.sae import SAEs
from management_api.resources.server import EngineProcesses, Me, Stats
from management_api.resources.vector_set import VectorSets
from management_api.resources.version import Versions
from management_api.resources.voice import Voices
from management_api.resources.watch import WatchEvents, WatchRules
from management_api.resources.webhook import WebhookDeliveries, Webhooks
from openai_api.http.errors import openai_error, unknown_url

app_name = "management_api"


@csrf_exempt
def unknown(request: HttpRequest) -> HttpResponse:
    error = unknown_url(request.method or "", request.path)
    return JsonResponse(openai_error(error), status=error.status, headers={"x-request-id": new_id("req_")})


router = SimpleRouter(trailing_slash=False)
router.register("models", Models, "models")
router.register("saes", SAEs, "saes")
router.register("features", Features, "features")
router.register("profiles", Profiles, "profiles")
router.register("versions", Versions, "versions")
router.register("vectors", VectorSets, "vectors")
router.register("corpora", Corpora, "corpora")
router.register("policies", Policies, "policies")
router.register("watch_rules", WatchRules, "watch_rules")
router.register("watch_events", WatchEvents, "watch_events")
router.register("evaluations", Evaluations, "evaluations")
router.register("voices", Voices, "voices")
router.register("keys", Keys, "keys")
router.register("logs", Logs, "logs")
router.register("jobs", Jobs, "jobs")
router.register("webhooks", Webhooks, "webhooks")
router.register("webhook_deliveries", WebhookDeliveries, "webhook_deliveries")

urlpatterns = [
    path("stats", Stats.as_view({"get": "show"}), name="stats"),
    path("engine/replace", EngineProcesses.as_view({"post": "replace"}), name="replace-engine-processes"),
    path("me", Me.as_view({"get": "show"}), name="me"),
    *router.urls,
    re_path(r"", unknown, name="unknown"),
]
