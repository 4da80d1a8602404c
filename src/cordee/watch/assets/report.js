// Draws the plots of a page from the data in the page. All text here and in the data goes in as text, never as markup.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const PARTS = data.split ? data.split.parts : [];
  let axis = "step";
  let logarithmic = false;
  let whose = "all";
  let plots = [];

  // ---------------------------------------------------------------- numbers and colours

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const lines = (place) => css("c" + (place % 8));
  const dashes = (place) => [[], [8, 4], [2, 3]][Math.floor(place / 8) % 3];

  function number(value) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    const size = Math.abs(value);
    const short = (one) => String(Number(one.toPrecision(size >= 100 && size < 1e4 ? 4 : 3)));
    if (size >= 1e6) return short(value / 1e6) + " M";
    if (size >= 1e4) return short(value / 1e3) + " k";
    if (size >= 0.001 || size === 0) return short(value);
    return value.toExponential(1);
  }

  function clock(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 60) return Number(seconds.toFixed(2)) + " s";
    if (seconds < 3600) return Math.floor(seconds / 60) + ":" + String(Math.floor(seconds % 60)).padStart(2, "0") + " min";
    return Math.floor(seconds / 3600) + ":" + String(Math.floor((seconds % 3600) / 60)).padStart(2, "0") + " h";
  }

  const WHOLE = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power)); // no half steps

  const place = (value) => (axis === "step" ? Math.round(value).toLocaleString("en") : clock(value));

  // ---------------------------------------------------------------- from the data to columns

  /** The rows of a curve along the chosen axis: over steps, those that were done again are left out. */
  function along(curve, columns) {
    if (axis === "seconds") return broken([curve.seconds, ...columns]);
    const rows = curve.step.map((_, index) => index).filter((index) => !curve.redone[index]);
    rows.sort((one, other) => curve.step[one] - curve.step[other]);
    return [curve.step, ...columns].map((column) => rows.map((index) => column[index]));
  }

  /** Over time, with a gap where the run was resumed. */
  function broken(columns) {
    const cuts = data.marks.filter((mark) => mark.kind === "resume").map((mark) => mark.seconds);
    const made = columns.map(() => []);
    columns[0].forEach((moment, row) => {
      while (cuts.length && cuts[0] <= moment) {
        const cut = cuts.shift();
        if (row) made.forEach((column, place) => column.push(place ? null : cut));
      }
      made.forEach((column, place) => column.push(columns[place][row]));
    });
    return made;
  }

  /** What a worker used, with a gap behind each span in which it was there: nothing is drawn towards its successor. */
  function parted(seconds, values, spans) {
    const made = [[], []];
    const span = (moment) => spans.findIndex(([, end]) => moment <= end + 0.001);
    seconds.forEach((moment, row) => {
      made[0].push(moment);
      made[1].push(values[row]);
      if (row + 1 < seconds.length && span(moment) === span(seconds[row + 1])) return;
      made[0].push(moment + 1e-6);
      made[1].push(null);
    });
    return made;
  }

  /** Several tables as one; a gap in a series takes the places beside it that only others have. */
  const joined = (tables) => uPlot.join(tables, tables.map((table) => table.map(() => 2)));

  function percentile(values, share) {
    const sorted = values.filter((value) => value !== null && isFinite(value)).sort((one, other) => one - other);
    return sorted.length ? sorted[Math.floor(share * (sorted.length - 1))] : 0;
  }

  // ---------------------------------------------------------------- drawing

  const MARKS = { failure: { sign: "✕", line: [5, 4] }, regroup: { sign: "○", line: [1, 4] }, resume: { sign: "↻", line: [5, 4] }, decision: { sign: "◆", line: [2, 3] } };
  const HEIGHTS = { regroup: 26, decision: 40 };

  /** A hook that paints on a plot, within its area. */
  const within = (paint) => (plot) => {
    const { left, top, width, height } = plot.bbox;
    plot.ctx.save();
    plot.ctx.beginPath();
    plot.ctx.rect(left, top, width, height);
    plot.ctx.clip();
    paint(plot, plot.ctx, devicePixelRatio || 1);
    plot.ctx.restore();
  };

  /** Lines through a plot where something happened. */
  function marks(along, epochs) {
    return within((plot, context, ratio) => {
      const { left, top, width, height } = plot.bbox;
      const line = (value, colour, dash) => {
        const at = Math.round(plot.valToPos(value, "x", true)) + 0.5;
        context.strokeStyle = colour;
        context.lineWidth = ratio;
        context.setLineDash(dash.map((one) => one * ratio));
        context.beginPath();
        context.moveTo(at, top);
        context.lineTo(at, top + height);
        context.stroke();
        return at;
      };
      if (epochs && data.metrics.step.length <= 40) {
        data.metrics[along].forEach((value) => line(value, css("grid"), []));
      }
      context.font = "bold " + 13 * ratio + "px system-ui, sans-serif";
      data.marks.forEach((mark) => {
        const { sign, line: dash } = MARKS[mark.kind];
        const colour = css({ resume: "link", decision: "c6" }[mark.kind] || "mark");
        const at = line(mark[along], colour, dash);
        const fits = at + 18 * ratio < left + width;
        const from = [at + (fits ? 4 : -4) * ratio, top + (HEIGHTS[mark.kind] || 12) * ratio];
        context.textAlign = fits ? "left" : "right";
        context.setLineDash([]); // a rim in the colour of the card keeps the sign apart from what lies under it
        context.lineJoin = "round";
        context.lineWidth = 5 * ratio;
        context.strokeStyle = css("card");
        context.strokeText(sign, ...from);
        context.fillStyle = colour;
        context.fillText(sign, ...from);
      });
    });
  }

  /** Intervals as lines with caps, and the values beside them if they are few. */
  const whiskers = (values, low, high) => within((plot, context, ratio) => {
    context.strokeStyle = context.fillStyle = css("ink");
    context.lineWidth = 1.25 * ratio;
    context.textAlign = "center";
    context.font = "600 " + 12 * ratio + "px system-ui, sans-serif";
    plot.data[0].forEach((x, row) => {
      const at = plot.valToPos(x, "x", true);
      const [from, to] = [low, high].map((ends) => plot.valToPos(Math.max(1e-9, known(ends[row]) ? ends[row] : values[row]), "y", true));
      context.beginPath();
      if (known(low[row])) [[0, from, 0, to], [-5, from, 5, from], [-5, to, 5, to]].forEach(([left, begin, right, end]) => {
        context.moveTo(at + left * ratio, begin);
        context.lineTo(at + right * ratio, end);
      });
      context.stroke();
      const below = from + 18 * ratio;
      if (values.length <= 9) context.fillText(number(values[row]), at, below < plot.bbox.top + plot.bbox.height ? below : to - 10 * ratio);
    });
  });

  /** Series of different workers, or of epochs, have no value at every place: the nearest one counts. */
  function nearest(plot, series, at) {
    const column = plot.data[series], x = plot.data[0];
    if (series === 0 || at === null || known(column[at])) return at;
    const spans = plot.there && plot.there[series - 1];
    if (spans && !spans.some(([begin, end]) => begin <= x[at] && x[at] <= end)) return null; // it has gone
    let before = at, after = at;
    while (before >= 0 && !known(column[before])) before -= 1;
    while (after < x.length && !known(column[after])) after += 1;
    if (before < 0 && after >= x.length) return at;
    if (before < 0) return after;
    return after >= x.length || x[at] - x[before] <= x[after] - x[at] ? before : after;
  }

  /** Those of some places on the x axis, from the last one back, whose words do not touch. */
  function apart(plot, places) {
    const made = [];
    [...places].reverse().forEach((one) => {
      if (!made.length || plot.valToPos(made[0], "x") - plot.valToPos(one, "x") >= 26) made.unshift(one);
    });
    return made;
  }

  const known = (value) => value !== null && value !== undefined;

  /** While the cursor is elsewhere, the legend has the last values. */
  function rest(place) {
    return (plot) => {
      if (known(plot.cursor.idx)) return;
      const at = place === undefined ? plot.data[0].length - 1 : place;
      plot.setLegend({ idxs: plot.series.map((_, series) => (plot.free ? nearest(plot, series, at) : at)) });
    };
  }

  /** One plot in `host`: `spec` has data, series and what differs from the others. */
  function draw(host, spec) {
    const over = spec.over || axis;
    const ticks = over === "step" ? (value) => number(value) : clock;
    const plain = spec.x;
    const options = {
      width: Math.max(200, host.clientWidth),
      height: spec.height || 200,
      padding: [8, 16, 0, 0],
      scales: {
        x: { time: false, range: spec.xRange, ...spec.xScale },
        y: spec.log ? { distr: 3, ...spec.yScale } : { range: spec.range || ((_, low, high) => padded(low, high, spec.zero)) },
      },
      axes: [
        axisOf({ values: (_, all) => all.map(plain || ticks), space: 60, size: 32, ...(plain || over !== "step" ? {} : { incrs: WHOLE }), ...spec.xAxis }),
        axisOf({ values: (_, all) => all.map((one) => (one === null ? "" : number(one))), size: 52, ...spec.yAxis }),
      ],
      series: [
        { label: plain ? spec.xLabel : over === "step" ? "step" : "time", value: (_, one) => (one === null ? "–" : plain ? plain(one) : over === "step" ? place(one) : clock(one)) },
        ...spec.series,
      ],
      bands: spec.bands || [],
      legend: { live: true },
      cursor: { y: false, points: { size: 7 }, ...(spec.free ? { dataIdx: nearest } : {}), ...(plain ? {} : { sync: { key: over } }) },
      hooks: {
        init: [(plot) => { plot.free = spec.free; plot.there = spec.there; }],
        setCursor: [rest(spec.rest)],
        draw: plain ? spec.paint || [] : [marks(over, spec.epochs)],
      },
    };
    const made = new uPlot(options, spec.data, host);
    rest(spec.rest)(made);
    plots.push({ made, host });
  }

  const axisOf = (more) => ({
    stroke: css("soft"), font: "12px system-ui, sans-serif", grid: { stroke: css("grid"), width: 1 }, ticks: { show: false }, gap: 4, ...more,
  });

  function padded(low, high, zero) {
    if (low === null || high === null) return [0, 1];
    if (low === high) return [zero ? 0 : low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
    const margin = (high - low) * 0.06;
    return [zero ? 0 : low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  }

  /** A line, and where there are several steps in a row the span of their values behind it. */
  const line = (label, colour, more) => ({
    label, stroke: colour, width: 1.8, points: { show: false }, value: (_, one) => number(one), ...more,
  });
  const edge = () => ({ class: "quiet", stroke: "transparent", width: 0, points: { show: false } });
  /** A dot an epoch, the smaller the more there are. */
  const dots = (epochs, colour) => ({ points: { show: epochs.length <= 60, size: epochs.length <= 12 ? 6 : 3.5, width: 0, fill: colour } });
  const dotted = (values) => ({ points: { show: values.filter((one) => one !== null).length <= 60, size: 5 } });

  /** The rows of `data.split` as stairs: each holds for its own steps, and on until the next one begins. */
  function stairs(columns) {
    const { count, all } = data.split;
    const length = (row) => PARTS.reduce((sum, part) => sum + (all[part][row] || 0), 0) / 1e3;
    const widths = count.map((steps, row) => (axis === "step" ? steps : steps * length(row)));
    const [x, wide, ...values] = along(data.split, [widths, ...columns]);
    const made = [x, ...values].map(() => []);
    const put = (at, row) => made.forEach((column, place) => column.push(place ? values[place - 1][row] : at));
    x.forEach((end, row) => {
      const goesOn = row && known(wide[row]) && known(wide[row - 1]);
      const begin = goesOn ? Math.max(x[row - 1], end - wide[row]) : end - (wide[row] || 0);
      const little = (end - begin) * 1e-6; // no two places may be the same
      if (goesOn && begin > x[row - 1]) put(begin, row - 1);
      if (known(wide[row])) put(begin + little, row);
      put(end, row);
    });
    return made;
  }

  /** Columns on top of each other; the legend has each one's own value. */
  function stack(host, raw, spec) {
    const sums = [];
    raw.forEach((column, place) => sums.push(column.map((one, row) => (one || 0) + (place ? sums[place - 1][row] : 0))));
    const [x, ...columns] = stairs([...sums, ...raw]);
    const order = raw.map((_, place) => raw.length - 1 - place); // the highest sum first, the others over it
    const top = spec.cut ? percentile(columns[raw.length - 1], 0.98) * 1.35 : spec.top;
    draw(host, {
      data: [x, ...order.map((place) => columns[place])],
      series: order.map((place) => ({
        label: spec.labels[place], stroke: spec.colours[place], fill: spec.colours[place], width: 0.5, points: { show: false },
        value: (_, one, series, row) => (known(row) && known(columns[raw.length + place][row]) ? spec.say(columns[raw.length + place][row]) : "–"),
      })),
      range: (_, low, high) => [0, spec.cut ? Math.max(1e-6, Math.min(top, (high || 1) * 1.06)) : top],
    });
  }

  /** The mean of some steps as a line, and from their least to their greatest value a shade behind it; from 0 to `top`. */
  function spanned(host, curve, columns, spec) {
    const [x, mean, low, high] = along(curve, columns);
    const spread = mean.some((_, index) => low[index] !== high[index]);
    const colour = css(spec.colour);
    draw(host, {
      data: spread ? [x, mean, high, low] : [x, mean],
      series: [line(spread ? spec.label + ", mean" : spec.label, colour, dotted(mean)), ...(spread ? [edge(), edge()] : [])],
      bands: spread ? [{ series: [2, 3], fill: colour + "33" }] : [],
      free: spec.free,
      range: (_, low, high) => [0, Math.max(1e-12, Math.min(spec.top || Infinity, (high || 1) * 1.06))],
    });
  }

  /** Counts of classes between `edges`. */
  function bars(host, edges, counts, spec) {
    const middle = counts.map((_, index) => (edges[index] + edges[index + 1]) / 2);
    const width = edges.length > 1 ? edges[1] - edges[0] : 1;
    draw(host, {
      data: [middle, counts],
      series: [{ label: spec.label, stroke: css("c0"), fill: css("c0") + "99", width: 1, paths: uPlot.paths.bars({ size: [0.92, 60] }), points: { show: false }, value: (_, one) => number(one) }],
      x: (value) => number(value), xRange: () => [edges[0] - width / 2, edges[edges.length - 1] + width / 2], zero: true,
      rest: counts.indexOf(Math.max(...counts)), ...spec,
    });
  }

  // ---------------------------------------------------------------- the plots

  const draws = {
    loss(host) {
      const { loss, loss_low, loss_high } = data.losses.values;
      const [x, mean, low, high] = along(data.losses, [loss, loss_low, loss_high]);
      const spread = mean.some((_, index) => low[index] !== high[index]);
      const validation = data.metrics.values.loss;
      let columns = spread ? [x, mean, high, low] : [x, mean];
      const series = [line(spread ? "training loss (mean)" : "training loss", css("c0"), dotted(mean))];
      if (spread) series.push(edge(), edge());
      if (validation) { // first, so that it lies under the training loss, which has more to show
        const [epochs, values] = along(data.metrics, [validation]);
        columns = joined([[epochs, values], columns]);
        series.unshift(line("validation loss", css("c1"), dots(epochs, css("c1"))));
      }
      const shade = series.length - 1;
      const positive = columns.slice(1).every((column) => column.every((one) => one === null || one === undefined || one > 0));
      const box = document.getElementById("log");
      box.disabled = !positive;
      draw(host, {
        data: columns, series, epochs: true, free: true, log: logarithmic && positive,
        bands: spread ? [{ series: [shade, shade + 1], fill: css("c0") + "33" }] : [],
      });
    },

    lr(host) {
      const [x, values] = along(data.losses, [data.losses.values.lr]);
      draw(host, { data: [x, values], series: [line("learning rate", css("c4"), dotted(values))], zero: true });
    },

    grad_norm(host) {
      const { grad_norm, grad_norm_low, grad_norm_high } = data.losses.values;
      spanned(host, data.losses, [grad_norm, grad_norm_low, grad_norm_high], { label: "gradient norm", colour: "c3", free: true });
    },

    metric(host) {
      const name = host.dataset.name;
      const [x, values] = along(data.metrics, [data.metrics.values[name]]);
      draw(host, { data: [x, values], series: [line(name, css("c2"), dots(x, css("c2")))] });
    },

    throughput(host) {
      const [x, values] = along(data.pace, [data.pace.values.throughput]);
      draw(host, { data: [x, values], series: [line("samples/s", css("c2"), dotted(values))], zero: true });
    },

    latency(host) {
      const { ms, ms_low, ms_high } = data.pace.values;
      const top = Math.max(data.latency.p99 * 1.5, percentile(ms, 0.98) * 1.2);
      spanned(host, data.pace, [ms, ms_low, ms_high], { label: "ms", colour: "c0", top });
    },

    histogram(host) {
      const { edges, counts } = data.latency;
      bars(host, edges, counts, { label: "steps", xLabel: "ms" });
    },

    staleness(host) {
      const counts = data.staleness;
      const edges = [...counts, 0].map((_, place) => place - 0.5);
      bars(host, edges, counts, { label: "pushes", xLabel: "staleness", xAxis: { incrs: WHOLE }, xRange: () => [-0.6, counts.length - 0.4] });
    },

    bytes(host) {
      const { sent, plain } = data.split.all;
      const [unit, size] = Math.max(...sent, ...plain) >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 1024];
      const differ = sent.some((one, row) => one !== plain[row]);
      const [x, ...columns] = stairs((differ ? [plain, sent] : [sent]).map((column) => column.map((one) => (known(one) ? one / size : null))));
      const series = [line("sent, " + unit, css("c0"))];
      if (differ) series.unshift(line("without a codec, " + unit, css("c1"), { dash: [6, 4] }));
      draw(host, { data: [x, ...columns], series, zero: true });
    },

    overlap(host) {
      const { communication, hidden } = data.split.all;
      stack(host, [communication, hidden], {
        labels: ["not hidden", "hidden"], colours: [css("communication"), css("hidden")], say: (one) => number(one) + " ms", cut: true,
      });
    },

    link(host) {
      const [x, values] = along(data.decisions, [data.decisions.link_mbit]);
      draw(host, { data: [x, values], series: [line("Mbit/s", css("c2"), dotted(values))], zero: true });
    },

    forecast(host) {
      const [x, ...columns] = along(data.decisions, [data.decisions.forecast_ms, data.decisions.measured_ms]);
      const series = [line("forecast", css("c1"), { dash: [6, 4], ...dotted(columns[0]) }), line("measured", css("c0"), dotted(columns[1]))];
      draw(host, { data: [x, ...columns], series, zero: true });
    },

    split(host) {
      const of = whose === "all" ? data.split.all : data.split.workers[whose];
      stack(host, PARTS.map((part) => of[part]), {
        labels: PARTS, colours: PARTS.map(css), say: (one) => number(one) + " ms", cut: true,
      });
    },

    shares(host) {
      const numbers = Object.keys(data.split.workers);
      const whole = data.split.all.samples;
      const part = (column) => column.map((one, row) => (known(one) && whole[row] ? (100 * one) / whole[row] : null));
      const percents = numbers.map((one) => part(data.split.workers[one].samples));
      const labels = numbers.map((one) => "worker " + one);
      const colours = numbers.map((_, place) => lines(place));
      const others = whole.map((all, row) => all - numbers.reduce((sum, one) => sum + (data.split.workers[one].samples[row] || 0), 0));
      if (data.split.others) {
        percents.push(part(others));
        labels.push(data.split.others + " others");
        colours.push(css("other"));
      }
      stack(host, percents, { labels, colours, say: (one) => number(one) + " %", top: 100 });
    },

    /** A figure by number of workers with its intervals; counts whose workers share cores or GPUs are hollow. */
    scaling(host) {
      const { workers, shared, figures } = data.scaling;
      const { label, values, low, high, ideal } = figures[host.dataset.name];
      const first = workers[0], last = workers[workers.length - 1];
      const wide = last / first >= 8; // then the axis is logarithmic: small counts would stick together
      const log = wide && ideal.some(known);
      const most = Math.max(...values, ...ideal.filter(known));
      const top = Math.min(1.3 * most, Math.max(most, ...high.filter(known)) * 1.08);
      const least = log ? Math.min(1, ...values) / 1.6 : 0;
      const powers = [...Array(60).keys()].map((power) => 2 ** (power - 30)).filter((one) => one >= least && one <= top);
      const beside = wide ? [first / 1.25, last * 1.25] : [first - (last - first || 2) * 0.1, last + (last - first || 2) * 0.1];
      const all = (_, splits) => splits;
      const say = (_, one, series, row) => (known(one) && known(row) ? number(one) + (known(low[row]) ? " (" + number(low[row]) + " to " + number(high[row]) + ")" : "") : "–");
      const series = [line(label, css("c0"), { value: say, points: { show: true, size: 9, fill: css("c0") } })];
      const columns = [values];
      if (ideal.some(known)) {
        series.unshift(line("ideal", css("soft"), { dash: [5, 4] }));
        columns.unshift(ideal);
      }
      if (shared.some((one) => one)) {
        series.push(line("oversubscribed", css("c0"), { paths: () => null, points: { show: true, size: 9, width: 2, fill: css("card") } }));
        columns.push(values.map((one, row) => (shared[row] ? one : null)));
      }
      draw(host, {
        data: [workers, ...columns], series, paint: [whiskers(values, low, high)], height: 260,
        x: String, xLabel: "workers", xRange: () => beside, xScale: wide ? { distr: 3, log: 2 } : {},
        xAxis: { splits: (plot) => apart(plot, workers), filter: all },
        log, range: () => [0, top], yScale: { log: 2, range: () => [least, top] }, yAxis: log ? { splits: () => powers, filter: all } : {},
      });
    },

    usage(host) {
      const name = host.dataset.name;
      const numbers = Object.keys(data.usage);
      const tables = numbers.map((one) => parted(data.usage[one].seconds, data.usage[one].values[name], data.spans[one]));
      draw(host, {
        data: joined(tables), over: "seconds", zero: true, free: true, height: 160,
        there: numbers.map((one) => data.spans[one]),
        series: numbers.map((one, place) => line("worker " + one, lines(place), { dash: dashes(place), ...dotted(tables[place][1]) })),
      });
    },
  };

  function drawAll() {
    plots.forEach(({ made }) => made.destroy());
    plots = [];
    document.querySelectorAll(".plot").forEach((host) => draws[host.dataset.plot](host));
  }

  // ---------------------------------------------------------------- what a reader can change

  document.querySelectorAll("input[name=axis]").forEach((input) => {
    input.addEventListener("change", () => { axis = input.value; drawAll(); });
  });
  const box = document.getElementById("log");
  if (box) box.addEventListener("change", () => { logarithmic = box.checked; drawAll(); });
  const choice = document.getElementById("whose");
  if (choice) choice.addEventListener("change", () => { whose = choice.value; drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let waits = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waits);
    waits = requestAnimationFrame(() => plots.forEach(({ made, host }) => made.setSize({ width: Math.max(200, host.clientWidth), height: made.height })));
  });
  drawAll();
  document.documentElement.dataset.drawn = String(plots.length);
})();
