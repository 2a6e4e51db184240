"""The place that the settings name."""

from __future__ import annotations

from timekeeper.export.destination import Destination, Folder
from timekeeper.export_settings import ExportSettings


def destination(settings: ExportSettings) -> Destination | None:
    """Where months are written; None where no place is named."""
    if settings.folder is not None:
        return Folder(settings.folder)
    if settings.bucket.name is not None:
        from timekeeper.export.bucket import Bucket  # noqa: PLC0415 - 15 MB that a folder can do without

        return Bucket(settings.bucket.name, settings.bucket)
    return None
