"""What the API does, by endpoint; writes of API keys are re-exported for other apps."""

from openai_api.keys.services import CreatedKey, create_api_key

__all__ = ["CreatedKey", "create_api_key"]
