"""An S3 server on loopback, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "s3://millm"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with the bucket BUCKET. Provide the variables with which clients find it."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url, key, secret, region = f"http://{host}:{port}", "key", "secret", "us-east-1"
        boto3.client(
            "s3", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret, region_name=region
        ).create_bucket(Bucket=BUCKET.removeprefix("s3://"))
        yield {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": region,
            "AWS_ENDPOINT_URL": url,
        }
    finally:
        server.stop()
