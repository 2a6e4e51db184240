"""Where the timekeeper writes each closed month of use, before the store forgets it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from fairgpu.settings import Section


class BucketSettings(Section):
    """An S3-compatible bucket. Credentials are never settings: see `credentials_folder`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")] | None = None
    """The bucket, on S3 or a store that speaks its protocol; nothing is exported into one where none is named."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[^/](.*[^/])?$")] | None = None
    """What the names of all files begin with, a `/` after it."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@\s]+/?$")] | None = None
    """Where the store answers; AWS in `region` where nothing is said. http:// is for a store on the same node."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")] = "us-east-1"
    """Where the bucket is; of a store of your own it may be anything."""
    virtual_hosted: bool = False
    """Whether the bucket is part of the endpoint's host name, and not of the path."""
    ca_file: Path | None = None
    """The CAs that the store's certificate may also be signed by, in PEM, beside the usual ones."""
    credentials_folder: Path | None = None
    """Where a Secret with the files access_key_id and secret_access_key, perhaps session_token, is mounted; read each
    time. Without it: the environment, the role of the service account, the role of the instance, as AWS's SDKs do."""
    timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 60.0
    """How long one request may take; no other job waits for it."""

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.name is None and self.model_fields_set - {"name"}:
            raise ValueError(f"name is missing, and {', '.join(sorted(self.model_fields_set))} is of no use without it")
        return self


class ExportSettings(Section):
    """Where each closed month is written before it is forgotten. Nowhere, where no place is named."""

    folder: Path | None = None
    """A folder, such as a mounted volume, that both replicas see."""
    bucket: BucketSettings = BucketSettings()
    cache_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """How much of what was read for questions about old months a worker keeps in memory, as it is compressed."""

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if self.folder is not None and not self.folder.is_absolute():
            raise ValueError(f"folder begins with no slash: write the whole path, such as /var/lib/{self.folder}")
        if self.folder is not None and self.bucket.name is not None:
            raise ValueError("folder and bucket.name name different places: keep one")
        return self

    @property
    def wanted(self) -> bool:
        """Whether months are to be written."""
        return self.folder is not None or self.bucket.name is not None
