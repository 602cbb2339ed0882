"""/v1/audio, /v1/images and /v1/videos. The models run in the media worker; see :mod:`media`."""
