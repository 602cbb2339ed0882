"""Transcriptions as the formats of /v1/audio/transcriptions: json, text, srt, vtt, verbose_json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from media.messages import Segment, TokenLogprob


def whole_text(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def as_srt(segments: Sequence[Segment]) -> str:
    """Return SubRip: numbered cues with a comma before the milliseconds."""
    cues = [
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_cue_text(segment)}\n"
        for number, segment in enumerate(segments, 1)
    ]
    return "\n".join(cues)


def as_vtt(segments: Sequence[Segment]) -> str:
    """Return WebVTT."""
    cues = [f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_cue_text(each)}\n" for each in segments]
    return "\n".join(["WEBVTT\n", *cues])


def verbose_body(
    segments: Sequence[Segment], *, language: str, seconds: float, task: str, granularities: Sequence[str]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "task": task,
        "language": language,
        "duration": round(seconds, 2),
        "text": whole_text(segments),
        "usage": {"type": "duration", "seconds": round(seconds, 2)},
    }
    if not granularities or "segment" in granularities:
        body["segments"] = [segment_body(segment) for segment in segments]
    if "word" in granularities:
        body["words"] = [
            {"word": word.word, "start": word.start, "end": word.end} for segment in segments for word in segment.words
        ]
    return body


def segment_body(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def logprob_body(found: TokenLogprob) -> dict[str, Any]:
    return {"token": found.token, "logprob": found.logprob, "bytes": list(found.bytes)}


def _cue_text(segment: Segment) -> str:
    """Return the text without what would end the cue or start another."""
    return segment.text.strip().replace("-->", "->").replace("\n\n", "\n")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1_000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    whole, rest = divmod(rest, 1_000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{point}{rest:03d}"
