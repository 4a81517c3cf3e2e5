"""The server that stands for S3 in tests answers as moto's does, whose business that is."""

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import pytest
from moto.server import ThreadedMotoServer
from s3_server import BUCKET, run_s3_server

COMPARED = ("ETag", "Content-Length", "Content-Type", "Content-Range", "Accept-Ranges")
TOLD = ("Key", "Size", "ETag", "Prefix", "KeyCount", "IsTruncated", "Code", "Condition", "MaxKeys")
KEYS = ("d/LATEST", "d/a/one", "d/a/two", "d/a+b c/ü", "d/empty", "e/last")


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, str]]:
    """Ours, and moto's."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    with run_s3_server() as server:
        yield server.endpoint, f"http://{host}:{port}"
    moto.stop()


class Client:
    """Sends the same to both servers, and returns what each says that matters."""

    def __init__(self, endpoints: tuple[str, str]) -> None:
        self._clients = [http.client.HTTPConnection(urlsplit(url).netloc) for url in endpoints]

    def ask(
        self, method: str, key: str, body: bytes | None = None, query: str = "", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status, compared headers and XML, which both agree on."""
        target = f"/{BUCKET}/{quote(key)}" if key else f"/{BUCKET}"
        replies = []
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for client in self._clients:
            client.request(method, target + query, body, {"Authorization": "AWS t:t", **named})
            reply = client.getresponse()
            replies.append((reply.status, _digest(method, reply, reply.read())))
        assert replies[0] == replies[1], (method, target, query)
        return replies[0]


def _digest(method: str, reply: http.client.HTTPResponse, content: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {name: reply.headers[name] for name in COMPARED if reply.headers[name]}
    if "xml" in (told.get("Content-Type") or ""):  # both are free in how they write it
        told = {"xml": _flatten(content)} if content else {}
    elif method not in ("GET", "HEAD") or reply.status >= 300:
        told = {name: value for name, value in told.items() if name == "ETag"}
    return told | ({"content": content} if method == "GET" and "xml" not in told else {})


def _flatten(content: bytes) -> list[tuple[str, str]]:
    """Names and texts, sorted by name: each name's texts in order."""
    found = (
        (e.tag.rpartition("}")[2], e.text or "") for e in ElementTree.fromstring(content).iter()
    )
    told = ((name, text) for name, text in found if name in TOLD and text.strip())
    return sorted(told, key=lambda pair: pair[0])


@pytest.fixture(scope="module")
def client(endpoints: tuple[str, str]) -> Client:
    client = Client(endpoints)
    for netloc in endpoints:  # moto's has no bucket yet
        connection = http.client.HTTPConnection(urlsplit(netloc).netloc)
        connection.request("PUT", f"/{BUCKET}", headers={"Authorization": "AWS t:t"})
        connection.getresponse().read()
    for number, key in enumerate(KEYS):
        body = b"" if key == "d/empty" else bytes(range(10 * number, 10 * number + 10))
        client.ask("PUT", key, body, Content_Type="application/octet-stream")
    return client


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("key", ["d/LATEST", "d/a+b c/ü", "d/empty", "d/missing", "d/a"])
def test_objects_are_told_as_by_moto(client: Client, method: str, key: str) -> None:
    status, _ = client.ask(method, key)
    assert status == (404 if key in ("d/missing", "d/a") else 200)


@pytest.mark.parametrize(
    ("span", "status"),
    [
        ("bytes=0-", 206),
        ("bytes=2-5", 206),
        ("bytes=3-99", 206),
        ("bytes=-4", 206),
        ("bytes=10-", 416),
    ],
)
def test_ranges_are_told_as_by_moto(client: Client, span: str, status: int) -> None:
    assert client.ask("GET", "d/a/one", Range=span)[0] == status


def test_conditional_puts_are_told_as_by_moto(client: Client) -> None:
    assert client.ask("PUT", "f/new", b"1", If_None_Match="*")[0] == 200
    assert client.ask("PUT", "f/new", b"2", If_None_Match="*")[0] == 412
    assert client.ask("GET", "f/new")[1]["content"] == b"1"
    assert client.ask("PUT", "f/new", b"3")[0] == 200
    assert client.ask("GET", "f/new")[1]["content"] == b"3"
    for _ in range(2):
        assert client.ask("DELETE", "f/new")[0] == 204
    assert client.ask("GET", "f/new")[0] == 404


@pytest.mark.parametrize("coding", ["", "&encoding-type=url"])
@pytest.mark.parametrize("delimiter", ["", "&delimiter=%2F"])
@pytest.mark.parametrize("prefix", ["", "d/", "d/a", "d/a/", "d/a%2Bb%20c/", "nothing/"])
def test_listings_are_told_as_by_moto(
    client: Client, prefix: str, delimiter: str, coding: str
) -> None:
    query = f"?list-type=2&prefix={prefix}{delimiter}{coding}"
    assert client.ask("GET", "", query=query)[0] == 200
    assert client.ask("GET", "", query=f"{query}&max-keys=1")[0] == 200


def test_a_bucket_that_is_missing_is_told_as_by_moto(endpoints: tuple[str, str]) -> None:
    replies = []
    for endpoint in endpoints:
        connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
        connection.request("GET", "/none/a", headers={"Authorization": "AWS t:t"})
        reply = connection.getresponse()
        replies.append((reply.status, _flatten(reply.read())))
    assert replies[0] == replies[1] == (404, [("Code", "NoSuchBucket")])


def test_pages_of_a_listing_have_every_key_and_folder_once() -> None:
    import boto3

    with run_s3_server() as server:
        names = [f"{folder}/{number}" for folder in ("a", "b", "b-c") for number in range(5)]
        for name in [*names, "b", "c"]:
            server.put(name, b"x")
        store = boto3.client("s3", endpoint_url=server.endpoint)
        for delimiter, expected in (
            ("", [*names, "b", "c"]),
            ("/", ["b", "c", "a/", "b/", "b-c/"]),
        ):
            pages = store.get_paginator("list_objects_v2").paginate(
                Bucket=BUCKET, Delimiter=delimiter, PaginationConfig={"PageSize": 2}
            )
            found = [
                item
                for page in pages
                for item in (
                    *(entry["Key"] for entry in page.get("Contents", ())),
                    *(entry["Prefix"] for entry in page.get("CommonPrefixes", ())),
                )
            ]
            assert sorted(found) == sorted(expected)
