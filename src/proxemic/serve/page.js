// The page of proxemic serve. Names and labels only become the text of elements, never HTML.

import { ask, at, counted, make } from "./shared.js";

const conditions = [];
let gallery = { columns: [], labels: [], takes_pictures: true };
let query = null; // a file, a text, or an image of the gallery
let asking = new AbortController();

function say(text) {
  at("status").textContent = text;
  at("status").classList.remove("error");
}

function fail(text) {
  say(text);
  at("status").classList.add("error");
  at("answer").hidden = true; // the hits of an earlier query
}

function parameters(further) {
  const all = new URLSearchParams(further);
  for (const [column, value] of conditions) all.append("where", `${column}=${value}`);
  return all;
}

function card(row) {
  const name = row.label ?? row.name;
  const image = make("img", { src: `items/${row.id}/thumbnail`, alt: `Search with ${name}`, loading: "lazy" });
  const button = make("button", { type: "button", onclick: () => search(row) }, image);
  image.onerror = () => {
    image.replaceWith(make("span", { className: "none" }, "no photo"));
    button.setAttribute("aria-label", `Search with ${name}, which has no photo`);
  };
  const lines = [make("b", {}, row.label ?? "no label")];
  if (row.distance !== undefined) {
    lines.push(make("span", {}, ` ${row.distance.toFixed(4)}`));
  }
  const original = make("a", { href: `items/${row.id}/picture`, target: "_blank", rel: "noopener" }, row.name);
  const further = Object.entries(row.columns).filter(([, text]) => text !== null);
  const known = further.map(([column, text]) => make("div", {}, make("small", {}, `${column}: ${text}`)));
  return make("li", {}, make("figure", {}, button, make("figcaption", {}, ...lines, make("div", {}, original), ...known)));
}

function cards(hits) {
  const threshold = typeof query === "string" ? null : gallery.threshold; // which is for distances between images
  const near = threshold === null ? hits.length : hits.filter((hit) => hit.distance <= threshold).length;
  const made = hits.map(card);
  const line = `Threshold ${threshold?.toFixed(4)}: what follows is too far away to be named.`;
  if (near < hits.length && threshold >= 0) made.splice(near, 0, make("li", { className: "line" }, line));
  return made;
}

function verdict(recognition, row, hits) {
  if (!hits.length) return [conditions.length ? "No photo meets the filters." : "This gallery has no other photo."];
  if (typeof row === "string") return [make("b", {}, row), ", and the photos nearest to these words"];
  if (row) return [make("b", {}, row.label ?? row.name), " of the gallery, and the photos nearest to it"];
  if (!recognition) {
    return ["Nearest: ", make("b", {}, hits[0].label ?? hits[0].name), ` at ${hits[0].distance.toFixed(4)}`];
  }
  const { label, distance, threshold } = recognition;
  if (threshold < 0) return ["The query is not named: no distance is small enough for the threshold."];
  const why = distance === null ? "" : `, nearest${conditions.length ? " in the whole gallery" : ""} at ${distance.toFixed(4)}, threshold ${threshold.toFixed(4)}`;
  const doubts = make("small", {}, ` ${gallery.notes.join(" ")}`);
  return [make("b", { className: label === null ? "other" : "same" }, label ?? "unknown"), why, doubts];
}

