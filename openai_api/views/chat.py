"""/v1/chat/completions"""

from openai_api.endpoint import endpoint
from openai_api.services.chat import create_chat_completion

chat_completions = endpoint("/v1/chat/completions", POST=create_chat_completion)
