/** What is asked for together and shown together: each part fails by itself, and an older answer never overtakes. */

export class Part {
  /** `panel` shows that it waits or failed; `ask(signal)` gives figures; `show(figures)` shows them. */
  constructor(panel, ask, show) {
    this.panel = panel;
    this.ask = ask;
    this.show = show;
    this.under = new AbortController();
    this.figures = null;
    this.refused = false;
  }

  /**
   * Asks anew and shows what comes; true where it did. Where the timekeeper is away, `keep` leaves what was shown of the
   * same question, and says so with the event `stale`.
   */
  async load({ keep = false } = {}) {
    this.under.abort();
    const mine = (this.under = new AbortController());
    this.panel.wait();
    try {
      const figures = await this.ask(mine.signal);
      if (mine.signal.aborted) return false;
      this.figures = figures;
      this.refused = false;
      this.show(figures);
      return true;
    } catch (problem) {
      if (mine.signal.aborted || problem.name === "AbortError" || problem.status === 401) return false;
      if (problem.status === undefined) throw problem;
      if (keep && this.figures !== null && (problem.status === 0 || problem.status >= 500)) {
        this.show(this.figures);
        dispatchEvent(new CustomEvent("stale", { detail: problem.message }));
        return false;
      }
      this.figures = null;
      this.refused = problem.status === 403;
      this.panel.fail(problem, () => this.load());
      return false;
    }
  }

  /** Shows again what it has. */
  redraw() {
    if (this.figures !== null) this.show(this.figures);
  }

  /** Forgets everything. */
  end() {
    this.under.abort();
    this.figures = null;
  }
}
