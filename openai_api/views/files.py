"""/v1/files, /v1/files/{id} and /v1/files/{id}/content"""

from openai_api.endpoints.files import create_file, delete_file, get_file, get_file_content, list_files
from openai_api.http.endpoint import endpoint

files = endpoint("/v1/files", GET=list_files, POST=create_file)
file = endpoint("/v1/files/{id}", GET=get_file, DELETE=delete_file)
file_content = endpoint("/v1/files/{id}/content", GET=get_file_content)
