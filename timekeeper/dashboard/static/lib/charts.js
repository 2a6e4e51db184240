/** Draws charts with uPlot: stacked bars over time, and lines. Colours come from the style sheet. */

import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";
import { number, utcDate, utcTime } from "./format.js";
import { colour } from "./theme.js";

const HEIGHT = 260;
const NARROW_HEIGHT = 210;
const NARROW = 480;
const DAY_SECONDS = 86_400;
const DAYS = [1, 2, 5, 7, 10, 14, 30, 61].map((days) => days * DAY_SECONDS);

/**
 * Bars that stand on each other. `times` are the starts of steps in seconds, `ends` the end of the last one;
 * `series` lists name, colour and values, the lowest first. `at(index)` is called with the step that is pointed at, or null.
 */
export function stackedBars(host, { times, ends, series, at }) {
  const sums = times.map(() => 0);
  const stacked = series.map(({ values }) => values.map((value, index) => (sums[index] += value)));
  const bars = uPlot.paths.bars({ size: [0.86, 120], align: 1, radius: 0 });
  // Drawn from the highest to the lowest, so that each covers the part of the one behind it that is not its own.
  const drawn = series.map((one, index) => ({ one, values: stacked[index] })).reverse();
  const options = {
    steps: (ends - times[0]) / times.length,
    whole: times.every((time) => time % DAY_SECONDS === 0),
    series: [{}, ...drawn.map(({ one }) => ({
      label: one.name, fill: colour(one.colour), stroke: colour("--surface"), width: 1, paths: bars, points: { show: false },
    }))],
    scales: { x: { time: true, range: () => [times[0], ends] }, y: { range: (_, __, high) => [0, high * 1.06 || 1] } },
  };
  return draw(host, options, [times, ...drawn.map(({ values }) => values)], at);
}

/** Lines over time; a series has a name, a colour, values, and may be dashed or filled. `now` marks an instant. */
export function lines(host, { times, series, now, at }) {
  const options = {
    series: [{}, ...series.map((one) => ({
      label: one.name, stroke: colour(one.colour), width: one.thin ? 1.5 : 2.5, dash: one.dashed ? [6, 5] : undefined,
      fill: one.filled ? colour(one.filled) : undefined, spanGaps: true, points: { show: false },
    }))],
    scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low), high * 1.06 || 1] } },
    hooks: { draw: [(plot) => mark(plot, now)] },
  };
  return draw(host, options, [times, ...series.map(({ values }) => values)], at);
}

function draw(host, { whole, steps, ...options }, data, at) {
  const size = () => ({ width: host.clientWidth, height: host.clientWidth < NARROW ? NARROW_HEIGHT : HEIGHT });
  // A bar begins at its instant, so that it is pointed at from there on; a point of a line is pointed at from around it.
  const inside = steps === undefined ? 0 : steps / 2;
  const pointed = ({ cursor, posToVal }) => {
    if (steps === undefined) return cursor.idx;
    const instant = posToVal(cursor.left, "x");
    return Math.max(0, data[0].findLastIndex((start) => start <= instant));
  };
  const plot = new uPlot({
    ...options,
    ...size(),
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    padding: [12, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    axes: axes(whole),
    hooks: { ...options.hooks, setCursor: [(chart) => at(chart.cursor.left < 0 ? null : pointed(chart))] },
  }, data, host);
  const watch = new ResizeObserver(() => {
    if (host.clientWidth !== plot.width) plot.setSize(size());
  });
  watch.observe(host);
  return {
    point: (index) => plot.setCursor({ left: plot.valToPos(data[0][index] + inside, "x"), top: 0 }),
    end: () => {
      watch.disconnect();
      plot.destroy();
    },
  };
}

function axes(whole) {
  const style = getComputedStyle(document.body);
  const common = {
    stroke: colour("--faint"),
    font: `12px ${style.fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  return [
    { ...common, ...(whole ? { incrs: DAYS } : {}), values: times, space: 64, grid: { show: false } },
    { ...common, size: axisSize, space: 44, values: (_, values) => values.map(number) },
  ];
}

/** Labels of an axis of time: days, or hours with the day where one begins. */
function times(_plot, splits, _axis, _space, step) {
  return splits.map((seconds, index) => {
    const instant = seconds * 1000;
    if (step >= DAY_SECONDS) return utcDate(instant);
    return index === 0 || seconds % DAY_SECONDS === 0 ? `${utcTime(instant)}\n${utcDate(instant)}` : utcTime(instant);
  });
}

function axisSize(plot, values, axis, cycle) {
  const present = plot.axes[axis]._size;
  if (cycle > 1 || !values) return present ?? 48;
  const longest = values.reduce((most, text) => Math.max(most, (text ?? "").length), 0);
  return 20 + longest * 7;
}

function mark(plot, now) {
  const x = Math.round(plot.valToPos(now, "x", true));
  const { ctx, bbox } = plot;
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = colour("--edge");
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

