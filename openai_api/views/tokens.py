"""/tokenize, /detokenize and /tokenizer_info, under /v1 and at the root, where vLLM has them."""

from openai_api.endpoints import tokens
from openai_api.http.endpoint import endpoint

tokenize = endpoint("/v1/tokenize", POST=tokens.tokenize)
detokenize = endpoint("/v1/detokenize", POST=tokens.detokenize)
tokenizer_info = endpoint("/v1/tokenizer_info", GET=tokens.tokenizer_info)
