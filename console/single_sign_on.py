"""Sign in to the console with an OpenID Connect provider, whose groups give the roles.

The authorization code flow with PKCE, by Authlib. A person is known by the provider's ``sub``, never by a name or an
address, so nobody takes over an account by choosing its name. Roles are set at each sign-in from MILLM_OIDC_ROLES: a
person who has lost all groups is refused, and loses the roles here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from audit.origin import acting, current_origin
from console.models import SingleSignOnIdentity
from core.errors import MillmError

logger = logging.getLogger(__name__)
NEXT = "single_sign_on_next"  # in the session
TIMEOUT_S = 10.0
MAX_NAME = 150  # of Django's usernames
MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignInRefusedError(MillmError):
    """The provider knows the person, but the person may not use the console."""

    status = 403


def is_offered() -> bool:
    """Return whether the login page offers single sign-on."""
    return bool(settings.MILLM_OIDC_ISSUER)


@cache
def _client(issuer: str, client_id: str, client_secret: str, scope: str) -> Any:
    """Return Authlib's client. It reads the provider's metadata when it is first used."""
    from authlib.integrations.django_client import OAuth

    return OAuth().register(
        "oidc",
        server_metadata_url=f"{issuer}/.well-known/openid-configuration",
        client_id=client_id,
        client_secret=client_secret,
        client_kwargs={"scope": scope, "code_challenge_method": "S256", "timeout": TIMEOUT_S},
    )


def _provider() -> Any:
    secret = settings.MILLM_OIDC_CLIENT_SECRET
    return _client(settings.MILLM_OIDC_ISSUER, settings.MILLM_OIDC_CLIENT_ID, secret, settings.MILLM_OIDC_SCOPE)


@never_cache
@require_GET
def begin(request: HttpRequest) -> HttpResponse:
    """Send the browser to the provider."""
    if not is_offered():
        return redirect("admin:login")
    next_url = request.GET.get("next", "")
    request.session[NEXT] = next_url if _is_own(request, next_url) else ""
    callback = reverse("single-sign-on-callback")
    address = (
        settings.MILLM_PUBLIC_URL + callback if settings.MILLM_PUBLIC_URL else request.build_absolute_uri(callback)
    )
    try:
        response: HttpResponse = _provider().authorize_redirect(request, address)
    except Exception as error:  # noqa: BLE001 - whatever the network, the provider or the library raises
        return _failed(request, error)
    return response


@never_cache
@require_GET
def finish(request: HttpRequest) -> HttpResponse:
    """Sign in the person that the provider has sent back."""
    if not is_offered():
        return redirect("admin:login")
    next_url = request.session.get(NEXT, "")
    try:
        claims = _claims(request)
        user = signed_in(claims)
    except SignInRefusedError as error:
        logger.warning("Refused a single sign-on: %s", error.message)
        messages.error(request, error.message)
        return redirect("admin:login")
    except Exception as error:  # noqa: BLE001 - whatever the network, the provider or the library raises
        return _failed(request, error)
    login(request, user, backend=MODEL_BACKEND)
    return HttpResponseRedirect(next_url or reverse("admin:index"))


def _claims(request: HttpRequest) -> Mapping[str, Any]:
    """Return the verified claims of the id token, with those of the userinfo endpoint if the groups are only there."""
    provider, issuer = _provider(), settings.MILLM_OIDC_ISSUER
    metadata = provider.load_server_metadata()
    if str(metadata.get("issuer", "")).rstrip("/") != issuer:
        raise ValueError(f"the provider calls itself {metadata.get('issuer')!r}, not {issuer!r}")
    token = provider.authorize_access_token(
        request,
        claims_options={
            "iss": {"essential": True, "value": metadata["issuer"]},
            "aud": {"essential": True, "value": settings.MILLM_OIDC_CLIENT_ID},
            "sub": {"essential": True},
        },
    )
    claims = token.get("userinfo")
    if not claims or not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise ValueError("the provider sent no id token")
    if settings.MILLM_OIDC_GROUPS_CLAIM not in claims and metadata.get("userinfo_endpoint"):
        more = provider.userinfo(token=token)
        if more.get("sub") != claims["sub"]:
            raise ValueError("the userinfo is of another person")
        return {**more, **claims}
    found: Mapping[str, Any] = claims
    return found


def signed_in(claims: Mapping[str, Any]) -> User:
    """Return the user of verified claims, created if necessary, with the roles of its groups now.

    Raise SignInRefusedError if the account is inactive or none of its groups gives a role.
    """
    issuer, subject = settings.MILLM_OIDC_ISSUER, claims["sub"]
    roles = _roles(claims.get(settings.MILLM_OIDC_GROUPS_CLAIM))
    with transaction.atomic():
        known = SingleSignOnIdentity.objects.select_for_update().filter(issuer=issuer, subject=subject)
        identity = known.select_related("user").first()
        if identity is None and not roles:
            raise _without_role()
        name = _free_name(claims, issuer) if identity is None else identity.user.get_username()
        with acting(replace(current_origin(), username=lambda: name)):
            if identity is None:
                user = User(username=name)
                user.set_unusable_password()
                user.save()
                SingleSignOnIdentity.objects.create(user=user, issuer=issuer, subject=subject)
            else:
                user = identity.user
            _update(user, claims, roles)
    if not user.is_active:
        raise SignInRefusedError("This account is inactive. Ask an administrator of this server.")
    if not roles and not user.is_superuser:
        raise _without_role()
    return user


def _roles(groups: object) -> frozenset[str]:
    """Return the roles of the provider's groups, by MILLM_OIDC_ROLES."""
    names = [groups] if isinstance(groups, str) else groups
    own = {name for name in names if isinstance(name, str)} if isinstance(names, Iterable) else set()
    return frozenset(role for group, role in settings.MILLM_OIDC_ROLES if group in own)


