"""/v1/completions"""

from openai_api.endpoint import endpoint
from openai_api.services.completions import create_completion

completions = endpoint("/v1/completions", POST=create_completion)
