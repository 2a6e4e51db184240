"""Writes the manifests of deploy/ that the webhook renders: `python -m tests.support.base_manifests`."""

from __future__ import annotations

from pathlib import Path

from webhook.rendering import FIXED, MANIFESTS, as_patches, render
from webhook.settings import Webhook, read_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
ACCOUNT = DEPLOY / "overlays" / "account"

if __name__ == "__main__":
    for name, text in render(Webhook()).items():
        (DEPLOY / "base" / {**MANIFESTS, **FIXED}[name]).write_text(text)
    (ACCOUNT / "rendered.yaml").write_text(as_patches(read_settings({}, ACCOUNT / "settings.yaml")))
