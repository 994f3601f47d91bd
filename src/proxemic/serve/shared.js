// Functions that the pages of proxemic serve share.

export const at = (id) => document.getElementById(id);

export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export async function ask(path, options) {
  const answer = await fetch(path, options);
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  throw new Error(content.detail ?? `The server answers ${answer.status}.`);
}
