"""The endpoint's URL, and which IP addresses it may lead to (protection against SSRF).

The URL comes from a config file. It could point the training machine at services that trust every local caller, such as
a cloud's metadata service, which hands out credentials. Such addresses, and all link-local ones, are refused unless the
user allows them. A host name is resolved for each connection, all its addresses are checked, and the connection goes to
a checked address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from hookline_hookspecs import HooklineError

__all__ = ["TOKEN_VARIABLE", "Endpoint", "EndpointError", "reason_to_refuse"]

TOKEN_VARIABLE: Final = "HOOKLINE_STATUS_TOKEN"
"""The environment variable with the endpoint's bearer token. It is never in a config, a spool or a message."""

METADATA: Final = frozenset(
    ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42")
)
"""Cloud metadata services that do not have a link-local address."""

EMBEDDING: Final = {
    IPv6Network("::/96"): (96,),  # IPv4-compatible
    IPv6Network("::ffff:0:0/96"): (96,),  # IPv4-mapped
    IPv6Network("::ffff:0:0:0/96"): (96,),  # IPv4-translated
    IPv6Network("64:ff9b::/96"): (96,),  # NAT64
    IPv6Network("64:ff9b:1::/48"): (48, 56, 64, 96),  # local-use NAT64, with prefixes of any of these lengths
    IPv6Network("2002::/16"): (16,),  # 6to4
}
"""IPv6 networks whose addresses embed an IPv4 address, and the bit offsets at which it may be."""


class EndpointError(HooklineError, ValueError):
    """The endpoint's URL is invalid, or leads to a refused address."""


@dataclass(frozen=True)
class Endpoint:
    """A checked URL. Create it with `Endpoint.of`."""

    url: str
    host: str
    shown: str
    """The URL without its query, which may contain a key. For log messages."""
    allow_link_local: bool = False

    @classmethod
    def of(cls, url: str, *, allow_link_local: bool = False) -> Endpoint:
        """Check a URL and its token, without resolving a host name."""
        # Imported here so that listing plugins stays quick.
        from hookline.http.requests import read_token, shown_url, url_problem

        problem = url_problem(url, TOKEN_VARIABLE)
        if problem is not None:
            raise EndpointError(f"the status endpoint {problem}")
        read_token(TOKEN_VARIABLE)  # so that an invalid token is an error now, not later on a thread
        host = urlsplit(url).hostname or ""
        endpoint = cls(url, host, shown_url(url), allow_link_local)
        try:
            ip_address(host)
        except ValueError:
            return endpoint  # a host name, checked when it is resolved
        endpoint.check(host)
        return endpoint

    def check(self, address: str) -> None:
        """Raise an error if this IP address is refused."""
        reason = None if self.allow_link_local else reason_to_refuse(address)
        if reason is not None:
            also = "" if address == self.host else f" ({self.host})"
            raise EndpointError(
                f"the status endpoint {self.shown!r} leads to {address}{also}, {reason}: "
                "set allow_link_local = true to send there"
            )


def reason_to_refuse(address: str) -> str | None:
    """Why this IP address is refused. None if it is allowed."""
    for form in _forms(ip_address(address)):
        if form.is_link_local:
            return "a link-local address"
        if form in METADATA:
            return "the address of a cloud's metadata service"
    return None


def _forms(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The address, and the IPv4 addresses that are embedded in it."""
    if isinstance(address, IPv4Address):
        yield address
        return
    plain = IPv6Address(int(address))  # without a zone such as %eth0
    yield plain
    if plain.teredo is not None:
        yield from plain.teredo
    for network, places in EMBEDDING.items():
        if plain in network:
            yield from (_embedded(plain, place) for place in places)


def _embedded(address: IPv6Address, place: int) -> IPv4Address:
    """The IPv4 address after the first `place` bits. NAT64 leaves bits 64 to 71 unused, so they are skipped."""
    octets = address.packed
    if 32 < place <= 64:
        octets = octets[:8] + octets[9:]
    start = place // 8
    return IPv4Address(octets[start : start + 4])
