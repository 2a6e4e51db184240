#!/bin/sh
# Sees to a browser for the tests of the page: tools/browser.sh VENV. Debian's Chromium, or any that is there already.
set -eu
venv=$1

for name in "${FAIRGPU_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$name" ] && command -v "$name" >/dev/null; then
        exit 0
    fi
done

# Ubuntu's package chromium only fetches a snap, which a test cannot start with a profile of its own.
system=$(. /etc/os-release 2>/dev/null && echo "$ID")
if [ "$system" = ubuntu ]; then
    echo "installing Chromium with playwright"
    if [ "$(id -u)" = 0 ]; then
        exec "$venv/bin/playwright" install --with-deps chromium
    fi
    "$venv/bin/playwright" install chromium || {
        echo "Chromium could not be installed. Install its libraries with: sudo $venv/bin/playwright install-deps chromium" >&2
        exit 1
    }
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null
else
    echo "The page is tested in Chromium. Install it with: sudo apt-get install chromium" >&2
    exit 1
fi
