"""Where messages go: an http or https address, and which machines it may lead to.

An address comes from a config file, and a writer of that file could have the training machine talk to services
that trust it for where it stands: a cloud's metadata service hands out credentials to anyone who asks from inside. Such
addresses, and all link-local ones, are refused unless the user allows them. Names are judged by the addresses that they
resolve to at the moment of connecting, and the connection is made to the address that was judged.
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
"""The environment variable with the token of an endpoint. It is in no config, no spool and no message."""

METADATA: Final = frozenset(
    ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42")
)
"""Metadata services of clouds that are not at a link-local address."""

EMBEDDING: Final = {
    IPv6Network("::/96"): (96,),  # IPv4-compatible
    IPv6Network("::ffff:0:0/96"): (96,),  # IPv4-mapped
    IPv6Network("::ffff:0:0:0/96"): (96,),  # IPv4-translated
    IPv6Network("64:ff9b::/96"): (96,),  # NAT64
    IPv6Network("64:ff9b:1::/48"): (48, 56, 64, 96),  # NAT64 of a site, whose own prefix may have any of these lengths
    IPv6Network("2002::/16"): (16,),  # 6to4
}
"""IPv6 addresses that lead to an IPv4 address, and after how many bits it may be in them."""


class EndpointError(HooklineError, ValueError):
    """An address that no message may be sent to."""


@dataclass(frozen=True)
class Endpoint:
    """A checked address. Made by `Endpoint.of`."""

    url: str
    host: str
    shown: str
    """The address without its query, which may have a key in it: for messages to people."""
    allow_link_local: bool = False

    @classmethod
    def of(cls, url: str, *, allow_link_local: bool = False) -> Endpoint:
        """Check an address and the token for it, as far as that goes without asking for the addresses of a name."""
        # Not at the head of the module: a plugin that is only listed shall be quick to import.
        from hookline.http.requests import read_token, shown_url, url_problem

        problem = url_problem(url, TOKEN_VARIABLE)
        if problem is not None:
            raise EndpointError(f"the status endpoint {problem}")
        read_token(TOKEN_VARIABLE)  # one that cannot be sent is an error now, not in a thread later
        host = urlsplit(url).hostname or ""
        endpoint = cls(url, host, shown_url(url), allow_link_local)
        try:
            ip_address(host)
        except ValueError:
            return endpoint  # a name: judged when it is resolved
        endpoint.check(host)
        return endpoint

    def check(self, address: str) -> None:
        """Raise an error when a numeric address must not be connected to."""
        reason = None if self.allow_link_local else reason_to_refuse(address)
        if reason is not None:
            also = "" if address == self.host else f" ({self.host})"
            raise EndpointError(
                f"the status endpoint {self.shown!r} leads to {address}{also}, {reason}: "
                "nothing is sent there unless allow_link_local is true"
            )


def reason_to_refuse(address: str) -> str | None:
    """What is wrong with connecting to this numeric address; None for nothing."""
    for form in _forms(ip_address(address)):
        if form.is_link_local:
            return "a link-local address"
        if form in METADATA:
            return "the address of a cloud's metadata service"
    return None


def _forms(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The address, and the IPv4 addresses that an IPv6 one stands for."""
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
    """The IPv4 address that follows the first `place` bits. Bits 64 to 71 are left out where NAT64 has them unused."""
    octets = address.packed
    if 32 < place <= 64:
        octets = octets[:8] + octets[9:]
    start = place // 8
    return IPv4Address(octets[start : start + 4])
