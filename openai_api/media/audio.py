"""The endpoints of /v1/audio: transcriptions, translations, speech, voices, models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from core.errors import MillmError
from core.runtime import runtime
from inference.registry.model_card import MediaCard
from media.backend import MEDIA_CLIENT
from media.messages import AudioFormat, Chunk, Done, Segment, Speak, Transcribe
from openai_api.backend import get_backend
from openai_api.database import in_thread
from openai_api.generation.target import check_model_allowed, default_model, find_model
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.file_uploads import FilesForm, SentFile, check_multipart, read_files
from openai_api.http.sse import DONE, EventSource, data_event, event_response
from openai_api.media.schemas import (
    AudioForm,
    SpeechRequest,
    TranscriptionBody,
    TranscriptionForm,
)
from openai_api.media.transcriptions import as_srt, as_vtt, logprob_body, verbose_body, whole_text

CONTENT_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}
PLAIN = "text/plain; charset=utf-8"


async def create_transcription(call: Call) -> HttpResponseBase:
    return await _transcribe(call, TranscriptionForm, translates=False)


async def create_translation(call: Call) -> HttpResponseBase:
    return await _transcribe(call, AudioForm, translates=True)


async def _transcribe(call: Call, schema: type[AudioForm], *, translates: bool) -> HttpResponseBase:
    check_multipart(call)
    stack = ExitStack()
    try:
        form = await in_thread(
            read_files, call.request, stack, most={"file": 1}, max_bytes=settings.MILLM_MAX_MEDIA_BYTES
        )
        file = one_file(form, "file")
        card = await ready_media(call, last(form, "model"), "transcription")
        request = call.read_fields(schema, form.fields)
        if translates and "translate" not in card.facts.abilities:
            message = f"The model `{card.record.name}` can't translate. Use a multilingual Whisper model."
            raise invalid(message, param="model", code="wrong_model_kind")
        task = _task(request, card, file.path, translates=translates)
        if isinstance(request, TranscriptionForm) and request.stream:
            events = _events(runtime.get(MEDIA_CLIENT).submit(task), request)
            return event_response(EventSource(events, _closing(call, stack)))
        segments: list[Segment] = []
        result: dict[str, Any] = {}
        async for event in runtime.get(MEDIA_CLIENT).submit(task):
            if isinstance(event, Segment):
                segments.append(event)
            elif isinstance(event, Done):
                result = event.result
    except BaseException:
        stack.close()
        raise
    stack.close()
    return _answer(request, segments, result, translates=translates)


def _task(request: AudioForm, card: MediaCard, path: Path, *, translates: bool) -> Transcribe:
    words = include = None
    language = None
    if isinstance(request, TranscriptionForm):
        words, include, language = request.timestamp_granularities, request.include, request.language
    if language is not None and card.facts.languages and language not in card.facts.languages:
        known = ", ".join(card.facts.languages)
        raise invalid(f"`language` must be one of {known}, got `{language}`.", param="language", code="invalid_value")
    if words and "word" in words and "words" not in card.facts.abilities:
        message = f"The model `{card.record.name}` has no timestamps of words."
        raise invalid(message, param="timestamp_granularities", code="unsupported_parameter")
    return Transcribe(
        task="",
        model=card.record.name,
        file=path,
        max_seconds=settings.MILLM_MAX_AUDIO_SECONDS,
        language=language,
        prompt=request.prompt or "",
        temperature=request.temperature,
        translate=translates,
        with_words=bool(words and "word" in words),
        with_logprobs=bool(include),
    )


def _answer(
    request: AudioForm, segments: Sequence[Segment], result: dict[str, Any], *, translates: bool
) -> HttpResponseBase:
    text = whole_text(segments)
    match request.response_format:
        case "text":
            return HttpResponse(text + "\n", content_type=PLAIN)
        case "srt":
            return HttpResponse(as_srt(segments), content_type=PLAIN)
        case "vtt":
            return HttpResponse(as_vtt(segments), content_type="text/vtt; charset=utf-8")
        case "verbose_json":
            return json_response(
                verbose_body(
                    segments,
                    language=result["language"],
                    seconds=result["seconds"],
                    task="translate" if translates else "transcribe",
                    granularities=getattr(request, "timestamp_granularities", None) or (),
                )
            )
    body: TranscriptionBody = {"text": text, "usage": {"type": "duration", "seconds": round(result["seconds"], 2)}}
    if getattr(request, "include", None):
        logprobs = [logprob_body(found) for segment in segments for found in segment.logprobs]
        return json_response({**body, "logprobs": logprobs})
    return json_response(body)


async def _events(events: AsyncIterator[Any], request: TranscriptionForm) -> AsyncIterator[bytes]:
    """Yield OpenAI's events: a delta per segment, and the whole text."""
    segments: list[Segment] = []
    async for event in events:
        if isinstance(event, Segment):
            delta = event.text if segments else event.text.lstrip()
            segments.append(event)
            body: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
            if request.include:
                body["logprobs"] = [logprob_body(found) for found in event.logprobs]
            yield data_event(body)
        elif isinstance(event, Done):
            usage = {"type": "duration", "seconds": round(event.result["seconds"], 2)}
            yield data_event({"type": "transcript.text.done", "text": whole_text(segments), "usage": usage})
    yield DONE


