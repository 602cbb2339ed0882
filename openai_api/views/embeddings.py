"""/v1/embeddings"""

from openai_api.endpoints.embeddings import create_embeddings
from openai_api.http.endpoint import endpoint

embeddings = endpoint("/v1/embeddings", POST=create_embeddings)