def _update(user: User, claims: Mapping[str, Any], roles: frozenset[str]) -> None:
    """Write the person's name, address and roles. Groups that no setting names stay as they are."""
    user.email = _text(claims, "email", 254)
    user.first_name, user.last_name = _text(claims, "given_name", 150), _text(claims, "family_name", 150)
    user.is_staff = bool(roles) or user.is_superuser
    user.save()
    managed = {role for _, role in settings.MILLM_OIDC_ROLES}
    groups = {group.name: group for group in Group.objects.filter(name__in=managed)}
    if missing := roles - groups.keys():
        raise SignInRefusedError(f"This server has no group named {', '.join(sorted(missing))} (MILLM_OIDC_ROLES).")
    user.groups.remove(*(group for name, group in groups.items() if name not in roles))
    user.groups.add(*(groups[name] for name in roles))


def _free_name(claims: Mapping[str, Any], issuer: str) -> str:
    """Return a username for a new person. One that exists belongs to somebody else, so the provider's host is added."""
    name = _text(claims, "preferred_username", MAX_NAME) or _text(claims, "email", MAX_NAME) or claims["sub"]
    name = "".join(letter if letter.isalnum() or letter in "@.+-_" else "-" for letter in name)[:MAX_NAME]
    host = urlsplit(issuer).hostname or "provider"
    for candidate in (name, *(f"{name[:80]}@{host[:60]}{number}" for number in ("", *map(str, range(2, 100))))):
        if not User.objects.filter(username__iexact=candidate).exists():
            return candidate
    raise SignInRefusedError("No username is free for this account. Ask an administrator of this server.")


def _text(claims: Mapping[str, Any], name: str, limit: int) -> str:
    value = claims.get(name)
    return "".join(letter for letter in value if letter.isprintable())[:limit] if isinstance(value, str) else ""


def _without_role() -> SignInRefusedError:
    return SignInRefusedError("None of your groups gives a role on this server. Ask its administrator for access.")


def _is_own(request: HttpRequest, url: str) -> bool:
    return url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return to the login page. The reason is for the operator: it may name addresses of the network."""
    logger.error("Single sign-on failed: %s: %s", type(error).__name__, error)
    messages.error(request, "Single sign-on failed. Try again, or ask the administrator to look at the server's log.")
    return redirect("admin:login")
