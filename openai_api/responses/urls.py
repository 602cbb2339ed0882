"""Routes under /v1; a trailing slash changes nothing."""

from django.urls import re_path

from openai_api.responses import views

_RESPONSE = r"^responses/(?P<response_id>[^/]+)"
_CONVERSATION = r"^conversations/(?P<conversation_id>[^/]+)"

urlpatterns = [
    re_path(r"^responses/?\Z", views.responses, name="responses"),
    re_path(r"^responses/compact/?\Z", views.compaction, name="response-compaction"),
    re_path(r"^responses/input_tokens/?\Z", views.input_tokens, name="response-input-tokens"),
    re_path(_RESPONSE + r"/?\Z", views.response, name="response"),
    re_path(_RESPONSE + r"/cancel/?\Z", views.cancellation, name="response-cancel"),
    re_path(_RESPONSE + r"/input_items/?\Z", views.input_items, name="response-input-items"),
    re_path(r"^conversations/?\Z", views.conversations, name="conversations"),
    re_path(_CONVERSATION + r"/?\Z", views.conversation, name="conversation"),
    re_path(_CONVERSATION + r"/items/?\Z", views.conversation_items, name="conversation-items"),
    re_path(_CONVERSATION + r"/items/(?P<item_id>[^/]+)/?\Z", views.conversation_item, name="conversation-item"),
]
