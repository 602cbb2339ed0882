"""The endpoints of /v1/audio: transcriptions, translations, speech, voices and speech models."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from core.database import in_database
from inference.files.architectures import MediaKind
from inference.registry.model_card import MediaCard
from inference.registry.records import ModelNotFoundError, ModelRecord
from media.messages import AudioFormat, Chunk, Segment, Speak, Transcribe
from media.models import Voice
from media.sentences import sentences
from openai_api.backend import get_backend
from openai_api.endpoints.models import model_body
from openai_api.generation.target import find_media_model, is_model_allowed, loaded_media
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.http.json_body import read_json_object
from openai_api.media.forms import last_value, one_file, read_media_form
from openai_api.media.run import MediaRun, stream_bytes, stream_events
from openai_api.media.schemas import (
    DEFAULT_VOICE,
    MAX_INPUT,
    MAX_VOICE,
    AudioForm,
    SpeechModelListBody,
    SpeechRequest,
    TranscriptionBody,
    TranscriptionForm,
    VoiceBody,
    VoiceListBody,
)
from openai_api.media.transcriptions import as_srt, as_vtt, logprob_body, segment_body, verbose_body, whole_text

CONTENT_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}
OPENAI_VOICES = (
    *(DEFAULT_VOICE, "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer"),
    "verse",
)
PLAIN = "text/plain; charset=utf-8"


async def create_transcription(call: Call) -> HttpResponseBase:
    return await _transcribe(call, TranscriptionForm, translates=False)


async def create_translation(call: Call) -> HttpResponseBase:
    return await _transcribe(call, AudioForm, translates=True)


async def _transcribe(call: Call, schema: type[AudioForm], *, translates: bool) -> HttpResponseBase:
    with ExitStack() as files:
        form = await read_media_form(call, files, {"file": 1})
        file = one_file(form, "file")
        kind: MediaKind = "translation" if translates else "transcription"
        record = find_media_model(call, last_value(form, "model"), kind)
        request = call.read_body(schema.body_of(form), schema)
        await call.reserve_media("audio_seconds")
        card = await loaded_media(record)
        if translates and "translate" not in card.facts.abilities:
            message = f"The model `{record.name}` can't translate. Use a multilingual Whisper model."
            raise invalid(message, param="model", code="wrong_model_kind")
        task = replace(_task(request, card), file=file.path, translate=translates)
        run = MediaRun(call, task, files=files.pop_all(), units=lambda result: {"audio_seconds": result["seconds"]})
    if isinstance(request, TranscriptionForm) and request.stream:
        return await stream_events(run, _transcript_events(run, request))
    segments = [event for event in await run.collect() if isinstance(event, Segment)]
    call.outcome = replace(call.outcome, completion=whole_text(segments))
    return _transcript(request, segments, run.result, translates=translates)


def _task(request: AudioForm, card: MediaCard) -> Transcribe:
    defaults = card.record.default_sampling
    language, wants_words, include = None, False, None
    if isinstance(request, TranscriptionForm):
        language, include = request.language, request.include
        language = language or defaults.get("language")
        wants_words = "word" in (request.timestamp_granularities or ())
    if language is not None and card.facts.languages and language not in card.facts.languages:
        known = ", ".join(f"`{each}`" for each in card.facts.languages)
        raise invalid(f"`language` must be one of {known}, got `{language}`.", param="language")
    if wants_words and "words" not in card.facts.abilities:
        message = f"The model `{card.record.name}` has no timestamps of words."
        raise invalid(message, param="timestamp_granularities", code="unsupported_parameter")
    return Transcribe(
        task="",
        model=card.record.name,
        file=settings.MILLM_HOME,
        max_seconds=settings.MILLM_MAX_AUDIO_SECONDS,
        language=language,
        prompt=request.prompt or "",
        temperature=defaults.get("temperature") if request.temperature is None else request.temperature,
        with_words=wants_words,
        with_logprobs=bool(include),
    )


def _transcript(
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
                    language="english" if translates else result["language"],
                    seconds=result["seconds"],
                    task="translate" if translates else "transcribe",
                    granularities=getattr(request, "timestamp_granularities", None) or (),
                )
            )
    body: TranscriptionBody = {"text": text, "usage": {"type": "duration", "seconds": round(result["seconds"], 2)}}
    if getattr(request, "include", None):
        return json_response({**body, "logprobs": _logprobs(segments)})
    return json_response(body)


async def _transcript_events(run: MediaRun, request: TranscriptionForm) -> AsyncGenerator[object, None]:
    """Yield OpenAI's events: a delta for each segment, and the whole text; ``verbose_json`` adds the segments."""
    segments: list[Segment] = []
    async for event in run.events():
        if event is None:
            yield None
        elif isinstance(event, Segment):
            delta = event.text if segments else event.text.lstrip()
            segments.append(event)
            body: dict[str, object] = {"type": "transcript.text.delta", "delta": delta}
            yield body | ({"logprobs": _logprobs([event])} if request.include else {})
            if request.response_format == "verbose_json":
                yield {"type": "transcript.text.segment", **segment_body(event)}
    seconds, text = round(run.result["seconds"], 2), whole_text(segments)
    run.call.outcome = replace(run.call.outcome, completion=text)
    done: dict[str, object] = {"type": "transcript.text.done", "text": text}
    done |= {"logprobs": _logprobs(segments)} if request.include else {}
    yield done | {"usage": {"type": "duration", "seconds": seconds}}


