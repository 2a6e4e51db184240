#!/bin/sh
# Sees to a browser for the tests of the page: tools/browser.sh VENV. Chromium's headless shell, which draws the same pages
# for a third of the processor time; else any Chromium that is there already.
set -eu
venv=$1

there() {
    for name in "$@"; do
        if [ -n "$name" ] && command -v "$name" >/dev/null; then
            return 0
        fi
    done
    return 1
}

any() {
    there chromium chromium-browser google-chrome google-chrome-stable
}

install_package() {
    install="apt-get install -y -qq --no-install-recommends $1"
    { $install 2>/dev/null || { apt-get update -qq && $install; }; } >/dev/null
}

if there "${FAIRGPU_CHROMIUM:-}" chromium-headless-shell; then
    exit 0
fi

# Ubuntu's package chromium only fetches a snap, which a test cannot start with a profile of its own.
system=$(. /etc/os-release 2>/dev/null && echo "$ID")
if [ "$system" = ubuntu ]; then
    any && exit 0
    echo "installing Chromium's headless shell with playwright"
    if [ "$(id -u)" = 0 ]; then
        exec "$venv/bin/playwright" install --with-deps --only-shell chromium
    fi
    "$venv/bin/playwright" install --only-shell chromium || {
        echo "Chromium could not be installed. Install its libraries with: sudo $venv/bin/playwright install-deps chromium" >&2
        exit 1
    }
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium-headless-shell"
    install_package chromium-headless-shell || any || install_package chromium
elif ! any; then
    echo "The page is tested in Chromium. Install it with: sudo apt-get install chromium-headless-shell" >&2
    exit 1
fi
