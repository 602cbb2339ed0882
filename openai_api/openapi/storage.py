"""Operations of files, uploads, batches and vector stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openai_api.schemas.anthropic_batches import (
    MessageBatchBody,
    MessageBatchDeletedBody,
    MessageBatchListBody,
    MessageBatchQuery,
    MessageBatchRequest,
)
from openai_api.schemas.base import ListQuery
from openai_api.schemas.batches import BatchBody, BatchListBody, BatchRequest
from openai_api.schemas.files import (
    FileBody,
    FileDeletedBody,
    FileListBody,
    FileQuery,
    UploadBody,
    UploadCompletion,
    UploadPartBody,
    UploadRequest,
)
from openai_api.schemas.vector_store_bodies import (
    FileBatchBody,
    SearchBody,
    StoreFileBody,
    StoreFileContentBody,
    StoreFileDeletedBody,
    StoreFileListBody,
    VectorStoreBody,
    VectorStoreDeletedBody,
    VectorStoreListBody,
)
from openai_api.schemas.vector_stores import (
    AttachRequest,
    AttributeChange,
    FileBatchRequest,
    SearchRequest,
    StoreChange,
    StoreFileQuery,
    StoreRequest,
)

Schema = dict[str, Any]
REQUESTS = (
    UploadRequest,
    UploadCompletion,
    BatchRequest,
    MessageBatchRequest,
    StoreRequest,
    StoreChange,
    SearchRequest,
    AttachRequest,
    AttributeChange,
    FileBatchRequest,
)
ANSWERS = (
    FileBody,
    FileListBody,
    FileDeletedBody,
    UploadBody,
    UploadPartBody,
    BatchBody,
    BatchListBody,
    MessageBatchBody,
    MessageBatchListBody,
    MessageBatchDeletedBody,
    VectorStoreBody,
    VectorStoreListBody,
    VectorStoreDeletedBody,
    StoreFileBody,
    StoreFileListBody,
    StoreFileDeletedBody,
    StoreFileContentBody,
    FileBatchBody,
    SearchBody,
)
COMMON = ("401", "403", "404", "429", "500", "503")
WRITING = ("400", "413", "415", "507")


@dataclass(frozen=True, slots=True)
class Operation:
    """``request`` and ``answer`` name schemas; ``form`` is a multipart body, ``query`` the schema of a list's query."""

    name: str
    summary: str
    tag: str
    answer: str | None
    request: str | None = None
    form: Schema | None = None
    query: type[ListQuery] | None = None
    errors: tuple[str, ...] = ()

    def schema(self, error: Callable[[str], Schema]) -> Schema:
        writing = WRITING if self.request or self.form else ("400",) if self.query else ()
        described: Schema = {
            "operationId": self.name,
            "summary": self.summary,
            "tags": [self.tag],
            "responses": {
                **self._answers(),
                **{status: error(status) for status in sorted({*COMMON, *writing, *self.errors})},
            },
        }
        if self.query is not None:
            described["parameters"] = query_parameters(self.query)
        if self.request is not None:
            described["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": ref(self.request)}},
            }
        if self.form is not None:
            described["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": self.form}}}
        return described

    def _answers(self) -> Schema:
        if self.answer is not None:
            content = {"application/json": {"schema": ref(self.answer)}}
            return {"200": {"description": "The answer.", "content": content}}
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        return {
            "200": {"description": "The file.", "content": content},
            "206": {"description": "The range asked for.", "content": content},
        }


FILE_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["assistants", "batch", "fine-tune", "user_data", "vision"]},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3_600, "maximum": 2_592_000},
    },
}
PART_FORM = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary", "description": "At most 64 MiB."}},
}
FILES = "Files"
BATCHES = "Batches"
STORES = "Vector stores"
OPERATIONS: dict[str, dict[str, Operation]] = {
    "/v1/files": {
        "get": Operation("listFiles", "List the files", FILES, "FileListBody", query=FileQuery),
        "post": Operation("createFile", "Send a file", FILES, "FileBody", form=FILE_FORM),
    },
    "/v1/files/{file_id}": {
        "get": Operation("retrieveFile", "Look up a file", FILES, "FileBody"),
        "delete": Operation("deleteFile", "Delete a file", FILES, "FileDeletedBody"),
    },
    "/v1/files/{file_id}/content": {
        "get": Operation("downloadFile", "Fetch a file, or a range of it", FILES, None, errors=("416",)),
    },
    "/v1/uploads": {
        "post": Operation("createUpload", "Begin a file in parts", FILES, "UploadBody", request="UploadRequest"),
    },
    "/v1/uploads/{upload_id}/parts": {
        "post": Operation("addUploadPart", "Send a part", FILES, "UploadPartBody", form=PART_FORM),
    },
    "/v1/uploads/{upload_id}/complete": {
        "post": Operation(
            "completeUpload", "Join the parts into a file", FILES, "UploadBody", request="UploadCompletion"
        ),
    },
    "/v1/uploads/{upload_id}/cancel": {
        "post": Operation("cancelUpload", "Give an upload up", FILES, "UploadBody", errors=("400",)),
    },
    "/v1/batches": {
        "get": Operation("listBatches", "List the batches", BATCHES, "BatchListBody", query=ListQuery),
        "post": Operation("createBatch", "Answer many requests later", BATCHES, "BatchBody", request="BatchRequest"),
    },
    "/v1/batches/{batch_id}": {
        "get": Operation("retrieveBatch", "Look up a batch", BATCHES, "BatchBody"),
    },
    "/v1/batches/{batch_id}/cancel": {
        "post": Operation("cancelBatch", "Cancel a batch", BATCHES, "BatchBody", errors=("409",)),
    },
}


