"""All routes of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from console.playground import answers, draft_answers
from millm_site import api_docs, health, metrics
from openai_api.endpoints.try_model import try_model

_DRAFT = "admin/steering/steeringprofile/<str:object_id>/preview"
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("admin/try-model", try_model, name="try-model"),
    path("admin/playground/chat", answers.ask_chat, name="playground-chat"),
    path("admin/playground/completion", answers.ask_completion, name="playground-completion"),
    path("admin/playground/inspect", answers.inspect, name="playground-inspect"),
    path(f"{_DRAFT}/chat", draft_answers.preview_chat, name="draft-chat"),
    path(f"{_DRAFT}/completion", draft_answers.preview_completion, name="draft-completion"),
    path(f"{_DRAFT}/inspect", draft_answers.preview_inspect, name="draft-inspect"),
    path("admin/", admin.site.urls),
    path("v1/", include("openai_api.urls")),
    path("", include("openai_api.root_urls")),
    path("api/", include("management_api.urls")),
    path("health", health.ready, name="health"),
    path("health/live", health.live, name="health-live"),
    path("health/ready", health.ready, name="health-ready"),
    path("metrics", metrics.metrics, name="metrics"),
    path("openapi.json", api_docs.openapi, name="openapi"),
    path("docs", api_docs.docs, name="docs"),
]
handler403 = "millm_site.failures.not_allowed"
handler404 = "millm_site.failures.not_found"
handler500 = "millm_site.failures.failed"
