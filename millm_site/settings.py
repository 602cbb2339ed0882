"""Django settings. They are computed from the typed environment of millm_site/env.py only.

Lower layers never import millm_site; they read ``django.conf.settings.MILLM_<NAME>``.
"""

from __future__ import annotations

import django_stubs_ext

from millm_site.database import database_settings
from millm_site.env import PROJECT_DIR, environment
from millm_site.http import cors
from millm_site.http.hosts import allowed_hosts
from millm_site.log import log_settings
from millm_site.secret_key import secret_key

django_stubs_ext.monkeypatch()  # makes types such as Paginator[X] subscriptable at run time

ENV = environment()
BASE_DIR = PROJECT_DIR

MILLM_HOME = ENV.home
MILLM_HOST = ENV.host
MILLM_PORT = ENV.port
MILLM_OLLAMA_PORT = ENV.ollama_port
MILLM_TLS = ENV.tls
MILLM_CORS_ORIGINS = ENV.cors_origins
MILLM_TRUSTED_PROXIES = ENV.trusted_proxies
MILLM_AUTH = ENV.auth_mode
MILLM_KEY_MAX_AGE = ENV.key_max_age
MILLM_LOGIN_ATTEMPTS = ENV.login_attempts
MILLM_MODEL_ROOTS = ENV.local_roots
MILLM_DEMO = ENV.demo
MILLM_ALLOW_REMOTE_CODE = ENV.allow_remote_code
MILLM_ADMIN_USER = ENV.admin_user
MILLM_ADMIN_PASSWORD = ENV.admin_password.get_secret_value()
MILLM_ADMIN_EMAIL = ENV.admin_email
MILLM_ADMIN_API_KEY = ENV.admin_api_key.get_secret_value()
MILLM_METRICS_TOKEN = ENV.metrics_token.get_secret_value()
MILLM_JUDGE_BASE_URL = ENV.judge_base_url
MILLM_JUDGE_MODEL = ENV.judge_model
MILLM_JUDGE_API_KEY = ENV.judge_api_key.get_secret_value()
MILLM_LOG_CONTENT = ENV.log_content
MILLM_LOG_RETENTION_DAYS = ENV.log_retention_days
MILLM_REFUSAL_RETENTION_DAYS = ENV.refusal_retention_days
MILLM_LOG_TEXT_RETENTION_DAYS = ENV.log_text_retention_days
MILLM_PROFILE_REVIEW = ENV.profile_review
MILLM_WATCH_RETENTION_DAYS = ENV.watch_retention_days
MILLM_MAX_BODY_BYTES = ENV.max_body_bytes
MILLM_STORAGE_QUOTA_BYTES = int(ENV.storage_quota_bytes)
MILLM_MAX_FILE_BYTES = int(ENV.max_file_bytes)
MILLM_MAX_MEDIA_BYTES = int(ENV.max_media_bytes)
MILLM_MAX_AUDIO_SECONDS = ENV.max_audio_seconds
MILLM_SPEECH_FORMAT = ENV.speech_format
MILLM_MAX_VIDEO_PIXELS = ENV.max_video_pixels
MILLM_VIDEO_RETENTION_DAYS = ENV.video_retention_days
MILLM_FETCH_IMAGES = ENV.fetch_images
MILLM_PUBLIC_URL = ENV.public_url
MILLM_OIDC_ISSUER = ENV.oidc_issuer
MILLM_OIDC_CLIENT_ID = ENV.oidc_client_id
MILLM_OIDC_CLIENT_SECRET = ENV.oidc_client_secret.get_secret_value()
MILLM_OIDC_NAME = ENV.oidc_name
MILLM_OIDC_SCOPE = ENV.oidc_scope
MILLM_OIDC_GROUPS_CLAIM = ENV.oidc_groups_claim
MILLM_OIDC_ROLES = tuple((group, role) for group, _, role in (pair.rpartition("=") for pair in ENV.oidc_roles))
MILLM_MIN_FREE_BYTES = int(ENV.min_free_bytes)
MILLM_FILES_URL = ENV.files_url
MILLM_MCP_SERVERS = ENV.mcp_servers
MILLM_HEADER_TIMEOUT = ENV.header_timeout
MILLM_IDLE_TIMEOUT = ENV.idle_timeout
MILLM_REQUEST_TIMEOUT = ENV.request_timeout
MILLM_CHAT_RETENTION_DAYS = ENV.chat_retention_days
MILLM_RESPONSE_RETENTION_DAYS = ENV.response_retention_days
MILLM_BACKGROUND_TIMEOUT = ENV.background_timeout
MILLM_MAX_CONCURRENT_REQUESTS = ENV.max_concurrent_requests
MILLM_MAX_CONNECTIONS = ENV.max_connections
MILLM_MAX_ADDRESS_CONNECTIONS = ENV.max_address_connections
MILLM_MAX_SOCKETS = ENV.max_sockets
MILLM_LOAD_TIMEOUT = ENV.load_timeout
MILLM_MODEL_KEEP_ALIVE = ENV.model_keep_alive
MILLM_MEMORY_BUDGET = ENV.memory_budget
MILLM_DRAIN_SECONDS = ENV.drain_seconds
MILLM_WORKERS = ENV.workers
MILLM_ENGINE = ENV.engine
MILLM_ENGINE_REPLICAS = ENV.engine_replicas
MILLM_ENGINE_MAX_REPLICAS = ENV.engine_max_replicas
MILLM_ENGINE_SCALE_SECONDS = ENV.engine_scale_seconds
MILLM_RAY_ADDRESS = ENV.ray_address
MILLM_RAY_LISTEN = ENV.ray_listener
MILLM_RAY_CPUS = ENV.ray_cpus
MILLM_RAY_GPUS = ENV.ray_gpus
MILLM_ENGINE_STALL_SECONDS = ENV.engine_stall_seconds
MILLM_DATABASE_TIMEOUT = ENV.database_timeout
MILLM_LIST_PROFILES = ENV.list_profiles
MILLM_UNKNOWN_FIELDS = ENV.unknown_fields
MILLM_MAX_TOKENS_DEFAULT = ENV.max_tokens_default
MILLM_CLAMP_MAX_TOKENS = ENV.clamp_max_tokens
MILLM_MAX_BATCH_SIZE = ENV.max_batch_size
MILLM_MAX_WAITING_REQUESTS = ENV.max_waiting_requests
MILLM_MAX_SEQ_LEN = ENV.max_seq_len
MILLM_BATCH_INVARIANT = ENV.batch_invariant
MILLM_JOB_WORKERS = ENV.job_slots
MILLM_BACKGROUND_RESPONSES = ENV.background_responses
MILLM_JOB_MAX_SHARE = ENV.job_max_share
MILLM_JOB_TURN_SECONDS = ENV.job_turn_seconds
MILLM_JOB_STALL_SECONDS = ENV.job_stall_seconds
MILLM_JOB_RETENTION_DAYS = ENV.job_retention_days
MILLM_WEBHOOK_PRIVATE_NETWORKS = ENV.webhook_private_networks
MILLM_WEBHOOK_TIMEOUT = ENV.webhook_timeout
MILLM_WEBHOOK_RETRY_HOURS = ENV.webhook_retry_hours
MILLM_WEBHOOK_RETENTION_DAYS = ENV.webhook_retention_days
MILLM_LOAD_RETENTION_DAYS = ENV.load_retention_days
MILLM_ENGINE_OPTIONS = ENV.engine_options()

