"""/v1/rerank and /v1/score, and where Cohere and vLLM have them."""

from openai_api.endpoints import rerank as services
from openai_api.http.endpoint import endpoint

rerank = endpoint("/v1/rerank", POST=services.rerank)
score = endpoint("/v1/score", POST=services.score)
