"""/v1/completions"""

from openai_api.endpoints.completions import create_completion
from openai_api.http.endpoint import endpoint

completions = endpoint("/v1/completions", POST=create_completion)
