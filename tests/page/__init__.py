"""The dashboard in headless Chromium. A package, so that one browser serves its files and no others."""
