"""Stores files of exported months in an S3-compatible bucket, through the library obstore.

Requests are signed, retried, and bounded in time. A write is conditional: it fails if the file was changed meanwhile.

Credentials come from a folder at which a Secret is mounted. Without such a folder, they come from the sources of the
AWS SDKs: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, the role of a service account
(AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN), or the role of the container or of the instance.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from timekeeper.export.destination import ChangedError, DeposedError, ExportError, MayWrite, Stored
from timekeeper.settings import BucketSettings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

CONNECT_SECONDS = 5
RETRIES = 3
CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")
"""The names of the files in the folder of credentials; the session token may be missing."""

Found = TypeVar("Found")


class Bucket:
    """A bucket of S3 or a compatible store, in which exported months are files.

    Only files with the configured prefix belong to it. Credentials and CAs are read again for each request. Every
    method may raise ExportError.
    """

    def __init__(self, name: str, settings: BucketSettings) -> None:
        self._name = name
        self._settings = settings
        self._place = f"bucket {name}"

    def names(self) -> list[str]:
        """Returns the names of all files directly under the prefix, sorted and without the prefix."""

        def run(store: S3Store) -> list[str]:
            return sorted(item["path"] for item in obstore.list_with_delimiter(store)["objects"])

        return self._do(run)

    def tag(self, name: str) -> str | None:
        """Returns the ETag of the bucket's file with this name; None if there is no such file."""
        return self._if_there(lambda store: obstore.head(store, name)["e_tag"] or "")

    def read(self, name: str) -> Stored | None:
        """Returns the bucket's file with this name, and its ETag; None if there is no such file."""

        def run(store: S3Store) -> Stored:
            answer = obstore.get(store, name)
            return Stored(bytes(answer.bytes()), answer.meta["e_tag"] or "")

        return self._if_there(run)

    def write(self, name: str, body: bytes, replacing: str | None, may_write: MayWrite) -> str:
        """Writes a file into the bucket and returns its new ETag.

        Args:
            replacing: the ETag of the file to replace (If-Match); None if there must be no file of this name
                (If-None-Match).
            may_write: returns whether this process still leads; called before the write.

        Raises:
            ChangedError: the present file has another ETag than `replacing`; it stays as it is.
            DeposedError: `may_write` returned False.
        """
        if not may_write():
            raise DeposedError(f"{self._place}: {name} is left to the leader")

        def run(store: S3Store) -> str:
            put = obstore.put(
                store,
                name,
                body,
                mode="create" if replacing is None else {"e_tag": replacing},
                attributes={"Content-Type": "application/gzip"},
                use_multipart=False,
            )
            return put["e_tag"] or ""

        return self._do(run)

    def _if_there(self, run: Callable[[S3Store], Found]) -> Found | None:
        try:
            return self._do(run)
        except FileNotFoundError:
            # A missing bucket is an error, a missing file is not. AWS distinguishes them only in answers with a body.
            self.names()
            return None

    def _do(self, run: Callable[[S3Store], Found]) -> Found:
        try:
            return run(self._open())
        except (AlreadyExistsError, PreconditionError) as error:
            raise ChangedError(f"{self._place}: the file is not what it was") from error
        except FileNotFoundError as error:
            if "<Code>NoSuchBucket<" in str(error):
                raise ExportError(f"{self._place}: NoSuchBucket") from None
            raise
        except (BaseError, ValueError) as error:
            # These errors' texts may quote the request, with its credentials.
            raise ExportError(f"{self._place}: {_reason(error)}") from None

    def _open(self) -> S3Store:
        settings = self._settings
        seconds = timedelta(seconds=settings.timeout_seconds)
        options: ClientConfig = {"timeout": seconds, "connect_timeout": timedelta(seconds=CONNECT_SECONDS)}
        if settings.ca_file is not None:
            options["root_certificate"] = _read(settings.ca_file)
        config: S3Config = {"region": settings.region}
        if settings.endpoint is not None:
            config["endpoint"] = settings.endpoint
            options["allow_http"] = settings.endpoint.startswith("http://")
        if settings.virtual_hosted:
            config["virtual_hosted_style_request"] = True
        if settings.credentials_folder is not None:
            config["access_key_id"] = _read(settings.credentials_folder / CREDENTIALS[0])
            config["secret_access_key"] = _read(settings.credentials_folder / CREDENTIALS[1])
            token = settings.credentials_folder / CREDENTIALS[2]
            if token.exists():
                config["session_token"] = _read(token)
        return S3Store(
            self._name,
            prefix=settings.prefix or None,
            config=config,
            client_options=options,
            retry_config={"max_retries": RETRIES, "retry_timeout": 2 * seconds},
        )


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{file} cannot be read: {type(error).__name__}") from error


def _reason(error: Exception) -> str:
    """Returns the part of an error that has no credentials, for a message.

    It is the bucket's error code, the HTTP status, the step of the connection that failed, or else the error's type.
    """
    text = str(error)
    for pattern in (r"<Code>([A-Za-z]{1,60})</Code>", r"status code: ([0-9]{3} [A-Za-z ]{1,40})", r"kind: ([A-Za-z]+)"):
        match = re.search(pattern, text)
        if match is not None:
            return match[1].strip()
    return type(error).__name__
