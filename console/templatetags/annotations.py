"""Tags that put comments, saved lists and public links on the pages of features, vectors and requests."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.context import RequestContext

from console.annotations.pages import comments_context, saved_context
from console.models import SharedSubject, Subject
from console.sharing import share_context

register = template.Library()


@register.inclusion_tag("console/comments.html", takes_context=True)
def comments(context: RequestContext, subject: Subject) -> dict[str, Any]:
    """Render the comments on an object and the form for a new one."""
    return {**comments_context(context["request"].user, subject), **_token(context)}


@register.inclusion_tag("console/saved.html", takes_context=True)
def saved(context: RequestContext, subject: Subject) -> dict[str, Any]:
    """Render a menu of the lists that an object is in, and the form that saves it."""
    return {**saved_context(context["request"].user, subject), **_token(context)}


@register.inclusion_tag("console/share.html", takes_context=True)
def share_menu(context: RequestContext, subject: SharedSubject) -> dict[str, Any]:
    """Render a menu with the public link of a feature or vector."""
    return {**share_context(context["request"], subject), **_token(context)}


def _token(context: RequestContext) -> dict[str, Any]:
    return {"csrf_token": context.get("csrf_token"), "request": context["request"]}
