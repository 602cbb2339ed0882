// Swagger UI for our OpenAPI document; all files are served locally.
const root = document.getElementById("swagger-ui");
SwaggerUIBundle({ url: root.dataset.url, domNode: root, deepLinking: true, tryItOutEnabled: true });
