"""/v1/uploads and what can be done to one"""

from openai_api.endpoints.files import cancel_file_upload, complete_file_upload, create_part, create_upload
from openai_api.http.endpoint import endpoint

uploads = endpoint("/v1/uploads", POST=create_upload)
upload_parts = endpoint("/v1/uploads/{id}/parts", POST=create_part)
upload_completion = endpoint("/v1/uploads/{id}/complete", POST=complete_file_upload)
upload_cancellation = endpoint("/v1/uploads/{id}/cancel", POST=cancel_file_upload)
