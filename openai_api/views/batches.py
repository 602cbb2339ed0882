"""/v1/batches, /v1/batches/{id} and /v1/batches/{id}/cancel"""

from openai_api.endpoints.batches import begin_batch, get_batch, give_up_batch, list_batches
from openai_api.http.endpoint import endpoint

batches = endpoint("/v1/batches", GET=list_batches, POST=begin_batch)
batch = endpoint("/v1/batches/{id}", GET=get_batch)
batch_cancellation = endpoint("/v1/batches/{id}/cancel", POST=give_up_batch)
