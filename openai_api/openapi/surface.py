"""Operations beyond OpenAI's API."""

from openai_api.decisions.schemas import DecisionBody, DecisionRequest
from openai_api.openapi.operation import Operation
from openai_api.schemas.anthropic import (
    AnthropicErrorBody,
    AnthropicMessageBody,
    CountTokensRequest,
    MessageEventBody,
    MessagesRequest,
    TokenCountBody,
)
from openai_api.schemas.moderations import ModerationsBody, ModerationsRequest
from openai_api.schemas.rerank import RerankBody, RerankRequest, ScoreBody, ScoreRequest
from openai_api.schemas.tokens import (
    DetokenizeBody,
    DetokenizeRequest,
    TokenizeBody,
    TokenizeRequest,
    TokenizerInfoBody,
)

REQUESTS = (
    TokenizeRequest,
    DetokenizeRequest,
    RerankRequest,
    ScoreRequest,
    ModerationsRequest,
    DecisionRequest,
    MessagesRequest,
    CountTokensRequest,
)
ANSWERS = (
    TokenizeBody,
    DetokenizeBody,
    TokenizerInfoBody,
    RerankBody,
    ScoreBody,
    ModerationsBody,
    DecisionBody,
    AnthropicMessageBody,
    MessageEventBody,
    TokenCountBody,
    AnthropicErrorBody,
)
OPERATIONS = (
    Operation("/v1/tokenize", "tokenize", "Text or chat to token ids", "Tokens", "TokenizeBody", "TokenizeRequest"),
    Operation("/v1/detokenize", "detokenize", "Token ids to text", "Tokens", "DetokenizeBody", "DetokenizeRequest"),
    Operation(
        "/v1/tokenizer_info",
        "tokenizerInfo",
        "Look at a model's tokenizer",
        "Tokens",
        "TokenizerInfoBody",
        query=("model",),
    ),
    Operation(
        "/v1/rerank",
        "rerank",
        "Order documents by how well they answer a query",
        "Classification",
        "RerankBody",
        "RerankRequest",
        more_errors=("400", "504"),
    ),
    Operation(
        "/v1/score",
        "score",
        "Score pairs of texts",
        "Classification",
        "ScoreBody",
        "ScoreRequest",
        more_errors=("400", "504"),
    ),
    Operation(
        "/v1/moderations",
        "createModeration",
        "Classify texts",
        "Classification",
        "ModerationsBody",
        "ModerationsRequest",
        more_errors=("400", "504"),
    ),
    Operation(
        "/v1/decisions",
        "createDecision",
        "Answer questions about an input with probabilities",
        "Classification",
        "DecisionBody",
        "DecisionRequest",
        more_errors=("400", "409", "504"),
    ),
    Operation(
        "/v1/messages",
        "createMessage",
        "Complete a chat in Anthropic's form",
        "Anthropic",
        "AnthropicMessageBody",
        "MessagesRequest",
        events="MessageEventBody",
        more_errors=("400", "409", "504"),
        error="AnthropicErrorBody",
    ),
    Operation(
        "/v1/messages/count_tokens",
        "countTokens",
        "Count the tokens of a chat in Anthropic's form",
        "Anthropic",
        "TokenCountBody",
        "CountTokensRequest",
        more_errors=("400", "409"),
        error="AnthropicErrorBody",
    ),
)
