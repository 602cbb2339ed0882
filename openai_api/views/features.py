"""/v1/features/search and /v1/features/{sae}/{index}"""

from openai_api.endpoint import endpoint
from openai_api.services.features import get_feature, search_features

feature_search = endpoint("/v1/features/search", POST=search_features)
feature = endpoint("/v1/features/{sae}/{index}", GET=get_feature)
