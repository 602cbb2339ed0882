"""/v1/vector_stores and what is in them"""

from openai_api.endpoints.vector_store_files import (
    attach_file,
    cancel_store_file_batch,
    create_file_batch,
    delete_store_file,
    get_file_batch,
    get_store_file,
    get_store_file_content,
    list_file_batch_files,
    list_store_files,
    update_store_file,
)
from openai_api.endpoints.vector_store_search import search_vector_store
from openai_api.endpoints.vector_stores import (
    create_vector_store,
    delete_vector_store,
    get_vector_store,
    list_vector_stores,
    update_vector_store,
)
from openai_api.http.endpoint import endpoint

FILE = "/v1/vector_stores/{id}/files"
BATCH = "/v1/vector_stores/{id}/file_batches"

stores = endpoint("/v1/vector_stores", GET=list_vector_stores, POST=create_vector_store)
store = endpoint("/v1/vector_stores/{id}", GET=get_vector_store, POST=update_vector_store, DELETE=delete_vector_store)
store_search = endpoint("/v1/vector_stores/{id}/search", POST=search_vector_store)
store_files = endpoint(FILE, GET=list_store_files, POST=attach_file)
store_file = endpoint(f"{FILE}/{{id}}", GET=get_store_file, POST=update_store_file, DELETE=delete_store_file)
store_file_content = endpoint(f"{FILE}/{{id}}/content", GET=get_store_file_content)
file_batches = endpoint(BATCH, POST=create_file_batch)
file_batch = endpoint(f"{BATCH}/{{id}}", GET=get_file_batch)
file_batch_cancellation = endpoint(f"{BATCH}/{{id}}/cancel", POST=cancel_store_file_batch)
file_batch_files = endpoint(f"{BATCH}/{{id}}/files", GET=list_file_batch_files)
