"""/v1/vector_stores and what is in them"""

from openai_api.endpoints.vector_store_files import (
    attach_file,
    begin_file_batch,
    change_store_file,
    delete_store_file,
    get_file_batch,
    get_store_file,
    get_store_file_content,
    give_up_file_batch,
    list_file_batch_files,
    list_store_files,
)
from openai_api.endpoints.vector_store_search import search_store
from openai_api.endpoints.vector_stores import begin_store, change_store, delete_store, get_store, list_stores
from openai_api.http.endpoint import endpoint

FILE = "/v1/vector_stores/{id}/files"
BATCH = "/v1/vector_stores/{id}/file_batches"

stores = endpoint("/v1/vector_stores", GET=list_stores, POST=begin_store)
store = endpoint("/v1/vector_stores/{id}", GET=get_store, POST=change_store, DELETE=delete_store)
store_search = endpoint("/v1/vector_stores/{id}/search", POST=search_store)
store_files = endpoint(FILE, GET=list_store_files, POST=attach_file)
store_file = endpoint(f"{FILE}/{{id}}", GET=get_store_file, POST=change_store_file, DELETE=delete_store_file)
store_file_content = endpoint(f"{FILE}/{{id}}/content", GET=get_store_file_content)
file_batches = endpoint(BATCH, POST=begin_file_batch)
file_batch = endpoint(f"{BATCH}/{{id}}", GET=get_file_batch)
file_batch_cancellation = endpoint(f"{BATCH}/{{id}}/cancel", POST=give_up_file_batch)
file_batch_files = endpoint(f"{BATCH}/{{id}}/files", GET=list_file_batch_files)