OPERATIONS |= {
    "/v1/messages/batches": {
        "get": Operation(
            "listMessageBatches", "List message batches", "Anthropic", "MessageBatchListBody", query=MessageBatchQuery
        ),
        "post": Operation(
            *("createMessageBatch", "Answer many messages later", "Anthropic", "MessageBatchBody"),
            request="MessageBatchRequest",
        ),
    },
    "/v1/messages/batches/{batch_id}": {
        "get": Operation("retrieveMessageBatch", "Look up a message batch", "Anthropic", "MessageBatchBody"),
        "delete": Operation(
            "deleteMessageBatch", "Delete a message batch", "Anthropic", "MessageBatchDeletedBody", errors=("400",)
        ),
    },
    "/v1/messages/batches/{batch_id}/cancel": {
        "post": Operation("cancelMessageBatch", "Cancel a message batch", "Anthropic", "MessageBatchBody"),
    },
    "/v1/messages/batches/{batch_id}/results": {
        "get": Operation("messageBatchResults", "Its results, JSON lines", "Anthropic", None, errors=("400",)),
    },
    "/v1/vector_stores": {
        "get": Operation("listVectorStores", "List the stores", STORES, "VectorStoreListBody", query=ListQuery),
        "post": Operation("createVectorStore", "Make a store", STORES, "VectorStoreBody", request="StoreRequest"),
    },
    "/v1/vector_stores/{store_id}": {
        "get": Operation("retrieveVectorStore", "Look up a store", STORES, "VectorStoreBody"),
        "post": Operation("updateVectorStore", "Change a store", STORES, "VectorStoreBody", request="StoreChange"),
        "delete": Operation("deleteVectorStore", "Delete a store", STORES, "VectorStoreDeletedBody"),
    },
    "/v1/vector_stores/{store_id}/search": {
        "post": Operation(
            "searchVectorStore", "Find texts by meaning", STORES, "SearchBody", request="SearchRequest", errors=("504",)
        ),
    },
    "/v1/vector_stores/{store_id}/files": {
        "get": Operation("listStoreFiles", "List a store's files", STORES, "StoreFileListBody", query=StoreFileQuery),
        "post": Operation("attachFile", "Read a file into a store", STORES, "StoreFileBody", request="AttachRequest"),
    },
    "/v1/vector_stores/{store_id}/files/{file_id}": {
        "get": Operation("retrieveStoreFile", "Look up a file in a store", STORES, "StoreFileBody"),
        "post": Operation("updateStoreFile", "Set attributes", STORES, "StoreFileBody", request="AttributeChange"),
        "delete": Operation("detachFile", "Take a file out of a store", STORES, "StoreFileDeletedBody"),
    },
    "/v1/vector_stores/{store_id}/files/{file_id}/content": {
        "get": Operation("retrieveStoreFileContent", "The chunks of a file", STORES, "StoreFileContentBody"),
    },
    "/v1/vector_stores/{store_id}/file_batches": {
        "post": Operation("createFileBatch", "Read many files", STORES, "FileBatchBody", request="FileBatchRequest"),
    },
    "/v1/vector_stores/{store_id}/file_batches/{batch_id}": {
        "get": Operation("retrieveFileBatch", "Look up a file batch", STORES, "FileBatchBody"),
    },
    "/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel": {
        "post": Operation("cancelFileBatch", "Cancel a file batch", STORES, "FileBatchBody"),
    },
    "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files": {
        "get": Operation(
            "listFileBatchFiles", "List a file batch's files", STORES, "StoreFileListBody", query=StoreFileQuery
        ),
    },
}


def paths(error: Callable[[str], Schema]) -> Schema:
    """Return all paths; ``error`` describes a status."""
    return {path: _path(path, operations, error) for path, operations in OPERATIONS.items()}


def _path(path: str, operations: dict[str, Operation], error: Callable[[str], Schema]) -> Schema:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    described: Schema = {method: operation.schema(error) for method, operation in operations.items()}
    if names:
        places = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        described["parameters"] = places
    return described


def query_parameters(query: type[ListQuery]) -> list[Schema]:
    properties = query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
