"""Starts the sidecar: `python -I -S sidecar.pyz`, or `python -m sidecar`."""

from __future__ import annotations

import os
import ssl
import sys

from sidecar import events, reporter
from sidecar.delivery import tls_context
from sidecar.settings import CA, SettingsError, from_environment


def main() -> int:
    """Runs the sidecar until SIGTERM or SIGINT; returns the exit status 0, or 2 if the environment is invalid."""
    try:
        settings = from_environment(os.environ)
        context = tls_context(settings.ca_pem)
    except SettingsError as error:
        events.emit("error", "settings_refused", reason=str(error))
        return 2
    except ssl.SSLError as error:
        events.emit("error", "settings_refused", reason=f"{CA} holds no usable certificate: {error}")
        return 2
    reporter.run(settings, context, boot=os.urandom(16).hex())
    return 0


if __name__ == "__main__":
    sys.exit(main())
