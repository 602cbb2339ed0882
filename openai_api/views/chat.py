"""/v1/chat/completions and what is stored of them"""

from openai_api.endpoints.chat import create_chat_completion
from openai_api.http.endpoint import endpoint
from openai_api.stored_chats.endpoints import delete_stored_chat, get_chat, list_chats, list_messages, update_chat

chat_completions = endpoint("/v1/chat/completions", GET=list_chats, POST=create_chat_completion)
stored_chat = endpoint("/v1/chat/completions/{id}", GET=get_chat, POST=update_chat, DELETE=delete_stored_chat)
stored_messages = endpoint("/v1/chat/completions/{id}/messages", GET=list_messages)
