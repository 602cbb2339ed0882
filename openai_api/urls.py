"""Routes under /v1. Ids may contain slashes; a trailing slash changes nothing."""

from django.urls import re_path

from openai_api.responses.urls import urlpatterns as responses_urls
from openai_api.root_urls import urlpatterns as root_urlpatterns
from openai_api.views.anthropic import (
    count_tokens,
    message_batch,
    message_batch_cancellation,
    message_batch_results,
    message_batches,
    messages,
)
from openai_api.views.batches import batch, batch_cancellation, batches
from openai_api.views.chat import chat_completions, stored_chat, stored_messages
from openai_api.views.completions import completions
from openai_api.views.decisions import decisions
from openai_api.views.embeddings import embeddings
from openai_api.views.features import feature, feature_activations, feature_contrast, feature_search
from openai_api.views.files import file, file_content, files
from openai_api.views.models import model, models
from openai_api.views.moderations import moderations
from openai_api.views.unknown import unknown
from openai_api.views.uploads import upload_cancellation, upload_completion, upload_parts, uploads
from openai_api.views.vector_stores import (
    file_batch,
    file_batch_cancellation,
    file_batch_files,
    file_batches,
    store,
    store_file,
    store_file_content,
    store_files,
    store_search,
    stores,
)

app_name = "openai_api"
MESSAGE_BATCH = "messages/batches/(?P<batch_id>[^/]+)"
STORE = "vector_stores/(?P<store_id>[^/]+)"

urlpatterns = [
    re_path(r"^batches/?\Z", batches, name="batches"),
    re_path(r"^batches/(?P<batch_id>[^/]+)/?\Z", batch, name="batch"),
    re_path(r"^batches/(?P<batch_id>[^/]+)/cancel/?\Z", batch_cancellation, name="batch-cancellation"),
    re_path(r"^chat/completions/?\Z", chat_completions, name="chat-completions"),
    re_path(r"^chat/completions/(?P<chat_id>[^/]+)/?\Z", stored_chat, name="stored-chat"),
    re_path(r"^chat/completions/(?P<chat_id>[^/]+)/messages/?\Z", stored_messages, name="stored-chat-messages"),
    re_path(r"^completions/?\Z", completions, name="completions"),
    re_path(r"^decisions/?\Z", decisions, name="decisions"),
    re_path(r"^embeddings/?\Z", embeddings, name="embeddings"),
    re_path(r"^features/search/?\Z", feature_search, name="feature-search"),
    re_path(r"^features/activations/?\Z", feature_activations, name="feature-activations"),
    re_path(r"^features/contrast/?\Z", feature_contrast, name="feature-contrast"),
    re_path(r"^features/(?P<sae>.+)/(?P<index>[^/]+)/?\Z", feature, name="feature"),
    re_path(r"^files/?\Z", files, name="files"),
    re_path(r"^files/(?P<file_id>[^/]+)/?\Z", file, name="file"),
    re_path(r"^files/(?P<file_id>[^/]+)/content/?\Z", file_content, name="file-content"),
    re_path(r"^models/?\Z", models, name="models"),
    re_path(r"^models/(?P<name>.+?)/?\Z", model, name="model"),
    re_path(r"^uploads/?\Z", uploads, name="uploads"),
    re_path(r"^uploads/(?P<upload_id>[^/]+)/parts/?\Z", upload_parts, name="upload-parts"),
    re_path(r"^uploads/(?P<upload_id>[^/]+)/complete/?\Z", upload_completion, name="upload-completion"),
    re_path(r"^uploads/(?P<upload_id>[^/]+)/cancel/?\Z", upload_cancellation, name="upload-cancellation"),
    re_path(r"^vector_stores/?\Z", stores, name="vector-stores"),
    re_path(rf"^{STORE}/?\Z", store, name="vector-store"),
    re_path(rf"^{STORE}/search/?\Z", store_search, name="vector-store-search"),
    re_path(rf"^{STORE}/files/?\Z", store_files, name="vector-store-files"),
    re_path(rf"^{STORE}/files/(?P<file_id>[^/]+)/?\Z", store_file, name="vector-store-file"),
    re_path(rf"^{STORE}/files/(?P<file_id>[^/]+)/content/?\Z", store_file_content, name="vector-store-file-content"),
    re_path(rf"^{STORE}/file_batches/?\Z", file_batches, name="file-batches"),
    re_path(rf"^{STORE}/file_batches/(?P<batch_id>[^/]+)/?\Z", file_batch, name="file-batch"),
    re_path(
        rf"^{STORE}/file_batches/(?P<batch_id>[^/]+)/cancel/?\Z", file_batch_cancellation, name="file-batch-cancel"
    ),
    re_path(rf"^{STORE}/file_batches/(?P<batch_id>[^/]+)/files/?\Z", file_batch_files, name="file-batch-files"),
    *responses_urls,
    re_path(r"^moderations/?\Z", moderations, name="moderations"),
    re_path(r"^messages/?\Z", messages, name="messages"),
    re_path(r"^messages/batches/?\Z", message_batches, name="message-batches"),
    re_path(rf"^{MESSAGE_BATCH}/?\Z", message_batch, name="message-batch"),
    re_path(
        r"^messages/batches/(?P<batch_id>[^/]+)/cancel/?\Z", message_batch_cancellation, name="message-batch-cancel"
    ),
    re_path(rf"^{MESSAGE_BATCH}/results/?\Z", message_batch_results, name="message-batch-results"),
    re_path(r"^messages/count_tokens/?\Z", count_tokens, name="count-tokens"),
    *root_urlpatterns,
    re_path(r"", unknown, name="unknown"),
]
