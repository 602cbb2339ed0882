"""/v1/decisions"""

from openai_api.decisions.create import create_decision
from openai_api.endpoint import endpoint

decisions = endpoint("/v1/decisions", POST=create_decision)
