// Runs before anything is painted, so that a page that was set to dark does not flash white.
(() => {
  try {
    const theme = localStorage.getItem("fairgpu-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // A browser that keeps nothing shows the system's colours.
  }
})();
