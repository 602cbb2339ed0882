"""/v1/moderations"""

from openai_api.endpoints.moderations import create_moderations
from openai_api.http.endpoint import endpoint

moderations = endpoint("/v1/moderations", POST=create_moderations)
