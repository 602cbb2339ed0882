"""/v1/batches, /v1/batches/{id} and /v1/batches/{id}/cancel"""

from openai_api.endpoints.batches import cancel_openai_batch, create_openai_batch, get_batch, list_batches
from openai_api.http.endpoint import endpoint

batches = endpoint("/v1/batches", GET=list_batches, POST=create_openai_batch)
batch = endpoint("/v1/batches/{id}", GET=get_batch)
batch_cancellation = endpoint("/v1/batches/{id}/cancel", POST=cancel_openai_batch)