async function search(wanted) {
  query = wanted;
  const file = wanted instanceof File ? wanted : null;
  const text = typeof wanted === "string" ? wanted : null;
  if (!at("count").reportValidity()) return;
  if (file && !gallery.takes_pictures) return fail(gallery.notes.join(" "));
  const most = Number(at("file").dataset.most);
  if (file && file.size > most) {
    return fail(`The photo has ${file.size.toLocaleString("en")} bytes, but the limit is ${most.toLocaleString("en")}: choose a smaller one.`);
  }
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  say("Searching …");
  const k = at("count").value;
  try {
    let found;
    if (file || text) {
      const body = new FormData();
      body.append(file ? "picture" : "text", wanted);
      found = await ask(`search${file ? "" : "/text"}?${parameters({ k })}`, { method: "POST", body, signal });
    } else {
      found = await ask(`search?${parameters({ k, item: wanted.id })}`, { signal });
    }
    if (at("query").src.startsWith("blob:")) URL.revokeObjectURL(at("query").src);
    at("query").hidden = text !== null;
    if (!text) at("query").src = file ? URL.createObjectURL(file) : `items/${wanted.id}/thumbnail`;
    at("query").alt = file ? "Your photo" : "The chosen photo";
    at("verdict").replaceChildren(...verdict(found.recognition, file ? null : wanted, found.hits));
    at("hits").replaceChildren(...cards(found.hits));
    at("answer").hidden = false;
    say(`${found.hits.length} found`);
    // The button that was pressed may be gone.
    at("answer-title").focus({ preventScroll: true });
    at("answer").scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (error.name !== "AbortError") fail(error.message.replace(/^The file/, file?.name ?? "The file"));
  }
}

let listed = 0; // the number of the latest listing, as several may be under way

async function list(after) {
  const mine = ++listed;
  try {
    const { items, more } = await ask(`items?${parameters({ after, count: 24 })}`);
    if (mine !== listed) return;
    if (after < 0) at("items").replaceChildren();
    at("items").append(...items.map(card));
    const none = conditions.length
      ? "No photo meets the filters."
      : `This gallery is empty. Add photos: proxemic gallery add ${gallery.name} PHOTOS`;
    at("choose").textContent = items.length || after >= 0 ? "Choose a photo to see its neighbours." : none;
    at("more").hidden = !more;
    at("more").onclick = () => list(items.at(-1).id);
  } catch (error) {
    fail(error.message);
  }
}

function changed() {
  at("conditions").replaceChildren(
    ...conditions.map((condition, place) => {
      const text = `${condition[0]} = ${condition[1] || "(none)"} ✕`;
      const remove = () => (conditions.splice(place, 1), changed());
      return make("button", { type: "button", title: "Remove this filter", onclick: remove }, text);
    }),
  );
  list(-1);
  if (query) search(query);
}

function take(files) {
  if (files.length) search(files[0]);
  else fail("That is not a file: drop, paste or choose a photo.");
}

function offer() {
  const known = at("column").value === "label" ? gallery.labels : [];
  at("values").replaceChildren(...known.map((value) => make("option", { value })));
}

at("query").onerror = () => (at("query").hidden = true); // the gallery's file is gone
at("file").onchange = () => at("file").files.length && take(at("file").files);
at("column").onchange = offer;
at("count").onchange = () => query && search(query);
at("filters").onsubmit = (event) => {
  event.preventDefault();
  const condition = [at("column").value, at("value").value];
  if (!conditions.some(([column, value]) => column === condition[0] && value === condition[1])) conditions.push(condition);
  at("value").value = "";
  changed();
};
at("words")?.addEventListener("submit", (event) => (event.preventDefault(), search(at("text").value)));
document.onpaste = (event) => event.clipboardData.files.length && take(event.clipboardData.files);
document.ondragover = (event) => (event.preventDefault(), at("drop").classList.add("over"));
document.ondragleave = () => at("drop").classList.remove("over");
document.ondrop = (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  take(event.dataTransfer.files);
};

try {
  gallery = await ask("gallery");
  const what = `${counted(gallery.rows, "photo")}, ${counted(gallery.label_count, "label")}, ${gallery.distance} distance.`;
  at("about").textContent = [what, ...gallery.notes].join(" ");
  at("column").append(...["label", ...gallery.columns].map((name) => make("option", {}, name)));
  at("file").disabled = !gallery.takes_pictures;
  offer();
} catch (error) {
  fail(error.message);
}
list(-1);