DEBUG = ENV.debug
SECRET_KEY = secret_key(ENV)
ALLOWED_HOSTS = allowed_hosts(ENV)

# "millm_site" first: its runserver command overrides daphne's, which overrides Django's.
INSTALLED_APPS = [
    "millm_site",
    "daphne",
    "channels",
    "console.admin_config.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.forms",  # for its widgets' templates, see FORM_RENDERER
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "corsheaders",
    "audit",
    "jobs",
    "jobs.webhooks",
    "inference",
    "steering",
    "storage",
    "media",
    "openai_api",
    "openai_api.stored_chats",
    "openai_api.responses",
    "management_api",
    "console",
]
MIDDLEWARE = [
    *cors.cors_middleware(MILLM_CORS_ORIGINS),
    "django.middleware.security.SecurityMiddleware",
    "millm_site.http.middleware.DatabaseUnavailableMiddleware",
    "millm_site.http.static_files.StaticFilesMiddleware",
    "millm_site.http.middleware.ContentPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "audit.middleware.AuditOriginMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "millm_site.urls"
ASGI_APPLICATION = "millm_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"  # templates/ may replace a widget's template

DATABASES = {"default": database_settings(ENV)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Cookies are as strict as possible. Secure cookies require MILLM_TLS, because on http://192.168.x.y they would lock
# everyone out of the admin.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = MILLM_TLS
SECURE_REDIRECT_EXEMPT = [r"^health(/|$)", r"^metrics$"]  # probes come from inside, without TLS
SECURE_HSTS_SECONDS = 365 * 86_400 if MILLM_TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = MILLM_TLS
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
CSRF_TRUSTED_ORIGINS = [MILLM_PUBLIC_URL] if MILLM_PUBLIC_URL else []  # a proxy may send another Host
SESSION_COOKIE_NAME = "millm_session"
CSRF_COOKIE_NAME = "millm_csrf"
X_FRAME_OPTIONS = "DENY"
SECURE_CSP = {
    "default-src": ("'self'",),
    "script-src": ("'self'",),
    "style-src": ("'self'",),
    "img-src": ("'self'", "data:"),  # Swagger UI's icons, and images that "Try it" made
    "media-src": ("'self'", "blob:"),  # audio that a page has fetched or recorded
    "connect-src": ("'self'",),
    "object-src": ("'none'",),
    "base-uri": ("'none'",),
    "form-action": ("'self'",),
    "frame-ancestors": ("'none'",),
}

CORS_URLS_REGEX = cors.API_PATHS
CORS_ALLOW_ALL_ORIGINS = "*" in MILLM_CORS_ORIGINS
CORS_ALLOWED_ORIGINS = [origin for origin in MILLM_CORS_ORIGINS if origin != "*"]
CORS_ALLOW_HEADERS = cors.REQUEST_HEADERS
CORS_EXPOSE_HEADERS = cors.RESPONSE_HEADERS

# The server has already refused larger bodies; Django's default limit of 2.5 MB would answer them with 400.
DATA_UPLOAD_MAX_MEMORY_SIZE = MILLM_MAX_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000  # a profile's form has two dozen for each of its 256 edits

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
FORMAT_MODULE_PATH = "millm_site.formats"
STATIC_URL = "/static/"
STATIC_ROOT = MILLM_HOME / "static"
MEDIA_ROOT = MILLM_HOME / "media"
LOGGING = log_settings(ENV.log_level)
LOGIN_URL = "admin:login"

REST_FRAMEWORK = {
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "management_api.errors.render_error",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "miLLM",
    "OAS_VERSION": "3.1.0",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "POSTPROCESSING_HOOKS": [],  # keep choices inline: the generated names of shared enums would not be stable
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}
