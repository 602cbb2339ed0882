"""Routes under /v1. Ids may contain slashes; a trailing slash changes nothing."""

from django.urls import re_path

from openai_api.views.chat import chat_completions
from openai_api.views.completions import completions
from openai_api.views.embeddings import embeddings
from openai_api.views.features import feature, feature_search
from openai_api.views.models import model, models
from openai_api.views.unknown import unknown

app_name = "openai_api"

urlpatterns = [
    re_path(r"^chat/completions/?\Z", chat_completions, name="chat-completions"),
    re_path(r"^completions/?\Z", completions, name="completions"),
    re_path(r"^embeddings/?\Z", embeddings, name="embeddings"),
    re_path(r"^features/search/?\Z", feature_search, name="feature-search"),
    re_path(r"^features/(?P<sae>.+)/(?P<index>[^/]+)/?\Z", feature, name="feature"),
    re_path(r"^models/?\Z", models, name="models"),
    re_path(r"^models/(?P<name>.+?)/?\Z", model, name="model"),
    re_path(r"", unknown, name="unknown"),
]
