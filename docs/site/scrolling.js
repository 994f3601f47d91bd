// What is wider than the page can be scrolled by keyboard only where the focus can go, and shows that it goes on.
const showMore = (target) =>
  target.toggleAttribute("data-more", target.scrollLeft + target.clientWidth < target.scrollWidth - 1);
const widths = new ResizeObserver((all) => {
  for (const { target } of all) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
    showMore(target);
  }
});
addEventListener("load", () => {
  for (const wide of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .formula")) {
    widths.observe(wide);
    wide.addEventListener("scroll", () => showMore(wide), { passive: true });
  }
});
// A flag is a word of a search: a hyphen before a word would exclude it.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...more) {
  const asks = typeof message?.data === "string";
  post.call(this, asks ? { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") } : message, ...more);
};
