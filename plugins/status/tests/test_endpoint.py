"""Where messages may go, and what goes with them."""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.http.requests import TokenError
from hookline.plugin_manager.construction import Blueprint
from hookline.plugin_manager.settings import Settings
from hookline_status import Options, Status
from hookline_status.endpoint import Endpoint, EndpointError, reason_to_refuse

TOKEN = "a-token-that-stays-secret"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "must be an http or https URL with a host, got ''"),
        ("ftp://host/status", "must be an http or https URL with a host, got 'ftp://host/status'"),
        ("file:///etc/passwd", "must be an http or https URL with a host"),
        ("localhost:8080/status", "must be an http or https URL with a host"),
        ("http:///status", "must be an http or https URL with a host"),
        ("http://host:port/status", "is not a URL: Port could not be cast"),
        (
            "http://user:hunter2@host/status",
            "the status endpoint has a user name or password in it: put a token into the",
        ),
        ("http://host/sta\r\ntus", "has a space, a control character or a non-ASCII letter"),
        ("http://host/größe", "has a space, a control character or a non-ASCII letter"),
        (
            "http://169.254.169.254/latest",
            "leads to 169.254.169.254, a link-local address: set allow_link_local = true",
        ),
        ("http://[fe80::1]/status", "leads to fe80::1, a link-local address"),
        ("http://[::ffff:169.254.169.254]/status", "a link-local address"),
    ],
)
def test_what_is_no_good_address_is_an_error(url: str, problem: str) -> None:
    with pytest.raises(EndpointError) as error:
        Endpoint.of(url)
    assert problem in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.0.1",
        "169.254.169.254",
        "fe80::1",
        "fe80::1%lo",
        "febf::1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "::169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "::ffff:100.100.100.200",
        "::ffff:0:169.254.169.254",
        "2001:0:a9fe:a9fe::1",
        "2001:0:102:304:0:0:5601:5601",  # Teredo has the client's address inverted
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",  # after a prefix of 48 bits
        "64:ff9b:1:aaa9:fe:a9fe::",  # 56 bits
        "64:ff9b:1:aabb:a9:fea9:fe00:0",  # 64 bits
        "64:ff9b:1:ffff::100.100.100.200",
    ],
)
def test_link_local_and_metadata_addresses_are_refused_in_every_disguise(address: str) -> None:
    assert reason_to_refuse(address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "10.1.2.3",
        "192.168.0.9",
        "fd12::5",
        "8.8.8.8",
        "2600::1",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ],
)
def test_other_addresses_are_not(address: str) -> None:
    assert reason_to_refuse(address) is None


def test_what_is_refused_can_be_allowed() -> None:
    assert Endpoint.of("http://169.254.169.254/", allow_link_local=True).host == "169.254.169.254"


def name_service(monkeypatch: pytest.MonkeyPatch, name: str, *answers: list[str]) -> list[str]:
    """Have a name resolve to other addresses each time that it is asked for; returns the questions."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != name:
            return resolve(host, port, *args, **kwargs)
        asked.append(host)
        return [entry for address in answers[min(len(asked), len(answers)) - 1] for entry in
                resolve(address, port, *args, **kwargs)]  # fmt: skip

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


def test_a_name_is_judged_by_its_address(
    deliver: Callable[..., Any], report: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    name_service(monkeypatch, "metadata.google.internal", ["169.254.169.254"])
    delivery = deliver("http://metadata.google.internal/status")
    delivery.put(report(1))
    until(lambda: "cannot be sent to" in caplog.text)
    assert "leads to 169.254.169.254 (metadata.google.internal), a link-local address" in caplog.text


def test_one_bad_address_spoils_a_name(
    server: Any, deliver: Callable[..., Any], report: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    name_service(monkeypatch, "monitor", ["127.0.0.1", "fe80::1"], ["127.0.0.1"])
    deliver(f"http://monitor:{server.server_port}/status").put(report(1))
    until(lambda: server.accepted)
    assert "leads to fe80::1 (monitor), a link-local address" in caplog.text


def test_the_connection_goes_to_the_address_that_was_judged(
    server: Any, deliver: Callable[..., Any], report: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = name_service(monkeypatch, "monitor", ["127.0.0.1"], ["169.254.169.254"])
    delivery = deliver(f"http://monitor:{server.server_port}/status")
    for number in range(3):
        delivery.put(report(number))
    until(lambda: len(server.accepted) == 3)
    assert asked == ["monitor"], "asked once; a second answer might be another"
    assert server.accepted[0].headers["host"] == f"monitor:{server.server_port}"


def test_no_proxy_of_the_environment_is_used(
    server: Any, deliver: Callable[..., Any], report: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    deliver(server.url).put(report(1))
    until(lambda: server.accepted)


def test_the_token_goes_to_the_endpoint_and_nowhere_else(
    server: Any, deliver: Callable[..., Any], report: Any, until: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOOKLINE_STATUS_TOKEN", TOKEN + "\n")
    server.behaviours = [lambda handler: handler.send_error(401)] * 2
    url = f"{server.url}?key=in-the-query"
    with caplog.at_level(logging.DEBUG):
        delivery = deliver(url)
        delivery.put(report(1)._replace(data={"message": f"got {TOKEN} from the environment"}))
        until(lambda: delivery._writer.waiting)
        with sqlite3.connect(tmp_path / "status-spool.sqlite") as database:
            dump = "\n".join(database.iterdump())
        database.close()
        until(lambda: server.accepted)
    assert server.accepted[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert server.accepted[0].body["metrics"] == {"message": "got ******** from the environment"}
    assert TOKEN not in dump
    assert TOKEN not in caplog.text
    assert server.accepted[0].path == "/status?key=in-the-query"
    assert "in-the-query" not in caplog.text, "a key may be in an address, too"


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "nul\x00", "tab\there", "ünicode"])
def test_a_token_that_no_header_may_have_is_an_error_that_does_not_show_it(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "\x00" in token:
        monkeypatch.setattr("os.environ", {"HOOKLINE_STATUS_TOKEN": token})  # no real environment can hold it
    else:
        monkeypatch.setenv("HOOKLINE_STATUS_TOKEN", token)
    with pytest.raises(
        TokenError, match="HOOKLINE_STATUS_TOKEN has a space, a control character or a non-ASCII letter"
    ) as error:
        Endpoint.of("http://localhost/status")
    assert token not in str(error.value)
    with pytest.raises(TokenError):
        Options(endpoint="http://localhost/status")


def test_a_bad_endpoint_in_config_is_reported_with_its_place() -> None:
    blueprint = Blueprint.of("status", Status)
    [fault] = blueprint.read_options(Settings(options={"status": {"endpoint": "gopher://host"}}))
    assert "the status endpoint must be an http or https URL with a host, got 'gopher://host'" in str(fault)
