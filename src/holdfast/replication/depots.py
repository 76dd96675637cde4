"""Depots: snapshots that all masters of a cluster share, in a bucket of an S3-compatible store or a shared directory.

A depot outlives the disks of the masters. It holds whole files under names, and promises only that a file that was put
is there afterwards; the reader verifies every file it gets.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qs, urlsplit

from holdfast.entropy import fresh_id
from holdfast.errors import BadValue, TryAgain

CONNECT_SECONDS = 5
READ_SECONDS = 60
ATTEMPTS = 3
LISTED = 1_000


class DepotFailed(TryAgain):
    """The shared place for snapshots does not answer, or refuses; the log is not trimmed meanwhile."""

    code = "depot_failed"


class Depot(Protocol):
    def names(self) -> list[str]: ...

    def put(self, name: str, content: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...

    def remove(self, name: str) -> None:
        """Removing a file that is not there is no error."""
        ...


def open_depot(url: str, cluster: str) -> Depot:
    """`s3://bucket/prefix?endpoint=http://host:9000&region=...`, or `file:///a/directory` that all masters mount."""
    parts, options = parse_place(url)
    if parts.scheme == "s3":
        prefix = "/".join(filter(None, [parts.path.strip("/"), cluster])) + "/"
        return S3Depot(parts.netloc, prefix, options.get("endpoint"), options.get("region"))
    return DirectoryDepot(Path(parts.path) / cluster)


def parse_place(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The URL and its options; BadValue if this is no place for snapshots. Nothing is opened."""
    try:
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    except ValueError as error:
        raise BadValue(f"{url!r} says no place for snapshots ({error})") from None
    if parts.scheme == "s3" and parts.netloc:
        unknown = sorted(options.keys() - {"endpoint", "region"})
        if unknown:
            raise BadValue(f"{url!r}: a place for snapshots has no option {unknown[0]!r}; there are endpoint, region")
        return parts, options
    if parts.scheme == "file" and not parts.netloc and parts.path and not options:
        return parts, options
    raise BadValue(f"{url!r} says no place for snapshots: write s3://bucket/prefix?endpoint=... or file:///directory")


class DirectoryDepot:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        try:
            return [path.name for path in self._directory.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from None

    def put(self, name: str, content: bytes) -> None:
        # Two masters may put the same snapshot at once: each writes a draft of its own.
        draft = self._directory / f".{name}.{fresh_id():016x}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._directory / name)
        except OSError as error:
            with contextlib.suppress(OSError):  # It may not even exist.
                draft.unlink()
            raise self._failed(error) from None

    def get(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except OSError as error:
            raise self._failed(error) from None

    def remove(self, name: str) -> None:
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> DepotFailed:
        return DepotFailed(f"the shared directory {self._directory} cannot be used: {error.strerror or error}")


class S3Depot:
    """Credentials and region come from where boto3 looks for them: the environment, its files, the machine's role."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None, region: str | None) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise BadValue("snapshots in S3 need boto3: pip install 'holdfast[s3]'") from None
        self._bucket = bucket
        self._prefix = prefix
        self._errors = (BotoCoreError, ClientError)
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
            # Snapshots carry checksums of their own, and not every compatible store knows the newer ones of S3.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        try:
            self._client: Any = boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)
        except (*self._errors, ValueError) as error:
            raise BadValue(f"S3 cannot be used for snapshots: {error}") from None

    def names(self) -> list[str]:
        try:
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=LISTED)
        except self._errors as error:
            raise self._failed(error) from None
        found = [str(one["Key"]).removeprefix(self._prefix) for one in answer.get("Contents", [])]
        return [name for name in found if "/" not in name]

    def put(self, name: str, content: bytes) -> None:
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)
            size = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"]
        except self._errors as error:
            raise self._failed(error) from None
        if size != len(content):
            raise DepotFailed(f"{self._bucket}/{self._prefix}{name} has {size:,} bytes where {len(content):,} were put")

    def get(self, name: str) -> bytes:
        try:
            return bytes(self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read())
        except self._errors as error:
            raise self._failed(error) from None

    def remove(self, name: str) -> None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        except self._errors as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> DepotFailed:
        return DepotFailed(f"s3://{self._bucket}/{self._prefix} cannot be used: {error}")
