/** Light, dark, or what the system prefers; remembered in this browser. */

const KEY = "fairgpu-theme";

/** Wires the switch, and says when the colours have changed. */
export function startTheme(choices) {
  const inputs = [...choices.querySelectorAll("input")];
  const chosen = document.documentElement.dataset.theme ?? "system";
  for (const input of inputs) {
    input.checked = input.value === chosen;
    input.addEventListener("change", () => choose(input.value));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("theme")));
}

/** The present value of a colour of the style sheet, such as `--spent`, as a canvas takes it. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // A browser that keeps nothing forgets it with the page.
  }
  dispatchEvent(new Event("theme"));
}
