"""The tables, one module per object.

Start with `files`, which the others refer to.
"""

from storage.models.batches import Batch
from storage.models.files import StoredFile
from storage.models.uploads import Upload, UploadPart
from storage.models.vector_stores import Chunk, FileBatch, VectorStore, VectorStoreFile

__all__ = ["Batch", "Chunk", "FileBatch", "StoredFile", "Upload", "UploadPart", "VectorStore", "VectorStoreFile"]
