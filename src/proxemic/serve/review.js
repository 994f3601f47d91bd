// The review page of proxemic serve. Text of others only ever becomes the text of elements, never HTML.

import { ask, at, make } from "./shared.js";

const OFFERED = 50; // labels that complete what is typed
const session = (sessionStorage.session ??= crypto.getRandomValues(new Uint32Array(4)).join("-"));
const taken = JSON.parse(sessionStorage.taken ?? "[]"); // my decisions, which can be undone, the last one last
let labels = [];
let doubt = null;
let busy = false;
let unknown = null; // a label that nobody has, which is to be confirmed

function say(text) {
  at("status").textContent = text;
}

function remember() {
  sessionStorage.taken = JSON.stringify(taken);
  at("undo").disabled = !taken.length;
}

function request(path, method, further = {}) {
  return ask(`review/${path}?${new URLSearchParams({ session, ...further })}`, { method });
}

/** Do one thing after another: a key that is held down decides nothing by itself. */
async function alone(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
  } catch (error) {
    say(error.message);
  } finally {
    busy = false;
  }
}

function thumbnail(row) {
  const image = make("img", { src: `items/${row.id}/thumbnail`, alt: row.name });
  image.onerror = () => image.replaceWith(make("div", { className: "none" }, "no photo"));
  const further = row.distance === undefined ? (row.label ?? "no label") : row.distance.toFixed(4);
  return make("li", {}, image, make("div", {}, row.name), make("div", { className: "muted" }, further));
}

function group(title, rows) {
  return rows.length ? [make("h3", {}, title), make("ol", { className: "pictures" }, ...rows.map(thumbnail))] : [];
}

function show(found) {
  doubt = found.doubt;
  at("doubt").hidden = doubt === null;
  at("again").hidden = doubt !== null || !found.left;
  if (doubt === null) {
    const waits = "Other reviewers are looking at the last photos, which come back after five minutes.";
    say(`${at("status").textContent} ${found.left ? waits : "All photos are decided. To change the labels: proxemic gallery apply"}`);
    (found.left ? at("again") : at("undo")).focus();
    return;
  }
  const { row, suggested } = doubt;
  const label = row.label ?? "no label";
  const left = make("small", {}, ` · ${found.left.toLocaleString("en")} left`);
  at("title").replaceChildren(row.label === null ? "" : "Labelled ", make("b", {}, label), left);
  at("picture").src = `items/${row.id}/thumbnail`;
  at("picture").alt = `${row.name}, labelled ${label}`;
  at("original").href = `items/${row.id}/picture`;
  at("name").textContent = row.name;
  at("reasons").replaceChildren(...doubt.reasons.map((reason) => make("li", {}, reason)));
  at("keep").firstChild.textContent = `Keep ${label}`;
  at("take").firstChild.textContent = `Take ${suggested}`;
  at("take").hidden = suggested === null;
  at("label").value = "";
  at("neighbours").replaceChildren(
    ...group("The photo that it repeats", doubt.repeats ? [doubt.repeats] : []),
    ...group(`Nearest photos of ${suggested}`, doubt.other),
    ...group(`Nearest photos of ${label}`, doubt.own),
  );
  unknown = null;
  at("title").focus({ preventScroll: true });
  if (at("title").getBoundingClientRect().top < 0) at("title").scrollIntoView();
}

async function next(number) {
  show(await request("next", "POST", number === undefined ? {} : { number }));
  if (doubt) sessionStorage.shown = doubt.number; // which a reload shows again
}

function decide(action, label) {
  return alone(async () => {
    const { number, row } = doubt;
    const reviewer = at("reviewer").value;
    const { decision, note } = await request(number, "POST", { action, reviewer, ...(label === undefined ? {} : { label }) });
    if (decision !== null) taken.push({ decision, number });
    remember();
    const said = { keep: `${row.name} keeps its label.`, relabel: `${row.name} gets the label ${label}.`, remove: `${row.name} will be removed.` };
    say(note ?? said[action]);
    await next();
  });
}

const undo = () =>
  alone(async () => {
    if (!taken.length) return;
    const { decision, number } = taken.pop();
    remember();
    const { note } = await request(decision, "DELETE");
    say(note ?? "The last decision is undone.");
    await next(number);
  });

const later = () => alone(async () => (say(`${doubt.row.name} comes again later.`), await next()));

function give(label) {
  if (!label) return say("Type a label first.");
  if (!labels.includes(label) && unknown !== label) {
    unknown = label;
    return say(`No photo has the label ${label} yet: press Enter again to create it.`);
  }
  if (!labels.includes(label)) labels.push(label);
  at("title").focus({ preventScroll: true }); // at once: a key that is pressed before the answer is no part of a label
  return decide("relabel", label);
}

function offer() {
  const typed = at("label").value.trim().toLowerCase();
  const meant = typed ? labels.filter((label) => label.toLowerCase().includes(typed)).slice(0, OFFERED) : [];
  at("labels").replaceChildren(...meant.map((value) => make("option", { value })));
}

const actions = {
  k: () => decide("keep"),
  t: () => doubt.suggested !== null && decide("relabel", doubt.suggested),
  r: () => decide("remove"),
  l: later,
  a: () => at("label").focus(),
};
for (const [key, id] of [["k", "keep"], ["t", "take"], ["r", "remove"], ["l", "later"]]) at(id).onclick = actions[key];
at("undo").onclick = undo;
at("again").onclick = () => alone(() => (say(""), next()));
at("label").oninput = offer;
at("picture").onerror = () => (at("picture").alt = "no photo");
at("reviewer").value = localStorage.reviewer ?? "";
at("reviewer").onchange = () => (localStorage.reviewer = at("reviewer").value);
at("reviewer").onkeydown = (event) => {
  if (event.key === "Enter" || event.key === "Escape") (doubt ? at("title") : at("undo")).focus();
};
at("another").onsubmit = (event) => {
  event.preventDefault();
  give(at("label").value.trim());
};
// Keys count only where the focus is within the review, so that they are in nobody's way.
at("content").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const key = event.target === at("label") ? "" : event.key.toLowerCase();
  if (event.key === "Escape") at("title").focus();
  const action = key === "u" ? undo : doubt && actions[key];
  if (!action) return;
  event.preventDefault();
  action();
});

remember();
await alone(async () => {
  labels = await ask("review/labels");
  await next(sessionStorage.shown);
});