def _logprobs(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [logprob_body(found) for segment in segments for found in segment.logprobs]


async def create_speech(call: Call) -> HttpResponseBase:
    body = read_json_object(call.request)
    voice_name = _voice_name(call, body)
    voice = None if voice_name is None else await in_database(Voice.find, voice_name)
    record = _speech_model(call, call.deployment or _model_name(body), voice, voice_name)
    request = call.read_body(body, SpeechRequest)
    defaults = record.default_sampling
    limit = defaults.get("max_input_chars", MAX_INPUT)
    if len(request.input) > limit:
        raise invalid(f"`input` must have at most {limit} characters, got {len(request.input)}.", param="input")
    await call.reserve_media("characters", len(request.input))
    await call.reserve_media("audio_seconds")
    card = await loaded_media(record)
    speaker = voice.speaker_for_worker() if voice is not None else _speaker(card, voice_name)
    if voice is None and voice_name is not None and speaker is None:
        call.note_ignored("voice")
    if request.instructions is not None:
        call.note_ignored("instructions")
    audio_format: AudioFormat = request.response_format or settings.MILLM_SPEECH_FORMAT
    task = Speak(
        task="",
        model=record.name,
        text=request.input,
        audio_format=audio_format,
        speed=defaults.get("speed", 1.0) if request.speed is None else request.speed,
        speaker=speaker,
        reference=None if voice is None or not voice.reference else bytes(voice.reference),
        streams=_streams(request, audio_format),
        seed=request.seed,
    )
    characters = len(request.input)
    run = MediaRun(
        call, task, units=lambda result: {"characters": characters, "audio_seconds": round(result["seconds"], 2)}
    )
    if request.stream_format == "sse":
        return await stream_events(run, _speech_events(run))
    headers = _audio_headers(audio_format, card.facts.sample_rate)
    content_type = headers.pop("Content-Type")
    if task.streams:
        return await stream_bytes(run, _audio(run), content_type=content_type, headers=headers)
    data = b"".join([event.data for event in await run.collect() if isinstance(event, Chunk)])
    return HttpResponse(data, content_type=content_type, headers={**headers, "Content-Length": str(len(data))})


def _streams(request: SpeechRequest, audio_format: AudioFormat) -> bool:
    """Return whether audio is sent while it is computed.

    One sentence is sent whole, with its length. So is WAV, whose header has the length, unless a stream is asked for.
    """
    if request.stream_format is not None:
        return True
    return audio_format != "wav" and len(sentences(request.input)) > 1


def _model_name(body: Mapping[str, Any]) -> str:
    name = body.get("model")
    return name if isinstance(name, str) else ""  # the schema refuses others


def _voice_name(call: Call, body: Mapping[str, Any]) -> str | None:
    """Return the name of the requested voice, or the model's default; None for a value that the schema will refuse."""
    given = body.get("voice")
    if given is None:
        defaults = find_media_model(call, _model_name(body), "speech").default_sampling
        return str(defaults.get("voice", DEFAULT_VOICE))
    name = given.get("id") if isinstance(given, dict) else given
    return name[:MAX_VOICE] if isinstance(name, str) and "\x00" not in name else None


def _speech_model(call: Call, name: str, voice: Voice | None, voice_name: str | None) -> ModelRecord:
    """Return the model of the voice, else ``model-voice``, else ``model``. Raises MillmError 404."""
    if voice is not None:
        return find_media_model(call, voice.model.name, "speech")
    if name and voice_name:
        with suppress(ModelNotFoundError):
            return find_media_model(call, f"{name}-{voice_name.lower()}", "speech")
    return find_media_model(call, name, "speech")


def _speaker(card: MediaCard, voice: str | None) -> str | None:
    """Return the model's speaker of that name, in any case; None for its default."""
    by_name = {name.lower(): name for name in card.facts.speakers}
    return by_name.get((voice or "").lower())


def _audio_headers(audio_format: AudioFormat, rate: int) -> dict[str, str]:
    if audio_format not in {"wav", "pcm"}:
        return {"Content-Type": CONTENT_TYPES[audio_format]}
    raw = f"audio/L16; rate={rate}; channels=1"
    return {
        "Content-Type": raw if audio_format == "pcm" else CONTENT_TYPES["wav"],
        "X-Audio-Sample-Rate": str(rate),
        "X-Audio-Channels": "1",
        "X-Audio-Bits-Per-Sample": "16",
    }


async def _audio(run: MediaRun) -> AsyncGenerator[bytes, None]:
    async for event in run.events():
        if isinstance(event, Chunk) and event.data:
            yield event.data


async def _speech_events(run: MediaRun) -> AsyncGenerator[object, None]:
    async for event in run.events():
        if event is None:
            yield None
        elif isinstance(event, Chunk) and event.data:
            yield {"type": "speech.audio.delta", "audio": base64.b64encode(event.data).decode()}
    yield {"type": "speech.audio.done", "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}}


async def list_voices(call: Call) -> HttpResponseBase:
    """List the voices of the admin, then the speakers of loaded models, then OpenAI's names."""

    def read() -> list[VoiceBody]:
        return [_voice_body(voice.name, voice.model.name) for voice in Voice.objects.select_related("model")]

    data = await in_database(read)
    known = {each["id"].lower() for each in data}
    default = next((each for each in get_backend().registry().records() if each.kind == "speech"), None)
    data += [_voice_body(name, "" if default is None else default.name) for name in OPENAI_VOICES if name not in known]
    body: VoiceListBody = {"object": "list", "data": data, "voices": data, "has_more": False}
    return json_response(body)


def _voice_body(name: str, model: str) -> VoiceBody:
    return {"id": name, "name": name, "object": "audio.voice", "model": model}


async def list_speech_models(call: Call) -> HttpResponseBase:
    records = [each for each in get_backend().registry().records() if each.kind == "speech"]
    data = [model_body(each) for each in records if is_model_allowed(call.key, each)]
    body: SpeechModelListBody = {"object": "list", "data": data, "models": data}
    return json_response(body)
