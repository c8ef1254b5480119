// Sorting and grouping rows: what groups have in common, and the mean and spread of the rest.

export function sortRows(rows, value, down) {
  const order = (left, right) => {
    const [a, b] = [value(left), value(right)];
    const [missingA, missingB] = [a, b].map((one) => one === null || one === undefined || one === "" || Number.isNaN(one));
    if (missingA || missingB) return Number(missingA) - Number(missingB); // what is missing comes last, in both directions
    const less = typeof a === "string" ? a.localeCompare(b) : a - b;
    return (down ? -less : less) || right.id - left.id;
  };
  return [...rows].sort(order);
}

export function groupRows(rows, by) {
  const groups = new Map();
  for (const row of rows) {
    const key = by === "setting" ? row.setting : by === "parent" ? String(row.parent ?? row.invocation ?? row.id) : row.fields[by] ?? "default";
    groups.set(key, [...(groups.get(key) || []), row]);
  }
  return [...groups].map(([key, members]) => describe(key, members, by));
}

// One worker averages with nobody.
export function followsFromWorkers(name, { workers }) {
  return workers === "1" && ["strategy", "sync_every", "average"].includes(name);
}

function describe(key, rows, by) {
  const first = rows[0];
  const same = (name) => (rows.every((row) => row.fields[name] === first.fields[name]) ? first.fields[name] : undefined);
  const metric = first.metric;
  const alike = rows.filter((row) => row.metric === metric);
  const parent = rows.find((row) => String(row.id) === key);
  const label = by === "setting" ? first.title : by === "parent" ? parent?.title || (first.invocation ? invocationLabel(rows) : `run ${key}`) : `${by.replaceAll("_", " ")} ${key}`;
  const common = (name) => (followsFromWorkers(name, { workers: same("workers") }) || same(name) === "unset" ? "" : same(name) ?? "");
  const timed = rows.filter((row) => row.clock === first.clock);
  return {
    key: `${by} ${key}`, label, rows, common, metric,
    score: spread(alike.map((row) => row.score)), loss: spread(rows.map((row) => row.loss)),
    seconds: spread(timed.map((row) => row.seconds)), speed: spread(timed.map((row) => row.speed)),
  };
}

// A command can be repeated, and all comparisons of a notebook have the same one.
function invocationLabel(rows) {
  const numbers = rows.map((row) => row.id);
  return `${Math.min(...numbers)} to ${Math.max(...numbers)}: ${(rows[0].command || "Python").replace(/^tenfold /, "")}`;
}

// The mean, and the standard deviation of two or more.
export function spread(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const squares = known.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, deviation: known.length > 1 ? Math.sqrt(squares / (known.length - 1)) : null };
}
