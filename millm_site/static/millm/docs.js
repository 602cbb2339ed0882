// Swagger UI on our own document; everything is served locally.
const root = document.getElementById("swagger-ui");
SwaggerUIBundle({ url: root.dataset.url, domNode: root, deepLinking: true, tryItOutEnabled: true });
