"""Headers that every answer has, whatever it is, and whom a site may be called by.

The policy lets a page load what this site serves and nothing else: no script or style inside of it,
no frame around it, no form that goes elsewhere. What slipped through the escaping of a template
would still not run. Referrers stay within the site; with none at all, browsers would not say either
where a form comes from.
"""

import ipaddress
import re
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "OWN_SITE",
    "SECURITY",
    "STRICT_TRANSPORT",
    "host_of",
    "is_from_elsewhere",
    "is_loopback",
    "secure",
    "was_passed_on",
]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

STRICT_TRANSPORT = "Strict-Transport-Security", f"max-age={365 * 24 * 3600}"
"""Has browsers come by TLS only, for a year."""

PASSED_ON = re.compile(
    r"forwarded|via|x-forwarded(-.*)?|x-real-.*|x-original-.*|x-envoy-.*|cf-.*|cdn-loop"
    r"|(x-(cluster-)?|true-|fly-)client-ip"
)
"""Headers of proxies: behind one, everybody seems to sit at its machine."""

OWN_SITE = ("", "same-origin", "none")
"""Where browsers say that a request comes from if no other site had to do with it."""

LOOPBACK_NAMES = frozenset({"localhost", "localhost."})


def secure(headers: MutableHeaders) -> None:
    """Add what is missing; what must not be kept is not kept."""
    for name, value in SECURITY.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")


def host_of(headers: Headers) -> str | None:
    """The name that a request calls this site by, without a port; None if there is none, or two."""
    found = headers.getlist("host")
    if len(found) != 1:
        return None
    host = found[0].strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        return name
    return host.partition(":")[0] or None


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only be this machine."""
    if host in LOOPBACK_NAMES or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def was_passed_on(headers: Headers, http_version: str) -> bool:
    """Whether a proxy seems to stand between: one that says so, or one that speaks the HTTP of
    1996, as some do unless they are told otherwise, and browsers do not.
    """
    return http_version in ("0.9", "1.0") or any(map(PASSED_ON.fullmatch, headers))


def is_from_elsewhere(headers: Headers) -> bool:
    """Whether a page of another site has a browser ask for this, be it another port of this host:
    other than by a link that somebody follows, which only shows what it leads to.
    """
    if headers.get("sec-fetch-site", "") in OWN_SITE:
        return False
    mode, whereto = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest", "document")
    return (mode, whereto) != ("navigate", "document")
