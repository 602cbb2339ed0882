"""The environment, read once and typed. docs/settings.md is generated from this class."""

from __future__ import annotations

import ipaddress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import ByteSize, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from millm_site.http.cors import is_origin

PROJECT_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = PROJECT_DIR / "steering" / "demo" / "artifacts"
PREFIX = "MILLM_"

Names = Annotated[tuple[str, ...], NoDecode]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


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
    """Settings from variables with the prefix ``MILLM_``; an empty variable counts as unset."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    home: Path = Field(
        PROJECT_DIR / "var",
        description="Folder of all state: embedded Postgres, models, secret key. Relative to here. For root, where "
        "other users may not enter it, Postgres' data lies under /var/lib/millm, and a link here says where.",
    )
    debug: bool = Field(default=False, description="Django's debug mode: tracebacks in the browser. Development only.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Least severity that goes to standard error."
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address that `manage.py serve` listens on.")
    port: int = Field(8000, ge=0, le=65_535, description="Port that `manage.py serve` listens on; 0 takes a free one.")
    allowed_hosts: Names = Field(
        (),
        description="Names, separated by commas, under which browsers and clients may reach the site. Empty: the "
        "loopback names and MILLM_HOST; for 0.0.0.0 and :: also this machine's name and addresses.",
    )
    trusted_proxies: Names = Field(
        ("127.0.0.1", "::1"),
        description="Addresses and networks, separated by commas, whose X-Forwarded-For and X-Forwarded-Proto "
        "headers are trusted. `none`: trust no proxy.",
    )
    cors_origins: Names = Field(
        (),
        description="Origins, separated by commas, such as https://app.example.org, whose pages may call the API from "
        "a browser; `*`: all. Empty: none. Cookies are never accepted there, keys are.",
    )
    tls: bool = Field(
        default=False,
        description="Clients reach the site by https, through a proxy that sets X-Forwarded-Proto: cookies become "
        "secure, http is redirected, HSTS is sent. `check --deploy` warns as long as this is off.",
    )

    auth: Literal["", "loopback", "required"] = Field(
        "",
        validate_default=True,
        description="Who needs an API key on /v1. `loopback`: everyone but clients on this machine (not pages of other "
        "sites in its browsers, and not through proxies); `required`: everyone. Empty: `loopback` with MILLM_DEBUG, "
        "else `required`. `make run` and `manage.py runserver` set `loopback`, which is refused with "
        "MILLM_CORS_ORIGINS=*.",
    )
    key_max_age: Seconds = Field(
        300.0,
        description="Seconds for which keys are accepted as they were last read while the database is out of reach, so "
        "that changes and revocations are not heard of; then requests with a key are answered 503.",
    )
    login_attempts: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="Logins to the console that may fail from one address within 15 minutes, and five times as many "
        "for one user from all addresses; then the answer is 429. Counted by each process. 0: no limit.",
    )
    model_roots: Names = Field(
        (),
        description="Directories, separated by commas, below which the console and /api may name local models and "
        "SAEs. Empty: MILLM_HOME/models, and what is shipped of the demo. Commands of manage.py may name any path.",
    )
    allow_remote_code: bool = Field(
        default=False,
        description="Models may run code that comes with them, where a superuser or a command has set "
        "`trust_remote_code` or `allow_pickle` for the model. Off: these fields have no effect.",
    )
    secret_key: SecretStr = Field(
        SecretStr(""), description="Django's secret key. Empty: generated once and kept in MILLM_HOME/secret_key."
    )
    admin_user: str = Field("admin", min_length=1, max_length=150, description="Name of the first superuser.")
    admin_password: SecretStr = Field(
        SecretStr(""),
        description="Password of the first superuser. Empty: a random one, printed once on a terminal, else written "
        "to MILLM_HOME/first_password.",
    )
    admin_email: str = Field("", description="E-mail address of the first superuser.")

    database_url: SecretStr = Field(
        SecretStr(""),
        description="postgresql://user:password@host:port/name of a Postgres server (special characters percent-"
        "encoded, libpq parameters after `?`), with the extension pgvector. Empty: the embedded server under "
        "MILLM_HOME/postgres.",
    )
    database_pool_size: int = Field(20, ge=1, le=1_000, description="Most database connections of one process.")
    database_timeout: Seconds = Field(
        5.0,
        description="Seconds that a request waits for the database: for a connection, for a lock, and for what it "
        "reads or writes; after that the answer is 503, and nothing is written.",
    )

    profile_review: bool = Field(
        default=False,
        description="Steering profiles can be published only after another user has approved the draft.",
    )

    chat_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days that stored chat completions are kept; 0: until they are deleted.",
    )
    response_retention_days: int = Field(
        30,
        ge=0,
        le=36_500,
        description="Days that responses of /v1/responses are kept after they were made or last continued; 0: for "
        "ever. Conversations are kept until they are deleted.",
    )
    background_timeout: Seconds = Field(
        3_600.0,
        description="Seconds that a background response may take, from the moment on when a worker takes it up.",
    )
    metrics_token: SecretStr = Field(
        SecretStr(""),
        description="Token that /metrics asks for, as `Authorization: Bearer`. Empty: only clients on "
        "this machine may read it, if MILLM_AUTH is loopback.",
    )
    log_content: Literal["full", "hash", "none"] = Field(
        "full",
        description="What the request log keeps of prompts and completions: text, SHA-256, or nothing; without text "
        "also nothing of other words of clients, such as stop strings and tools. Keys may say less.",
    )
    log_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which rows of the request log are deleted; 0: never. Keys may say less.",
    )
    refusal_retention_days: int = Field(
        7,
        ge=0,
        le=36_500,
        description="Days after which the log's rows of requests without a valid key (401, and 404 of no endpoint) are "
        "deleted; 0: as other rows. Beyond ten a minute from one address they are counted in one row.",
    )
    log_text_retention_days: int = Field(
        0,
        ge=0,
        le=36_500,
        description="Days after which prompts, completions and other words of clients are taken out of the request log "
        "and its numbers stay; 0: never.",
    )
    watch_retention_days: int = Field(90, ge=1, le=36_500, description="Days for which events of watch rules are kept.")
    max_body_bytes: int = Field(8 * 2**20, ge=1_024, description="Largest request body; larger ones are answered 413.")
    max_file_bytes: ByteSize = Field(
        ByteSize(512 * 2**20),
        ge=1_024,
        description="Largest file that clients may keep on the server, such as 512MiB or 2GB.",
    )
    storage_quota_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="Bytes that one owner's files and unfinished uploads may have together, such as 20GiB; 0: no "
        "limit. Requests without a key share one owner. Results of batches count, and are never refused.",
    )
    min_free_bytes: ByteSize = Field(
        ByteSize(512 * 2**20),
        ge=0,
        description="Space on the disk of MILLM_HOME that clients' files never take: the database needs it. An upload "
        "beyond it is answered 507.",
    )
    header_timeout: Seconds = Field(15.0, description="Seconds a client may take to send a request's header.")
    idle_timeout: Seconds = Field(
        60.0,
        description="Seconds without a byte after which a connection closes: between two requests, in a request's "
        "body, or when the client stops reading. Streams waiting for the model are not idle.",
    )
    request_timeout: Seconds = Field(
        300.0, description="Seconds until a response must begin and a request body must be complete."
    )
    max_concurrent_requests: int = Field(
        1_024, ge=1, description="Requests to /v1 under way at once, whatever they wait for; then the answer is 503."
    )
    max_connections: int = Field(
        4_096, ge=0, description="Connections open at once; more are answered 503. 0: as many as the system allows."
    )
    max_address_connections: int = Field(
        1_024, ge=0, description="Of them from one address that is no trusted proxy. 0: no such limit."
    )
    max_sockets: int = Field(256, ge=0, description="Of them live connections of the console's pages. 0: no limit.")
    load_timeout: Seconds = Field(120.0, description="Seconds a request waits for its model to load; then 503.")
    model_keep_alive: int = Field(
        0,
        ge=0,
        le=31_536_000,
        description="Seconds without a request after which a model that is not pinned is unloaded, unless the model's "
        "own setting says otherwise; the next request loads it again. 0: only to make room for another model.",
    )
    memory_budget: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="Memory that all models on one device may take together, such as 12GB or 800MiB: weights, keys "
        "and values, and the results of a step. A model that does not fit is not loaded. 0: nine tenths of what the "
        "device has.",
    )
    drain_seconds: float = Field(
        20.0,
        ge=0,
        le=3_600,
        allow_inf_nan=False,
        description="Seconds that running requests may take to finish after SIGTERM or Ctrl-C.",
    )

    engine_stall_seconds: Seconds = Field(
        300.0,
        description="Seconds without a sign of life of the engine thread, while it has work, after which it counts as "
        "hung: all requests fail, /health is 503, and `manage.py serve` ends with an error. Longer than the longest "
        "step of the slowest model; loading a model does not count.",
    )

    unknown_fields: Literal["ignore", "reject"] = Field(
        "ignore",
        description="Fields of a request that the API does not know: named in x-millm-ignored-fields, or refused.",
    )
    max_tokens_default: int = Field(512, ge=1, description="Completion length where a request names none.")
    clamp_max_tokens: bool = Field(
        default=False,
        description="Generate as much as fits where a request asks for more tokens than the model's context has room "
        "for, instead of answering 400. /v1/messages always does.",
    )
    max_batch_size: int = Field(16, ge=1, le=4_096, description="Sequences generated at once.")
    max_waiting_requests: int = Field(64, ge=1, description="Sequences that may queue; then the answer is 503.")
    max_prefill_tokens: int = Field(512, ge=1, description="Prompt tokens of one step: decoding never waits for more.")
    max_stall_factor: float = Field(
        2.0,
        ge=0,
        le=1_000,
        allow_inf_nan=False,
        description="While others decode and one prompt is computed, a step takes at most so many times as long as one "
        "that only decodes; each further prompt adds as much, requests that cannot be admitted yet do not. 0: no such "
        "limit.",
    )
    max_seq_len: int = Field(0, ge=0, description="Cap on prompt plus completion; 0: the model's own context length.")
    batching_mode: Literal["continuous", "static"] = Field(
        "continuous",
        description="`continuous`: requests join and leave at each step; `static`: a batch begins when it is full or "
        "MILLM_BATCH_WAIT_TIMEOUT_S is over, and runs to its end.",
    )
    batch_wait_timeout_s: float = Field(
        0.05, ge=0, le=60, allow_inf_nan=False, description="Seconds that a static batch waits to become full."
    )
    scheduler_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description="`fcfs`: first come, first served; `priority`: requests of keys with a higher priority go first.",
    )
    kv_cache_backend: Literal["auto", "contiguous", "paged"] = Field(
        "auto",
        description="How keys and values are kept. `auto`: paged, but contiguous on a CPU without C++ kernels, and on "
        "a GPU whose kernel reads no pages if there is memory for it.",
    )
    kv_cache_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description="Memory for keys and values of each model, such as 2GB, out of MILLM_MEMORY_BUDGET. 0: enough for "
        "one conversation of 4096 tokens, and of what is spare then an equal share with the models that are registered "
        "and not loaded, at most half; never more than MILLM_MAX_BATCH_SIZE of the longest sequences can fill.",
    )
    prefix_cache: bool = Field(
        default=True,
        description="Keep what prompts and answers computed for requests of the same user that begin alike (of all "
        "users where a model has shared_prefix_cache).",
    )
    attention_kernel: Literal["auto", "torch"] = Field(
        "auto",
        description="On a GPU. `auto`: torch's flash kernel where it works; `torch`: plain operations.",
    )
    cuda_graphs: Literal["auto", "off"] = Field(
        "auto", description="On a GPU. `auto`: decode steps of a size that repeats are captured and replayed."
    )
    speculative_method: Literal["none", "prompt_lookup"] = Field(
        "none",
        description="`prompt_lookup`: guess further tokens of a sequence from what followed its last tokens earlier in "
        "it, and check them in the same step: faster where answers quote, and the same output. `none`: one token a "
        "step.",
    )
    num_speculative_tokens: int = Field(4, ge=1, le=64, description="Most tokens guessed at once.")
    prompt_lookup_min: int = Field(
        2, ge=1, le=64, description="Fewest last tokens that must have stood earlier in the sequence for a guess."
    )
    prompt_lookup_max: int = Field(
        4, ge=1, le=64, description="Most last tokens that are looked for; longer matches go first."
    )
    min_speculative_gain: float = Field(
        1.05,
        ge=0,
        le=1_000,
        allow_inf_nan=False,
        description="Guesses run where they are expected to raise the tokens per second so many times, by their "
        "measured success and cost. 0: always.",
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="Seed of requests that name none; empty: random.")

    job_workers: int = Field(
        2, ge=0, le=64, description="Background jobs that this process runs at once; 0: it leaves them to others."
    )
    job_stall_seconds: Seconds = Field(
        30.0,
        description="Seconds without a sign of life after which a running job counts as orphaned and runs again from "
        "its checkpoint. The same for all processes on one database.",
    )
    load_retention_days: int = Field(
        35, ge=8, le=3_650, description="Days for which the dashboard keeps the load of each hour."
    )
    job_retention_days: int = Field(30, ge=1, le=36_500, description="Days that ended jobs and their logs are kept.")

    @field_validator("max_stall_factor")
    @classmethod
    def _stalls(cls, value: float) -> float:
        if 0 < value <= 1:
            raise ValueError("must be 0 or more than 1")
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

    @field_validator("allowed_hosts", "cors_origins", "model_roots", "trusted_proxies", mode="before")
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
            raise ValueError(f"{relative[0]} is no absolute path")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [origin for origin in value if not is_origin(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]} is no origin such as https://app.example.org")
        return value

    @field_validator("auth")
    @classmethod
    def _not_open_to_every_page(cls, value: str, info: ValidationInfo) -> str:
        is_loopback = value == "loopback" or (not value and info.data.get("debug"))
        if is_loopback and "*" in info.data.get("cors_origins", ()):
            raise ValueError(
                "must be `required` while MILLM_CORS_ORIGINS is `*`: any page in a browser of this machine could use it"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _postgres(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value() and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("must start with postgresql://")
        try:
            conninfo_to_dict(value.get_secret_value())
        except ProgrammingError as error:
            raise ValueError(f"is no PostgreSQL URL: {str(error).strip()}") from None
        return value

    @property
    def local_roots(self) -> tuple[Path, ...]:
        """The directories of ``model_roots``, or those that downloads and the demo lie in."""
        return tuple(Path(root).expanduser() for root in self.model_roots) or (self.home / "models", DEMO_DIR)

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
    except ValidationError as error:
        raise SystemExit(explain(error)) from None


def explain(error: ValidationError) -> str:
    """Return a line for each invalid variable: its name, the problem, and the value unless it is secret."""
    return "\n".join(_explain_one(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors())


def _explain_one(location: tuple[int | str, ...], message: str, value: object) -> str:
    name = str(location[0])
    secret = Environment.model_fields[name].annotation is SecretStr
    shown = "" if secret else f", not {value!r}"
    return (
        f"{PREFIX}{name.upper()}: {message.removeprefix('Value error, ')}{shown}. docs/settings.md lists all variables."
    )