def one_file(form: FilesForm, name: str) -> SentFile:
    """Return the file of a field. Raises MillmError 400."""
    files = form.files.get(name, ())
    if not files:
        message = f"`{name}` is required and must be a file with a name."
        raise invalid(message, param=name, code="missing_required_parameter")
    if files[0].size == 0:
        raise invalid(f"`{name}` must not be empty.", param=name, code="invalid_file")
    return files[0]


def last(form: FilesForm, name: str) -> str:
    values = form.fields.get(name)
    return values[-1] if values else ""


async def ready_media(call: Call, name: str, kind: Any) -> MediaCard:
    """Return a media model, loading it if necessary; without a name the default of its kind. Raises MillmError."""
    registry = get_backend().registry()
    record = find_model(registry, name)[0] if name else default_model(registry, kind)
    call.use_model(record.name)
    check_model_allowed(call.key, record)
    card = await registry.ready_card(record.name)
    if not isinstance(card, MediaCard) or card.kind != kind:
        message = f"The model `{record.name}` is a {card.kind} model. This endpoint needs a {kind} model."
        raise invalid(message, param="model", code="wrong_model_kind")
    return card


def _closing(call: Call, stack: ExitStack) -> Any:
    def close() -> None:
        stack.close()
        call.close()

    return close


async def create_speech(call: Call) -> HttpResponseBase:
    request = call.read(SpeechRequest)
    card = await ready_media(call, request.model, "speech")
    audio_format: AudioFormat = request.response_format or settings.MILLM_SPEECH_FORMAT
    if request.instructions is not None:
        call.note_ignored("instructions")
    task = Speak(
        task="",
        model=card.record.name,
        text=request.input,
        audio_format=audio_format,
        speed=request.speed,
        speaker=speaker_of(card, request.voice_name),
        seed=request.seed,
    )
    chunks = runtime.get(MEDIA_CLIENT).submit(task)
    if request.stream_format == "sse":
        return event_response(EventSource(_speech_events(chunks), call.close))
    response = StreamingHttpResponse(
        EventSource(_speech_bytes(chunks), call.close), content_type=content_type(audio_format, card.facts.sample_rate)
    )
    if audio_format in {"wav", "pcm"}:
        response.headers["X-Audio-Sample-Rate"] = str(card.facts.sample_rate)
        response.headers["X-Audio-Channels"] = "1"
        response.headers["X-Audio-Bit-Depth"] = "16"
    return response


def content_type(audio_format: AudioFormat, rate: int) -> str:
    return f"audio/L16; rate={rate}; channels=1" if audio_format == "pcm" else CONTENT_TYPES[audio_format]


def speaker_of(card: MediaCard, voice: str) -> str | None:
    """Return the model's speaker with that name, in any case; its default for OpenAI's names. Raises MillmError 404."""
    by_name = {name.lower(): name for name in card.facts.speakers}
    if voice.lower() in by_name:
        return by_name[voice.lower()]
    if voice.lower() in OPENAI_VOICES:
        return None
    known = ", ".join(card.facts.speakers[:20]) or ", ".join(sorted(OPENAI_VOICES))
    message = f"The voice `{voice[:100]}` does not exist. Voices of `{card.record.name}`: {known}."
    raise MillmError(message, status=404, code="voice_not_found", param="voice")


OPENAI_VOICES = frozenset(
    {"alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse"}
)


async def _speech_bytes(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for event in events:
        if isinstance(event, Chunk) and event.data:
            yield event.data


async def _speech_events(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    import base64

    async for event in events:
        if isinstance(event, Chunk) and event.data:
            yield data_event({"type": "speech.audio.delta", "audio": base64.b64encode(event.data).decode()})
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    yield data_event({"type": "speech.audio.done", "usage": usage})
