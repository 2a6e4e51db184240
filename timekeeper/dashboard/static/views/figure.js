/** A chart that can be pointed at, walked through with arrow keys, read aloud, and read as a table. */

import { element, styled } from "../lib/dom.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

/**
 * A figure: the chart, its legend, and its figures as a table.
 *
 * `draw(charts, host, at)` draws with the module of charts; `label` says in a sentence what it shows; `legend(index)`
 * gives rows of colour, name and text, of a step or (null) of them all; `say(index)` is what a screen reader says of a step;
 * `head` and `rows` are the table's.
 */
export function figure({ label, count, draw, legend, say, head, rows }) {
  const host = element("div", {
    class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart",
    "aria-label": `${label} Arrow keys go from step to step.`,
  });
  const listed = element("ul", { class: "legend" });
  const spoken = element("p", { class: "unseen", "aria-live": "polite" });
  let plot = null;
  let at = null;

  const show = (index) => {
    at = index;
    listed.replaceChildren(...legend(index).map(entry));
  };
  const render = async () => {
    const charts = await import("../lib/charts.js");
    if (!host.isConnected) return;
    plot?.end();
    plot = draw(charts, host, show);
  };
  const walk = (event) => {
    const to = event.key === "Home" ? 0 : event.key === "End" ? count - 1
      : event.key in STEPS ? (at ?? (STEPS[event.key] > 0 ? -1 : count)) + STEPS[event.key] : null;
    if (to === null || plot === null) return;
    event.preventDefault();
    plot.point(Math.min(count - 1, Math.max(0, to)));
    spoken.textContent = say(Math.min(count - 1, Math.max(0, to)));
  };
  host.addEventListener("keydown", walk);
  show(null);
  const whole = element("figure", {}, host, listed, spoken, asTable(head, rows));
  const recolour = () => (host.isConnected ? render() : removeEventListener("theme", recolour));
  addEventListener("theme", recolour);
  queueMicrotask(render);
  return whole;
}

/** Figures as a table, made when somebody wants to see it. */
function asTable(head, rows) {
  const details = element("details", { class: "as-table" }, element("summary", {}, "Show as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The figures as a table" },
      element("table", {}, element("thead", {}, element("tr", {}, head.map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, rows().map(([first, ...others]) =>
          element("tr", {}, element("th", { scope: "row" }, first), others.map((text) => element("td", {}, text))))))));
  });
  return details;
}

function entry({ colour, name, text, dashed, sum }) {
  const patch = styled(element("i", { class: dashed ? "dashed" : null, "aria-hidden": "true" }), { color: `var(${colour})` });
  return element("li", { class: sum ? "sum" : null }, patch, element("span", { class: "name", title: name }, name), element("span", { class: "text" }, text));
}
