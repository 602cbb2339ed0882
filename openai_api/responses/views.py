"""/v1/responses and /v1/conversations"""

from openai_api.http.endpoint import endpoint
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

responses = endpoint("/v1/responses", POST=create_response)
response = endpoint("/v1/responses/{id}", GET=get_response, DELETE=delete_response)
cancellation = endpoint("/v1/responses/{id}/cancel", POST=cancel_response)
input_items = endpoint("/v1/responses/{id}/input_items", GET=list_input_items)
compaction = endpoint("/v1/responses/compact", POST=compact_response)
input_tokens = endpoint("/v1/responses/input_tokens", POST=count_input_tokens)

conversations = endpoint("/v1/conversations", POST=create_conversation)
conversation = endpoint(
    "/v1/conversations/{id}", GET=get_conversation, POST=update_conversation, DELETE=delete_conversation
)
conversation_items = endpoint("/v1/conversations/{id}/items", GET=list_items, POST=add_items)
conversation_item = endpoint("/v1/conversations/{id}/items/{item}", GET=get_item, DELETE=delete_item)
