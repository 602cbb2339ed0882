"""The site's routes, and one that names the threads of the process."""

from __future__ import annotations

import os
import threading

from django.http import HttpRequest, JsonResponse
from django.urls import path

from millm_site import urls


def threads(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"pid": os.getpid(), "names": [thread.name for thread in threading.enumerate()]})


urlpatterns = [*urls.urlpatterns, path("threads", threads)]
