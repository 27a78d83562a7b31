"""Where messages go: an http or https address, and which machines it may lead to.

An address comes from a config file, and whoever can write that file could have the training machine talk to services
that trust it for where it stands: a cloud's metadata service hands out credentials to anyone who asks from inside. Such
addresses, and all link-local ones, are refused unless the user allows them. Names are judged by the addresses that they
resolve to at the moment of connecting, and the connection is made to the address that was judged.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

__all__ = ["Endpoint", "EndpointError", "reason_to_refuse"]

METADATA: Final = frozenset(
    ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42")
)
"""Metadata services of clouds that are not at a link-local address."""

NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
"""IPv6 addresses whose last 32 bits are an IPv4 address; the second form is an old one."""

_NOT_IN_AN_ADDRESS = re.compile(r"[^\x21-\x7e]")


class EndpointError(ValueError):
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
        """Check an address, as far as that goes without asking for the addresses of a name."""
        if not isinstance(url, str) or not url:
            raise EndpointError(f"the status endpoint must be an address such as http://host/status, got {url!r}")
        if _NOT_IN_AN_ADDRESS.search(url):
            raise EndpointError(
                "the status endpoint has a space, a control character or a letter that an address must have encoded"
            )
        parts = urlsplit(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme not in ("http", "https"):
            raise EndpointError(f"the status endpoint must begin with http:// or https://, got {shown!r}")
        if "@" in parts.netloc:
            raise EndpointError(
                f"the status endpoint {shown!r} has a user or password in it: "
                "put a token into the environment variable HOOKLINE_STATUS_TOKEN instead"
            )
        try:
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise EndpointError(f"the status endpoint {shown!r} is no valid address: {error}") from error
        if not host:
            raise EndpointError(f"the status endpoint {shown!r} names no host")
        endpoint = cls(url, host, shown, allow_link_local)
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

    def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of them checked: one that is refused spoils the name."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        for address in addresses:
            self.check(address)
        return addresses


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
    if plain.ipv4_mapped is not None:
        yield plain.ipv4_mapped
    if plain.sixtofour is not None:
        yield plain.sixtofour
    if plain.teredo is not None:
        yield from plain.teredo
    if any(plain in network for network in NAT64):
        yield IPv4Address(int(plain) & 0xFFFFFFFF)
