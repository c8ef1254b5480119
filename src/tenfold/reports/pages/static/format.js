// Numbers as text, as the tables of a report write them.

export const NOTHING = "–";

export function count(value) {
  return value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en-US");
}

export function significant(value, digits = 3) {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 15 || size < -6) return value.toExponential(digits - 1);
  return value.toLocaleString("en-US", {
    minimumFractionDigits: 0, maximumFractionDigits: Math.max(0, digits - 1 - size),
  });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 1e-9) return "0 s";
  for (const [scale, unit, limit] of [[1e6, "µs", 999.5], [1e3, "ms", 999.5], [1, "s", 99.95]])
    if (seconds * scale < limit) {
      const digits = (seconds * scale).toPrecision(3);
      return `${Number(digits) >= 1e21 ? seconds : digits} ${unit}`;
    }
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60).toLocaleString("en-US")} h ${String(minutes % 60).padStart(2, "0")} min`;
}

// Whether a metric is shown in percent.
export function isPercent(name) {
  return name.endsWith("accuracy");
}

export function metricValue(name, value) {
  if (value === null || value === undefined) return NOTHING;
  if (!Number.isFinite(value)) return "not a number";
  if (isPercent(name)) return `${(100 * value).toFixed(2)}%`;
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e4) ? value.toFixed(4) : value.toPrecision(3);
}

export function percent(share) {
  return `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)}%`;
}

// About as many round numbers between two ends.
export function niceTicks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * unit).find((one) => one >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}
