// What is new on the server, as it happens, and how to ask and to act.

const action = document.querySelector('meta[name="tenfold-action"]').content;

// The token has become a cookie; an address without it can be shared and bookmarked.
export function hideToken() {
  const address = new URL(location.href);
  if (!address.searchParams.has("token")) return;
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

export async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export async function act(run, what, given = {}) {
  const answer = await fetch(`/run/${run}/${what}`, {
    method: "POST", headers: { "content-type": "application/json", "x-tenfold-action": action }, body: JSON.stringify(given),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()).done;
}

// `where()` names what the page has; `hear(news)` gets what is new. The browser connects again by itself.
export function follow(where, hear) {
  const sign = document.getElementById("live");
  let source = null;
  function connect() {
    source = new EventSource(`/feed?${new URLSearchParams(where())}`);
    source.onopen = () => { sign.textContent = "live"; sign.className = "on"; };
    source.onmessage = (event) => hear(JSON.parse(event.data));
    source.onerror = () => {
      sign.textContent = "the server does not answer";
      sign.className = "off";
      if (source.readyState === EventSource.CLOSED && document.visibilityState === "visible") setTimeout(connect, 2000);
    };
  }
  connect();
  addEventListener("pagehide", () => source.close());
  // A browser has six connections to a server, so pages that nobody looks at give theirs back.
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (document.visibilityState === "visible") connect();
  });
}

// Adds new points to a figure; curves that it does not have yet are new.
export function extend(figure, curves) {
  for (const curve of curves) {
    const known = figure.curves.find((one) => one.name === curve.name && one.part === curve.part && one.worker === curve.worker);
    if (!known) figure.curves.push(curve);
    else for (const column of ["step", "seconds", "value"]) known[column].push(...curve[column]);
  }
}

export function setParts(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const place = document.querySelector(`[data-part="${name}"]`);
    if (!place) continue;
    const open = [...place.querySelectorAll("details")].map((one) => one.open);
    place.innerHTML = html; // rendered by the server from templates that escape all text
    place.querySelectorAll("details").forEach((one, at) => { one.open = Boolean(open[at]); });
  }
}
