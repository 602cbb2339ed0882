"""/v1/features/search, activations, contrast, and {sae}/{index}"""

from openai_api.endpoints.feature_activations import read_activations
from openai_api.endpoints.feature_contrast import contrast_features
from openai_api.endpoints.features import get_feature, search_features
from openai_api.http.endpoint import endpoint

feature_search = endpoint("/v1/features/search", POST=search_features)
feature_activations = endpoint("/v1/features/activations", POST=read_activations)
feature_contrast = endpoint("/v1/features/contrast", POST=contrast_features)
feature = endpoint("/v1/features/{sae}/{index}", GET=get_feature)
