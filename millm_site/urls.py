"""All routes of the site."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import include, path
from django.views.decorators.http import condition, require_safe
from django.views.generic import RedirectView

from console import single_sign_on
from console.playground import answers
from console.sharing import shared_page
from console.studio import answers as studio_answers
from management_api.openapi import document_json, document_tag
from millm_site.http import health, metrics
from openai_api import V1_ROOTS
from openai_api.analysis.page import explain_logged
from openai_api.endpoints.try_model import try_model
from openai_api.media.try_media import (
    preview_video,
    try_image,
    try_speech,
    try_transcription,
    try_video,
    try_video_cancel,
    try_video_content,
    try_video_state,
)
from openai_api.routes import azure_urlpatterns, root_urlpatterns
from openai_api.routes import urlpatterns as urlpatterns_of_v1


@require_safe
@condition(etag_func=lambda request: document_tag())
def openapi(request: HttpRequest) -> HttpResponse:
    """Return the OpenAPI document, built once per process; its ETag lets clients cache it."""
    return HttpResponse(document_json(), content_type="application/json", headers={"Cache-Control": "no-cache"})


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """Render Swagger UI from the files of drf-spectacular-sidecar, without requests to other hosts."""
    return render(request, "docs.html")


_DRAFT = "admin/steering/steeringprofile/<str:object_id>/preview"
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("admin/try-model", try_model, name="try-model"),
    path("admin/try-model/image", try_image, name="try-image"),
    path("admin/try-model/speech", try_speech, name="try-speech"),
    path("admin/try-model/transcription", try_transcription, name="try-transcription"),
    path("admin/try-model/video", try_video, name="try-video"),
    path("admin/try-model/video/<str:video_id>", try_video_state, name="try-video-state"),
    path("admin/try-model/video/<str:video_id>/cancel", try_video_cancel, name="try-video-cancel"),
    path("admin/try-model/video/<str:video_id>/content", try_video_content, name="try-video-content"),
    path("admin/media/video/<str:video_id>/preview", preview_video, name="video-preview"),
    path("admin/playground/chat", answers.ask_chat, name="playground-chat"),
    path("admin/playground/completion", answers.ask_completion, name="playground-completion"),
    path("admin/playground/explain", answers.explain, name="playground-explain"),
    path("admin/openai_api/requestlog/<str:object_id>/explain", explain_logged, name="request-explain"),
    path("admin/playground/inspect", answers.inspect, name="playground-inspect"),
    path("admin/studio/chat", studio_answers.ask_chat, name="studio-chat"),
    path("admin/studio/completion", studio_answers.ask_completion, name="studio-completion"),
    path("admin/studio/inspect", studio_answers.inspect, name="studio-inspect"),
    path(f"{_DRAFT}/chat", answers.preview_chat, name="draft-chat"),
    path(f"{_DRAFT}/completion", answers.preview_completion, name="draft-completion"),
    path(f"{_DRAFT}/inspect", answers.preview_inspect, name="draft-inspect"),
    path("admin/login/sso", single_sign_on.begin, name="single-sign-on"),
    path("admin/login/sso/callback", single_sign_on.finish, name="single-sign-on-callback"),
    path("admin/", admin.site.urls),
    path("shared/<str:kinds>/<str:token>", shared_page, name="shared-page"),
    *(path(f"{root[1:]}/", include((urlpatterns_of_v1, root[1:]))) for root in V1_ROOTS),
    path("", include(root_urlpatterns)),
    path("openai/", include((azure_urlpatterns, "azure"))),
    path("", include("openai_api.ollama.routes")),
    path("api/", include("openai_api.neuronpedia.routes")),
    path("api/", include("management_api.urls")),
    path("health", health.ready, name="health"),
    path("health/live", health.live, name="health-live"),
    path("health/ready", health.ready, name="health-ready"),
    path("metrics", metrics.metrics, name="metrics"),
    path("openapi.json", openapi, name="openapi"),
    path("docs", docs, name="docs"),
]
handler403 = "millm_site.http.failures.not_allowed"
handler404 = "millm_site.http.failures.not_found"
handler500 = "millm_site.http.failures.failed"
