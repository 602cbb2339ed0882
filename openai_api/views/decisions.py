"""/v1/decisions"""

from openai_api.decisions.endpoint import create_decision
from openai_api.http.endpoint import endpoint

decisions = endpoint("/v1/decisions", POST=create_decision)
