"""/v1/models and /v1/models/{id}"""

from openai_api.endpoints.models import delete_model, get_model, list_models
from openai_api.http.endpoint import endpoint

models = endpoint("/v1/models", GET=list_models)
model = endpoint("/v1/models/{id}", GET=get_model, DELETE=delete_model)
