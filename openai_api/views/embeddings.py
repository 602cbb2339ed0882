"""/v1/embeddings"""

from openai_api.endpoint import endpoint
from openai_api.services.embeddings import create_embeddings

embeddings = endpoint("/v1/embeddings", POST=create_embeddings)
