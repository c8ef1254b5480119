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
  const all = new Map(rows.map((row) => [String(row.id), row]));
  return [...groups].map(([key, members]) => describe(key, members, by, by === "parent" ? all.get(key) : undefined));
}

// One worker averages with nobody.
export function followsFromWorkers(name, { workers }) {
  return workers === "1" && ["strategy", "sync_every", "average"].includes(name);
}

// The parent may itself be a row of another group, such as a cross-validation of a recipe.
function describe(key, rows, by, parent) {
  const children = rows.filter((row) => row !== parent); // whose numbers the parent sums up
  const members = parent && children.length ? children : rows;
  const first = members[0];
  const same = (name) => (members.every((row) => row.fields[name] === first.fields[name]) ? first.fields[name] : undefined);
  const metric = first.metric;
  const comparable = members.filter((row) => row.metric === metric);
  const label = by === "setting" ? first.title : by === "parent" ? parentLabel(key, rows, parent) : `${by.replaceAll("_", " ")} ${key}`;
  const common = (name) => (followsFromWorkers(name, { workers: same("workers") }) || same(name) === "unset" ? "" : same(name) ?? "");
  const timed = members.filter((row) => row.clock === first.clock);
  return {
    key: `${by} ${key}`, label, rows, common, metric, members: members.length,
    noun: { crossval: "fold", sweep: "trial" }[rows.length > 1 && parent ? parent.kind : ""] || "run",
    alike: by !== "parent" || members.every((row) => row.setting === first.setting),
    score: spread(comparable.map((row) => row.score)), loss: spread(members.map((row) => row.loss)),
    times: timesByClock(members), speed: spread(timed.map((row) => row.speed)),
  };
}

// Measured and predicted times are not summed up together.
function timesByClock(rows) {
  const clocks = [...new Set(rows.map((row) => row.clock))].sort();
  return clocks.map((clock) => ({ clock, ...spread(rows.filter((row) => row.clock === clock).map((row) => row.seconds)) })).filter((times) => times.mean !== undefined);
}

// What children have in common: a cross-validation, a sweep, or a command.
function parentLabel(key, rows, parent) {
  if (!parent) return rows[0].invocation ? invocationLabel(rows) : `run ${key}`;
  const kind = { crossval: "cross-validation of ", sweep: "sweep of " }[parent.kind] || "";
  return `${parent.id}: ${kind}${parent.title}`;
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
  return { mean, low: Math.min(...known), high: Math.max(...known), deviation: known.length > 1 ? Math.sqrt(squares / (known.length - 1)) : null };
}
