"""/v1/messages, its token count and its batches, with errors in Anthropic's form."""

from openai_api.endpoints import anthropic_batches as batches
from openai_api.endpoints.anthropic_messages import count_tokens as count
from openai_api.endpoints.anthropic_messages import create_message
from openai_api.http.endpoint import endpoint
from openai_api.http.errors import anthropic_error

messages = endpoint("/v1/messages", error_body=anthropic_error, POST=create_message)
count_tokens = endpoint("/v1/messages/count_tokens", error_body=anthropic_error, POST=count)
message_batches = endpoint(
    "/v1/messages/batches",
    error_body=anthropic_error,
    GET=batches.list_message_batches,
    POST=batches.create_message_batch,
)
message_batch = endpoint(
    "/v1/messages/batches/{id}",
    error_body=anthropic_error,
    GET=batches.get_message_batch,
    DELETE=batches.delete_message_batch,
)
message_batch_cancellation = endpoint(
    "/v1/messages/batches/{id}/cancel", error_body=anthropic_error, POST=batches.cancel_message_batch
)
message_batch_results = endpoint(
    "/v1/messages/batches/{id}/results", error_body=anthropic_error, GET=batches.message_batch_results
)
