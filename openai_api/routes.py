"""All routes of the API: one table with each path, its handler, its schemas and its description.

URL patterns, key scopes, the endpoints' names in the request log and the OpenAPI document are derived from it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http.response import HttpResponseBase
from django.urls import re_path

from openai_api.analysis.attribution import create_attribution
from openai_api.analysis.lens import create_logit_lens
from openai_api.analysis.schemas import AttributionBody, AttributionRequest, LogitLensRequest, TextLensBody
from openai_api.decisions.endpoint import create_decision
from openai_api.decisions.schemas import DecisionBody, DecisionRequest
from openai_api.endpoints.anthropic_batches import (
    cancel_message_batch,
    create_message_batch,
    delete_message_batch,
    get_message_batch,
    list_message_batches,
    message_batch_results,
)
from openai_api.endpoints.anthropic_messages import count_tokens, create_message
from openai_api.endpoints.batches import cancel_openai_batch, create_openai_batch, get_batch, list_batches
from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.endpoints.embeddings import create_embeddings
from openai_api.endpoints.feature_activations import read_activations
from openai_api.endpoints.feature_contrast import contrast_features
from openai_api.endpoints.features import get_cofiring, get_effect, get_feature, get_neighbours, search_features
from openai_api.endpoints.files import (
    cancel_file_upload,
    complete_file_upload,
    create_file,
    create_part,
    create_upload,
    delete_file,
    get_file,
    get_file_content,
    list_files,
)
from openai_api.endpoints.models import delete_model, get_model, list_models
from openai_api.endpoints.moderations import create_moderations
from openai_api.endpoints.rerank import rerank, score
from openai_api.endpoints.tokens import detokenize, tokenize, tokenizer_info
from openai_api.endpoints.vector_store_files import (
    attach_file,
    cancel_store_file_batch,
    create_file_batch,
    delete_store_file,
    get_file_batch,
    get_store_file,
    get_store_file_content,
    list_file_batch_files,
    list_store_files,
    update_store_file,
)
from openai_api.endpoints.vector_store_search import search_vector_store
from openai_api.endpoints.vector_stores import (
    create_vector_store,
    delete_vector_store,
    get_vector_store,
    list_vector_stores,
    update_vector_store,
)
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler, endpoint
from openai_api.http.errors import anthropic_error, unknown_url
from openai_api.http.route import Method, Route, deployment_patterns, url_patterns
from openai_api.http.signed_links import is_signed
from openai_api.keys.scopes import Scope
from openai_api.media import videos
from openai_api.media.audio import (
    create_speech,
    create_transcription,
    create_translation,
    list_speech_models,
    list_voices,
)
from openai_api.media.forms import form_schema
from openai_api.media.image_schemas import (
    ImageEditForm,
    ImageEventBody,
    ImageRequest,
    ImagesBody,
    ImageVariationForm,
)
from openai_api.media.images import create_image, edit_image, vary_image
from openai_api.media.run import needs_media
from openai_api.media.schemas import (
    AudioForm,
    SpeechModelListBody,
    SpeechRequest,
    TranscriptionBody,
    TranscriptionForm,
    VoiceListBody,
)
from openai_api.media.video_schemas import (
    RemixRequest,
    VideoBody,
    VideoDeletedBody,
    VideoListBody,
    VideoRequest,
    video_form,
)
from openai_api.openapi.parameters import (
    FILE_FORM,
    LOGIT_LENS,
    MODEL,
    NEIGHBOURS,
    PART_FORM,
    PROFILES,
    RESUMED_STREAM,
    SIGNED_LINK,
    VIDEO_CONTENT,
)
from openai_api.residuals.endpoint import read_residuals
from openai_api.residuals.schemas import ResidualsBody, ResidualsRequest
from openai_api.responses.conversations import (
    add_items,
    create_conversation,
    delete_conversation,
    delete_item,
    get_conversation,
    get_item,
    list_items,
    update_conversation,
)
from openai_api.responses.endpoints import (
    cancel_response,
    compact_response,
    count_input_tokens,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)
from openai_api.responses.schemas.bodies import (
    CompactionBody,
    ConversationBody,
    ConversationDeletedBody,
    InputTokensBody,
    ItemListBody,
    ResponseBody,
    ResponseDeletedBody,
)
from openai_api.responses.schemas.request import (
    CompactionRequest,
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
    ResponseRequest,
    TokenCountRequest,
)
from openai_api.schemas.anthropic import (
    AnthropicMessageBody,
    CountTokensRequest,
    MessageEventBody,
    MessagesRequest,
    TokenCountBody,
)
from openai_api.schemas.anthropic_batches import (
    MessageBatchBody,
    MessageBatchDeletedBody,
    MessageBatchListBody,
    MessageBatchQuery,
    MessageBatchRequest,
)
from openai_api.schemas.base import ListQuery
from openai_api.schemas.batches import BatchBody, BatchListBody, BatchRequest
from openai_api.schemas.bodies import (
    ChatChunkBody,
    ChatCompletionBody,
    CompletionBody,
    EmbeddingsBody,
    ModelBody,
    ModelDeletedBody,
    ModelListBody,
)
from openai_api.schemas.chat import (
    ChatDeletedBody,
    ChatListBody,
    ChatRequest,
    MetadataRequest,
    StoredChatBody,
    StoredChatQuery,
    StoredMessageListBody,
    StoredMessageQuery,
)
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.embeddings import EmbeddingsRequest
from openai_api.schemas.features import (
    CofiringBody,
    FeatureActivationsBody,
    FeatureActivationsRequest,
    FeatureContrastBody,
    FeatureContrastRequest,
    FeatureDetailBody,
    FeatureEffectBody,
    FeatureListBody,
    FeatureSearchRequest,
    NeighboursBody,
)
from openai_api.schemas.files import (
    FileBody,
    FileDeletedBody,
    FileListBody,
    FileQuery,
    UploadBody,
    UploadCompletion,
    UploadPartBody,
    UploadRequest,
)
from openai_api.schemas.moderations import ModerationsBody, ModerationsRequest
from openai_api.schemas.rerank import RerankBody, RerankRequest, ScoreBody, ScoreRequest
from openai_api.schemas.tokens import (
    DetokenizeBody,
    DetokenizeRequest,
    TokenizeBody,
    TokenizeRequest,
    TokenizerInfoBody,
)
from openai_api.schemas.vector_store_bodies import (
    FileBatchBody,
    SearchBody,
    StoreFileBody,
    StoreFileContentBody,
    StoreFileDeletedBody,
    StoreFileListBody,
    VectorStoreBody,
    VectorStoreDeletedBody,
    VectorStoreListBody,
)
from openai_api.schemas.vector_stores import (
    AttachRequest,
    AttributeChange,
    FileBatchRequest,
    SearchRequest,
    StoreChange,
    StoreFileQuery,
    StoreRequest,
)
from openai_api.stored_chats.endpoints import delete_stored_chat, get_chat, list_chats, list_messages, update_chat

app_name = "openai_api"
CHUNKS = "The completion. With `stream`, its chunks as server-sent events."


def _media(method: Method, path: str, handler: Handler, name: str, summary: str, **fields: Any) -> Route:
    """Return a route that answers 501 where the packages for media are not installed."""
    return Route(method, path, needs_media(handler), name, summary, scope=Scope.MEDIA, **fields)


_generation = partial(Route, tag="Generation")
_responses = partial(Route, tag="Responses")
_embeddings = partial(Route, tag="Embeddings")
_features = partial(Route, tag="Features", scope=Scope.FEATURES)
_models = partial(Route, tag="Models", scope=None)  # every key may list the models it may use
_files = partial(Route, tag="Files", scope=Scope.FILES)
_audio = partial(_media, tag="Audio")
_images = partial(_media, tag="Images", response=ImagesBody)
_videos = partial(_media, tag="Videos")
_batches = partial(Route, tag="Batches", scope=Scope.FILES)
_stores = partial(Route, tag="Vector stores", scope=Scope.FILES)
_anthropic = partial(Route, tag="Anthropic", error_body=anthropic_error)
_message_batches = partial(_anthropic, scope=Scope.FILES)
_tokens = partial(Route, tag="Tokens", is_at_root=True)
_classification = partial(Route, tag="Classification")

# fmt: off
ROUTES = (
    _generation("GET", "/v1/chat/completions", list_chats, "listChatCompletions", "List stored chat completions",
        response=ChatListBody, query=StoredChatQuery),
    _generation("POST", "/v1/chat/completions", create_chat_completion, "createChatCompletion",
        "Create a chat completion", request=ChatRequest, response=ChatCompletionBody, events=ChatChunkBody,
        returns=CHUNKS, is_steered=True, errors=(409, 504), is_deployed=True),
    _generation("GET", "/v1/chat/completions/{completion_id}", get_chat, "getChatCompletion",
        "Get a stored chat completion", response=StoredChatBody),
    _generation("POST", "/v1/chat/completions/{completion_id}", update_chat, "updateChatCompletion",
        "Update the metadata of a stored chat completion", request=MetadataRequest, response=StoredChatBody),
    _generation("DELETE", "/v1/chat/completions/{completion_id}", delete_stored_chat, "deleteChatCompletion",
        "Delete a stored chat completion", response=ChatDeletedBody),
    _generation("GET", "/v1/chat/completions/{completion_id}/messages", list_messages, "getChatCompletionMessages",
        "List the messages of a stored chat completion", response=StoredMessageListBody, query=StoredMessageQuery),
    _generation("POST", "/v1/completions", create_completion, "createCompletion", "Create a completion",
        request=CompletionRequest, response=CompletionBody, events=CompletionBody, returns=CHUNKS, is_steered=True,
        errors=(409, 504), is_deployed=True),

    _responses("POST", "/v1/responses", create_response, "createResponse", "Create a response",
        request=ResponseRequest, response=ResponseBody, events=dict, is_steered=True, errors=(409, 504)),
    _responses("POST", "/v1/responses/compact", compact_response, "compactResponse", "Compact a conversation",
        request=CompactionRequest, response=CompactionBody, errors=(409, 504)),
    _responses("POST", "/v1/responses/input_tokens", count_input_tokens, "countInputTokens",
        "Count the tokens of an input", request=TokenCountRequest, response=InputTokensBody, errors=(409, 504)),
    _responses("GET", "/v1/responses/{response_id}", get_response, "getResponse", "Get a response",
        response=ResponseBody, query=RESUMED_STREAM),
    _responses("DELETE", "/v1/responses/{response_id}", delete_response, "deleteResponse", "Delete a response",
        response=ResponseDeletedBody),
    _responses("POST", "/v1/responses/{response_id}/cancel", cancel_response, "cancelResponse",
        "Cancel a background response", response=ResponseBody),
    _responses("GET", "/v1/responses/{response_id}/input_items", list_input_items, "listInputItems",
        "List the input items of a response", response=ItemListBody, query=ListQuery),
    _responses("POST", "/v1/conversations", create_conversation, "createConversation", "Create a conversation",
        request=ConversationRequest, response=ConversationBody),
    _responses("GET", "/v1/conversations/{conversation_id}", get_conversation, "getConversation",
        "Get a conversation", response=ConversationBody),
    _responses("POST", "/v1/conversations/{conversation_id}", update_conversation, "updateConversation",
        "Update a conversation", request=ConversationUpdate, response=ConversationBody),
    _responses("DELETE", "/v1/conversations/{conversation_id}", delete_conversation, "deleteConversation",
        "Delete a conversation", response=ConversationDeletedBody),
    _responses("GET", "/v1/conversations/{conversation_id}/items", list_items, "listConversationItems",
        "List the items of a conversation", response=ItemListBody, query=ListQuery),
    _responses("POST", "/v1/conversations/{conversation_id}/items", add_items, "createConversationItems",
        "Add items to a conversation", request=ConversationItemsRequest, response=ItemListBody),
    _responses("GET", "/v1/conversations/{conversation_id}/items/{item_id}", get_item, "getConversationItem",
        "Get an item of a conversation", response=dict, log_name="/v1/conversations/{id}/items/{item}"),
    _responses("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", delete_item, "deleteConversationItem",
        "Delete an item of a conversation", response=ConversationBody, log_name="/v1/conversations/{id}/items/{item}"),

    _embeddings("POST", "/v1/embeddings", create_embeddings, "createEmbedding", "Create embeddings",
        request=EmbeddingsRequest, response=EmbeddingsBody, returns="The embeddings.", errors=(504,), is_deployed=True),

    _features("POST", "/v1/features/search", search_features, "searchFeatures", "Search features",
        request=FeatureSearchRequest, response=FeatureListBody, returns="Features, best match first."),
    _features("POST", "/v1/features/activations", read_activations, "readFeatureActivations",
        "Read feature activations", request=FeatureActivationsRequest,
        response=FeatureActivationsBody, returns="Activations by text and token.", is_steered=True, errors=(409, 504)),
    _features("POST", "/v1/residuals", read_residuals, "readResiduals", "Read residuals",
        request=ResidualsRequest, response=ResidualsBody, is_steered=True, errors=(409, 504),
        returns="Residuals by input and site; with `response_format`, a safetensors or npz file."),
    _features("POST", "/v1/logit_lens", create_logit_lens, "createLogitLens",
        "Predict the next token from each layer", request=LogitLensRequest, response=TextLensBody, is_steered=True,
        returns="The most likely next tokens by token and layer.", errors=(409, 504)),
    _features("POST", "/v1/attribution", create_attribution, "createAttribution",
        "Attribute a token to features", request=AttributionRequest, response=AttributionBody, is_steered=True,
        returns="Attributions, largest first; with `response_format`, a graph of circuit-tracer.", errors=(409, 504)),
    _features("POST", "/v1/features/contrast", contrast_features, "contrastFeatures",
        "Find features that separate two sets of texts", request=FeatureContrastRequest,
        response=FeatureContrastBody, returns="Features, largest effect on the texts first.",
        errors=(409, 504)),
    _features("GET", "/v1/features/{sae:path}/{index}/effect", get_effect, "retrieveFeatureEffect",
        "Get the measured effect of a feature", response=FeatureEffectBody),
    _features("GET", "/v1/features/{sae:path}/{index}/cofiring", get_cofiring, "listCofiringFeatures",
        "List features active on the same tokens", response=CofiringBody, query=NEIGHBOURS, errors=(409,)),
    _features("GET", "/v1/features/{sae:path}/{index}/neighbours", get_neighbours, "listFeatureNeighbours",
        "List features with similar decoder rows", response=NeighboursBody, query=NEIGHBOURS, errors=(409,)),
    _features("GET", "/v1/features/{sae:path}/{index}", get_feature, "retrieveFeature", "Get a feature",
        response=FeatureDetailBody, query=LOGIT_LENS, errors=(504,)),

    _models("GET", "/v1/models", list_models, "listModels", "List models",
        response=ModelListBody, query=PROFILES),
    _models("GET", "/v1/models/{model:path}", get_model, "retrieveModel", "Get a model",
        response=ModelBody, log_name="/v1/models/{id}"),
    _models("DELETE", "/v1/models/{model:path}", delete_model, "deleteModel",
        "Unload a model (the next request loads it again)", response=ModelDeletedBody, log_name="/v1/models/{id}"),

    _files("GET", "/v1/files", list_files, "listFiles", "List files",
        response=FileListBody, query=FileQuery),
    _files("POST", "/v1/files", create_file, "createFile", "Upload a file",
        form=FILE_FORM, response=FileBody),
    _files("GET", "/v1/files/{file_id}", get_file, "retrieveFile", "Get a file",
        response=FileBody),
    _files("DELETE", "/v1/files/{file_id}", delete_file, "deleteFile", "Delete a file",
        response=FileDeletedBody),
    _files("GET", "/v1/files/{file_id}/content", get_file_content, "downloadFile", "Download a file, or a range of it",
        response=bytes, query=SIGNED_LINK, errors=(410, 416), link_check=is_signed),
    _files("POST", "/v1/uploads", create_upload, "createUpload", "Create an upload",
        request=UploadRequest, response=UploadBody),
    _files("POST", "/v1/uploads/{upload_id}/parts", create_part, "addUploadPart", "Add a part to an upload",
        form=PART_FORM, response=UploadPartBody),
    _files("POST", "/v1/uploads/{upload_id}/complete", complete_file_upload, "completeUpload",
        "Complete an upload", request=UploadCompletion, response=UploadBody),
    _files("POST", "/v1/uploads/{upload_id}/cancel", cancel_file_upload, "cancelUpload", "Cancel an upload",
        response=UploadBody, errors=(400,)),

    _audio("POST", "/v1/audio/transcriptions", create_transcription, "createTranscription", "Transcribe audio",
        form=form_schema(TranscriptionForm, file="file"), response=TranscriptionBody, events=dict,
        errors=(501, 502), is_deployed=True),
    _audio("POST", "/v1/audio/translations", create_translation, "createTranslation", "Translate audio into English",
        form=form_schema(AudioForm, file="file"), response=TranscriptionBody, errors=(501, 502), is_deployed=True),
    _audio("POST", "/v1/audio/speech", create_speech, "createSpeech", "Turn text into speech",
        request=SpeechRequest, response=bytes, errors=(501, 502), is_deployed=True),
    _audio("GET", "/v1/audio/voices", list_voices, "listVoices", "List voices",
        response=VoiceListBody),
    _audio("GET", "/v1/audio/models", list_speech_models, "listSpeechModels", "List speech models",
        response=SpeechModelListBody),

    _images("POST", "/v1/images/generations", create_image, "createImage", "Create images from a prompt",
        request=ImageRequest, events=ImageEventBody, errors=(501, 502, 504), is_deployed=True),
    _images("POST", "/v1/images/edits", edit_image, "createImageEdit", "Edit an image",
        form=form_schema(ImageEditForm, file="image", more_files=("mask",)), events=ImageEventBody,
        errors=(501, 502, 504), is_deployed=True),
    _images("POST", "/v1/images/variations", vary_image, "createImageVariation", "Create variations of an image",
        form=form_schema(ImageVariationForm, file="image"), errors=(501, 502, 504)),

    _videos("GET", "/v1/videos", videos.list_videos, "listVideos", "List videos",
        response=VideoListBody, query=ListQuery),
    _videos("POST", "/v1/videos", videos.create, "createVideo", "Create a video",
        request=VideoRequest, form=video_form(), response=VideoBody, errors=(501, 502, 507),
        returns="The queued video."),
    _videos("GET", "/v1/videos/{video_id}", videos.retrieve, "retrieveVideo", "Get a video",
        response=VideoBody),
    _videos("DELETE", "/v1/videos/{video_id}", videos.delete, "deleteVideo", "Delete a video, and stop it if it runs",
        response=VideoDeletedBody),
    _videos("GET", "/v1/videos/{video_id}/content", videos.get_content, "downloadVideoContent",
        "Download a video, or a range of it", response=bytes, query=VIDEO_CONTENT, errors=(409, 410, 416, 501)),
    _videos("POST", "/v1/videos/{video_id}/remix", videos.remix, "remixVideo", "Create a video like another one",
        request=RemixRequest, response=VideoBody, errors=(409, 410, 507), returns="The queued video."),

    _batches("GET", "/v1/batches", list_batches, "listBatches", "List batches",
        response=BatchListBody, query=ListQuery),
    _batches("POST", "/v1/batches", create_openai_batch, "createBatch", "Create a batch",
        request=BatchRequest, response=BatchBody),
    _batches("GET", "/v1/batches/{batch_id}", get_batch, "retrieveBatch", "Get a batch",
        response=BatchBody),
    _batches("POST", "/v1/batches/{batch_id}/cancel", cancel_openai_batch, "cancelBatch", "Cancel a batch",
        response=BatchBody, errors=(409,)),

    _message_batches("GET", "/v1/messages/batches", list_message_batches, "listMessageBatches", "List message batches",
        response=MessageBatchListBody, query=MessageBatchQuery),
    _message_batches("POST", "/v1/messages/batches", create_message_batch, "createMessageBatch",
        "Create a message batch", request=MessageBatchRequest, response=MessageBatchBody),
    _message_batches("GET", "/v1/messages/batches/{batch_id}", get_message_batch, "retrieveMessageBatch",
        "Get a message batch", response=MessageBatchBody),
    _message_batches("DELETE", "/v1/messages/batches/{batch_id}", delete_message_batch, "deleteMessageBatch",
        "Delete a message batch", response=MessageBatchDeletedBody, errors=(400,)),
    _message_batches("POST", "/v1/messages/batches/{batch_id}/cancel", cancel_message_batch, "cancelMessageBatch",
        "Cancel a message batch", response=MessageBatchBody),
    _message_batches("GET", "/v1/messages/batches/{batch_id}/results", message_batch_results, "messageBatchResults",
        "Get the results of a message batch as JSON lines", response=bytes, errors=(400,)),

    _stores("GET", "/v1/vector_stores", list_vector_stores, "listVectorStores", "List vector stores",
        response=VectorStoreListBody, query=ListQuery),
    _stores("POST", "/v1/vector_stores", create_vector_store, "createVectorStore", "Create a vector store",
        request=StoreRequest, response=VectorStoreBody),
    _stores("GET", "/v1/vector_stores/{store_id}", get_vector_store, "retrieveVectorStore", "Get a vector store",
        response=VectorStoreBody),
    _stores("POST", "/v1/vector_stores/{store_id}", update_vector_store, "updateVectorStore", "Update a vector store",
        request=StoreChange, response=VectorStoreBody),
    _stores("DELETE", "/v1/vector_stores/{store_id}", delete_vector_store, "deleteVectorStore", "Delete a vector store",
        response=VectorStoreDeletedBody),
    _stores("POST", "/v1/vector_stores/{store_id}/search", search_vector_store, "searchVectorStore",
        "Search a vector store", request=SearchRequest, response=SearchBody, errors=(504,)),
    _stores("GET", "/v1/vector_stores/{store_id}/files", list_store_files, "listStoreFiles",
        "List the files of a vector store", response=StoreFileListBody, query=StoreFileQuery),
    _stores("POST", "/v1/vector_stores/{store_id}/files", attach_file, "attachFile", "Add a file to a vector store",
        request=AttachRequest, response=StoreFileBody),
    _stores("GET", "/v1/vector_stores/{store_id}/files/{file_id}", get_store_file, "retrieveStoreFile",
        "Get a file of a vector store", response=StoreFileBody),
    _stores("POST", "/v1/vector_stores/{store_id}/files/{file_id}", update_store_file, "updateStoreFile",
        "Update the attributes of a file", request=AttributeChange, response=StoreFileBody),
    _stores("DELETE", "/v1/vector_stores/{store_id}/files/{file_id}", delete_store_file, "detachFile",
        "Remove a file from a vector store", response=StoreFileDeletedBody),
    _stores("GET", "/v1/vector_stores/{store_id}/files/{file_id}/content", get_store_file_content,
        "retrieveStoreFileContent", "Get the chunks of a file", response=StoreFileContentBody),
    _stores("POST", "/v1/vector_stores/{store_id}/file_batches", create_file_batch, "createFileBatch",
        "Add several files to a vector store", request=FileBatchRequest, response=FileBatchBody),
    _stores("GET", "/v1/vector_stores/{store_id}/file_batches/{batch_id}", get_file_batch, "retrieveFileBatch",
        "Get a file batch", response=FileBatchBody),
    _stores("POST", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel", cancel_store_file_batch,
        "cancelFileBatch", "Cancel a file batch", response=FileBatchBody),
    _stores("GET", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files", list_file_batch_files,
        "listFileBatchFiles", "List the files of a file batch", response=StoreFileListBody, query=StoreFileQuery),

    _tokens("POST", "/v1/tokenize", tokenize, "tokenize", "Convert a text or chat to token ids",
        request=TokenizeRequest, response=TokenizeBody),
    _tokens("POST", "/v1/detokenize", detokenize, "detokenize", "Convert token ids to text",
        request=DetokenizeRequest, response=DetokenizeBody),
    _tokens("GET", "/v1/tokenizer_info", tokenizer_info, "tokenizerInfo", "Get information about a tokenizer",
        response=TokenizerInfoBody, query=MODEL),

    _classification("POST", "/v1/rerank", rerank, "rerank", "Rank documents by relevance to a query",
        request=RerankRequest, response=RerankBody, errors=(504,), alias="v2", is_at_root=True),
    _classification("POST", "/v1/score", score, "score", "Score pairs of texts",
        request=ScoreRequest, response=ScoreBody, errors=(504,), is_at_root=True),
    _classification("POST", "/v1/moderations", create_moderations, "createModeration", "Classify texts",
        request=ModerationsRequest, response=ModerationsBody, errors=(504,)),
    _classification("POST", "/v1/decisions", create_decision, "createDecision",
        "Answer questions about an input with probabilities", request=DecisionRequest, response=DecisionBody,
        errors=(409, 504)),

    _anthropic("POST", "/v1/messages", create_message, "createMessage", "Create a message (Anthropic)",
        request=MessagesRequest, response=AnthropicMessageBody, events=MessageEventBody, errors=(409, 504)),
    _anthropic("POST", "/v1/messages/count_tokens", count_tokens, "countTokens",
        "Count the tokens of a message (Anthropic)", request=CountTokensRequest, response=TokenCountBody,
        errors=(409,)),
)
# fmt: on


async def refuse_url(call: Call) -> HttpResponseBase:
    """Answer 404 for a path that has no route."""
    raise unknown_url(call.request.method or "", call.request.path)


root_urlpatterns = url_patterns(route for route in ROUTES if route.is_at_root)
urlpatterns = [*url_patterns(ROUTES), re_path(r"", endpoint("/v1/*", scope=None, ANY=refuse_url), name="unknown")]
azure_urlpatterns = [*deployment_patterns(ROUTES), *urlpatterns]  # below /openai
