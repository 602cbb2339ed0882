"""Prometheus metrics of the media worker. Real-time factor: audio seconds per busy second."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from inference.metrics import REGISTRY

OPEN = Gauge("millm_media_requests_open", "Requests to the media worker that run or wait.", registry=REGISTRY)
STEPS = Counter("millm_media_steps", "Steps of diffusion for images and videos.", ("model",), registry=REGISTRY)
BUSY = Counter("millm_media_busy_seconds", "Time that the media worker computed.", ("model",), registry=REGISTRY)
AUDIO = Counter("millm_media_audio_seconds", "Seconds of audio transcribed or spoken.", ("model",), registry=REGISTRY)
DEATHS = Counter("millm_media_worker_deaths", "Unexpected ends of the media worker.", registry=REGISTRY)
